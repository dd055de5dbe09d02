"""Tiny-ImageNet from tiny stand-ins with the layout of the official archive."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vcotta.data import tiny_imagenet as module
from vcotta.data.prepared import available, load_prepared, prepare

WNIDS = ("n02124075", "n01443537", "n04067472")  # as in the official list, not sorted


def picture(seed: int, grey: bool = False, size: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size) if grey else (size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")  # Pillow goes by the content; PNG keeps every pixel
    return buffer.getvalue()


def official_files() -> dict[str, bytes]:
    files = {"wnids.txt": "".join(f"{wnid}\n" for wnid in WNIDS).encode(), "words.txt": b""}
    for k, wnid in enumerate(WNIDS):
        for image in range(2 + (k == 0)):
            files[f"train/{wnid}/images/{wnid}_{image}.JPEG"] = picture(10 * k + image, grey=image == 1)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b""
    lines = []
    for image in range(4):
        files[f"val/images/val_{image}.JPEG"] = picture(100 + image)
        lines.append(f"val_{image}.JPEG\t{WNIDS[image % 3]}\t0\t0\t63\t63\n")
    return files | {"val/val_annotations.txt": "".join(lines).encode(), "test/images/test_0.JPEG": picture(1)}


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, contents in official_files().items():
        path = tmp_path / "root" / module.FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)
    return tmp_path / "root"


@pytest.fixture
def small(monkeypatch) -> None:
    """Let three classes with seven and four images be the official number."""
    monkeypatch.setattr(module, "CLASSES", 3)
    monkeypatch.setattr(module, "IMAGES", {"train": 7, "test": 4})


def write_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, contents in official_files().items():
            archive.writestr(f"{module.FOLDER}/{name}", contents)
    return path


def test_labels_are_places_of_sorted_ids_and_training_images_come_in_turns(folder, small) -> None:
    prepare("tiny-imagenet", folder)
    train, test = load_prepared("tiny-imagenet", "train"), load_prepared("tiny-imagenet", "test")
    assert train.class_names == ("n01443537", "n02124075", "n04067472")
    assert train.labels.tolist() == [0, 1, 2, 0, 1, 2, 1]
    assert test.labels.tolist() == [1, 0, 2, 1]
    assert train.images.shape == (7, 64, 64, 3)
    with Image.open(io.BytesIO(picture(10))) as image:
        assert np.array_equal(train.images[0], np.asarray(image))
    with Image.open(io.BytesIO(picture(101))) as image:
        assert np.array_equal(test.images[1], np.asarray(image))
    assert available()[0].official is None


def test_grey_images_become_rgb(folder, small) -> None:
    prepare("tiny-imagenet", folder)
    grey = load_prepared("tiny-imagenet", "train").images[3]
    with Image.open(io.BytesIO(picture(11, grey=True))) as image:
        assert np.array_equal(grey, np.repeat(np.asarray(image)[:, :, None], 3, 2))


def test_the_archive_gives_what_its_unpacked_folder_gives(folder, small, tmp_path, monkeypatch) -> None:
    prepare("tiny-imagenet", folder)
    unpacked = np.array(load_prepared("tiny-imagenet", "train").images)
    path = write_zip(tmp_path / module.ARCHIVE)
    monkeypatch.setattr(module, "_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    prepare("tiny-imagenet", tmp_path)
    assert np.array_equal(load_prepared("tiny-imagenet", "train").images, unpacked)
    assert available()[0].official is True


def test_another_archive_is_refused_unless_it_is_wanted(small, tmp_path) -> None:
    path = write_zip(tmp_path / module.ARCHIVE)
    with pytest.raises(ValueError, match=r"to have MD5 90528d7ca1a48142e341f4ef8d21d0de, but got .*--no-verify"):
        prepare("tiny-imagenet", path)
    prepare("tiny-imagenet", path, verify=False)
    assert available()[0].official is False
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="to be a complete zip archive, but it is damaged"):
        prepare("tiny-imagenet", path, verify=False)


def test_an_incomplete_data_set_is_named(folder, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"Expected 100000 training and 10000 .* but got 7 training and 4 validation"):
        prepare("tiny-imagenet", folder)
    prepare("tiny-imagenet", folder, verify=False)
    assert available()[0].note == "7 training and 4 validation images of 3 classes"
    (folder / module.FOLDER / "val" / "images" / "val_2.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_2\.JPEG, but there is no such file"):
        prepare("tiny-imagenet", folder, verify=False)
    with pytest.raises(FileNotFoundError, match=r"Expected tiny-imagenet-200\.zip, or the folder .* but found none"):
        prepare("tiny-imagenet", tmp_path / "empty")


def test_images_of_another_size_and_annotations_of_other_classes_are_refused(folder) -> None:
    place = folder / module.FOLDER
    (place / "val" / "images" / "val_0.JPEG").write_bytes(picture(0, size=32))
    with pytest.raises(ValueError, match=r"val_0\.JPEG to be 64 x 64, but got 32 x 32"):
        prepare("tiny-imagenet", folder, verify=False)
    (place / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99999999\t0\t0\t1\t1\n")
    with pytest.raises(ValueError, match=r"to be in wnids\.txt, but got 'n99999999'"):
        prepare("tiny-imagenet", folder, verify=False)


def test_it_is_downloaded_by_hand_and_has_no_subsets(folder) -> None:
    with pytest.raises(ValueError, match="Expected `root`, the folder of the images of tiny-imagenet"):
        prepare("tiny-imagenet", download=True)
    with pytest.raises(ValueError, match="for imagenet only, but got one for tiny-imagenet"):
        prepare("tiny-imagenet", folder, subset=200)
