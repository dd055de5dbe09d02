import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from vcotta.data import to_tensor
from vcotta.data.prepared import available, load_prepared, prepare, prepared_dir, write_prepared
from vcotta.streams import make_stream

META = {"format": 1, "name": "squares", "class_names": ["a", "b"], "official": True, "note": "", "licence": "none"}


def squares(n: int = 6) -> dict:
    rng = np.random.default_rng(0)
    return {"test": (rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 2)}


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_loaded_arrays_are_mapped_not_copied(tmp_path):
    folder = write_prepared(prepared_dir("squares"), squares(), META)
    data = load_prepared("squares")
    assert isinstance(data.images, np.memmap)
    assert isinstance(data.labels, np.memmap)
    assert Path(data.images.filename) == folder / "test_images.npy"
    assert not data.images.flags.writeable
    assert np.array_equal(data.images, squares()["test"][0])
    assert to_tensor(data.images[:2]).shape == (2, 3, 32, 32)


def test_loading_is_instant_however_large_the_data():
    write_prepared(prepared_dir("squares"), squares(10_000), META)
    start = time.perf_counter()
    load_prepared("squares")
    assert time.perf_counter() - start < 0.2


def test_mapped_images_make_the_same_stream_as_images_in_memory():
    write_prepared(prepared_dir("squares"), squares(), META)
    stream = make_stream("continual", load_prepared("squares"), ("gaussian_noise",), batch_size=4)
    described = stream.describe()
    assert (
        described["data"]["sha256"]
        == available()[0].where.joinpath("meta.json").read_text().split('"sha256": "')[1][:64]
    )
    assert described["pixels"] == "generated"
    assert [len(batch.labels) for batch in stream] == [4, 2]


@pytest.mark.parametrize("fails", ["save", "fsync", "replace", "write_text"])
def test_full_disk_leaves_nothing_and_says_so(tiny_cifar, tmp_path, monkeypatch, fails):
    tiny_cifar().put(tmp_path / "root", "binary")
    owner = {"save": np, "fsync": os, "replace": Path, "write_text": Path}[fails]
    with monkeypatch.context() as patch:
        patch.setattr(owner, fails, full_disk)
        with pytest.raises(OSError, match=r"Could not write .*cifar10: No space left on device. Nothing was changed"):
            prepare("cifar10", tmp_path / "root")
    assert list(prepared_dir("").iterdir()) == []
    prepare("cifar10", tmp_path / "root")
    assert available()[0].state == "right"


def test_failed_second_preparation_keeps_the_first(monkeypatch):
    write_prepared(prepared_dir("squares"), squares(), META)
    original = Path.replace

    def replace(self, target):
        if self.name == "new":
            full_disk()
        return original(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OSError, match="No space left"):
            write_prepared(prepared_dir("squares"), squares(3), META)
    assert len(load_prepared("squares")) == 6
    write_prepared(prepared_dir("squares"), squares(3), META)
    assert len(load_prepared("squares")) == 3
    assert [path.name for path in prepared_dir("").iterdir()] == ["squares"]


def test_killed_preparation_leaves_nothing_under_the_name():
    (prepared_dir("") / ".squares.abc" / "new").mkdir(parents=True)
    assert available() == []
    with pytest.raises(FileNotFoundError, match=r"squares to be prepared .* Run `vcotta data prepare squares --root"):
        load_prepared("squares")


def test_damage_is_found_by_the_hash():
    folder = write_prepared(prepared_dir("squares"), squares(), META)
    assert available()[0].state == "right"
    assert available(check=False)[0].state == "unchecked"
    path = folder / "test_images.npy"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    assert available()[0].state == "damaged"
    path.write_bytes(contents[:-100])
    assert available()[0].state == "damaged"
    with pytest.raises(ValueError, match=r"to be an array, but it cannot be read: .* Prepare squares again"):
        load_prepared("squares")
    path.unlink()
    assert available()[0].state == "damaged"


def test_labels_of_another_length_are_refused():
    folder = write_prepared(prepared_dir("squares"), squares(), META)
    np.save(folder / "test_labels.npy", np.zeros(5, np.int64))
    with pytest.raises(ValueError, match=r"to hold 6 images .* and 5 labels. Prepare squares again"):
        load_prepared("squares")


def test_unknown_split_and_format_are_named():
    folder = write_prepared(prepared_dir("squares"), squares(), META)
    with pytest.raises(ValueError, match=r"`split` to be one of test, but got 'tset'. Did you mean 'test'"):
        load_prepared("squares", "tset")
    meta = json.loads((folder / "meta.json").read_text()) | {"format": 2}
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="to be of format 1"):
        load_prepared("squares")
    (folder / "meta.json").write_text("{")
    assert available()[0].state == "damaged"
