import errno
import json

import numpy as np
import pytest

from vcotta.corruptions import STANDARD
from vcotta.data import ImageData, corrupted
from vcotta.data.corrupted import open_corrupted_arrays, write_corrupted
from vcotta.streams import make_stream

NAMES = ("gaussian_noise", "fog")


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return ImageData(rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8), np.arange(5), tuple("abcde"), "clean")


def test_all_severities_make_the_official_layout(data, tmp_path):
    folder = write_corrupted(data, tmp_path / "C")
    assert {path.name for path in folder.iterdir()} == {
        *(f"{name}.npy" for name in STANDARD),
        "labels.npy",
        "meta.json",
    }
    assert np.load(folder / "fog.npy").shape == (25, 32, 32, 3)
    assert np.load(folder / "labels.npy").tolist() == [*range(5)] * 5
    (folder / "meta.json").unlink()  # the official folder has none
    source = open_corrupted_arrays(folder, data.class_names, "mine", 5)
    made = make_stream("continual", data, severity=(1, 2, 3, 4, 5), batch_size=5)
    for one, other in zip(make_stream("continual", source, severity=(1, 2, 3, 4, 5), batch_size=5), made, strict=True):
        assert one.images.equal(other.images)


def test_single_severity_is_read_back(data, tmp_path, monkeypatch):
    monkeypatch.setattr(corrupted, "_CHUNK", 2 * 32 * 32 * 3)
    seen = []
    folder = write_corrupted(data, tmp_path, (5,), 3, corruptions=NAMES, progress=lambda *now: seen.append(now))
    assert seen == [(2, 10), (4, 10), (5, 10), (7, 10), (9, 10), (10, 10)]
    assert np.load(folder / "fog.npy").shape == (5, 32, 32, 3)
    source = open_corrupted_arrays(folder, data.class_names, "mine", 10_000)
    made = make_stream("continual", data, NAMES, batch_size=4, seed=3)
    for one, other in zip(make_stream("continual", source, NAMES, batch_size=4), made, strict=True):
        assert one.images.equal(other.images)
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["severities"], meta["seed"], meta["data"]["sha256"]) == ([5], 3, data.sha256())
    assert set(meta["files"]) == set(NAMES)


def test_interrupted_writing_continues_with_the_missing_files(data, tmp_path, monkeypatch):
    original, calls = corrupted.corrupt, []

    def full_disk(images, name, *rest, **options):
        calls.append(name)
        if name == "fog":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(images, name, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(corrupted, "corrupt", full_disk)
        with pytest.raises(OSError, match=r"No space left on device. The files there are complete"):
            write_corrupted(data, tmp_path, (5,), corruptions=NAMES)
    assert {path.name for path in tmp_path.iterdir()} == {"gaussian_noise.npy", "labels.npy", "meta.json"}
    first = (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns
    write_corrupted(data, tmp_path, (5,), corruptions=NAMES)
    assert (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns == first
    assert (tmp_path / "fog.npy").exists()
    write_corrupted(data, tmp_path, (5,), corruptions=(*NAMES, "snow"))
    assert (tmp_path / "snow.npy").exists()


def test_folder_made_otherwise_is_not_touched(data, tmp_path):
    write_corrupted(data, tmp_path / "a", (5,), corruptions=NAMES)
    with pytest.raises(ValueError, match=r"same settings, but its `seed` is 0, not 1"):
        write_corrupted(data, tmp_path / "a", (5,), 1, corruptions=NAMES)
    with pytest.raises(ValueError, match="its `severities` is"):
        write_corrupted(data, tmp_path / "a", (4,), corruptions=NAMES)
    (tmp_path / "b").mkdir()
    np.save(tmp_path / "b" / "labels.npy", data.labels)
    with pytest.raises(ValueError, match="it holds other files"):
        write_corrupted(data, tmp_path / "b", corruptions=NAMES)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["labels.npy"]


def test_wrong_arguments_are_named(data, tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'fog'"):
        write_corrupted(data, tmp_path, corruptions=("fogg",))
    for severities in ((), (0,), (5, 5)):
        with pytest.raises(ValueError, match="`severities` to be different numbers from 1 to 5"):
            write_corrupted(data, tmp_path, severities)
    assert list(tmp_path.iterdir()) == []
