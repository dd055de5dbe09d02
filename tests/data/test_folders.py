from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vcotta.data.folders import class_folders, corrupt_files


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.full((32, 32, 3), 90, np.uint8)).save(path)
    return path


def test_existing_files_are_not_overwritten(image, tmp_path) -> None:
    before = image.read_bytes()
    for out in (image, tmp_path):
        with pytest.raises(FileExistsError, match="choose another name"):
            corrupt_files(image if out == image else tmp_path, out, "fog", 5)
    assert image.read_bytes() == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "in").mkdir()
    image.rename(tmp_path / "in" / "a.png")
    assert corrupt_files(tmp_path / "in", tmp_path / "empty", "contrast", 1) == 1


def test_an_ending_of_another_format_is_refused(image, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"end in \.png"):
        corrupt_files(image, tmp_path / "b.jpg", "fog", 5)
    np.save(tmp_path / "x.npy", np.zeros((2, 32, 32, 3), np.uint8))
    with pytest.raises(ValueError, match=r"end in \.npy"):
        corrupt_files(tmp_path / "x.npy", tmp_path / "x.png", "fog", 5)


def test_more_than_eight_bits_a_channel_are_refused_and_not_clipped(tmp_path) -> None:
    Image.fromarray(np.full((32, 32), 30000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png to have eight bits a channel, but its mode is I;16\. Convert"):
        corrupt_files(tmp_path / "deep.png", tmp_path / "b.png", "fog", 5)


def test_a_file_that_is_no_image_is_named(tmp_path) -> None:
    (tmp_path / "bad.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"bad\.png to be an image"):
        corrupt_files(tmp_path / "bad.png", tmp_path / "b.png", "fog", 5)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="has none that end in"):
        corrupt_files(tmp_path / "none", tmp_path / "out", "fog", 5)
    (tmp_path / "bad.npy").write_bytes(b"not an array")
    with pytest.raises(ValueError, match="cannot be read"):
        corrupt_files(tmp_path / "bad.npy", tmp_path / "c.npy", "fog", 5)


def test_images_that_would_become_one_file_are_refused_before_anything_is_written(image, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.png", "a.jpg"):
        Image.open(image).save(tmp_path / "in" / name)
    with pytest.raises(ValueError, match=r"a\.jpg and .*a\.png would both become a\.png"):
        corrupt_files(tmp_path / "in", tmp_path / "out", "fog", 5)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_a_broken_image_leaves_nothing_that_blocks_the_next_try(image, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    image.rename(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "b.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"b\.png to be an image"):
        corrupt_files(tmp_path / "in", tmp_path / "out", "contrast", 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
    (tmp_path / "in" / "b.png").unlink()
    assert corrupt_files(tmp_path / "in", tmp_path / "out", "contrast", 5) == 1


def test_an_empty_working_directory_is_filled(image, tmp_path, monkeypatch) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    image.rename(tmp_path / "in" / "deep" / "a.png")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    assert corrupt_files(Path("..") / "in", Path(), "contrast", 5) == 1
    assert [str(path) for path in Path().rglob("*.png")] == ["deep/a.png"]
    assert [path.name for path in Path().iterdir()] == ["deep"]


@pytest.fixture
def pets(save_image, tmp_path):
    for number, name in enumerate(["dog", "cat", "eel"]):
        for place in range(6):
            save_image(tmp_path / "pets" / name / f"{place}.png", (40, 48), seed=10 * number + place)
    (tmp_path / "pets" / "notes.txt").write_text("not a class")
    (tmp_path / "pets" / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "pets" / ".hidden").mkdir()
    return tmp_path / "pets"


def test_classes_are_the_sorted_sub_folders(pets):
    data = class_folders(pets, 32)
    assert data.class_names == ("cat", "dog", "eel")
    assert data.images.shape == (18, 32, 32, 3)
    assert data.name == "folder:pets"
    for file, label in zip(data.images.files, data.labels, strict=True):
        assert file.split("/")[0] == data.class_names[label]
    assert data.images[:4].shape == (4, 32, 32, 3)


def test_classes_are_mixed_in_an_order_that_repeats(pets):
    data = class_folders(pets, 32)
    assert np.array_equal(data.labels, class_folders(pets, 32).labels)
    assert len(set(data.labels[:6].tolist())) > 1
    assert data.images.files != class_folders(pets, 32, order_seed=1).images.files
    assert class_folders(pets, 32, order_seed=None).labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6


def test_given_class_names_set_the_labels(pets):
    data = class_folders(pets, 32, class_names=["eel", "dog", "cat"], order_seed=None)
    assert data.images.files[0] == "eel/0.png"
    assert data.class_names == ("eel", "dog", "cat")


def test_class_folder_too_many_or_missing_is_named(pets):
    with pytest.raises(ValueError, match=r"the 2 given classes, but 'eel' is not one of them"):
        class_folders(pets, 32, class_names=["dog", "cat"])
    with pytest.raises(ValueError, match=r"but 'fox' is missing"):
        class_folders(pets, 32, class_names=["dog", "cat", "eel", "fox"])
    with pytest.raises(ValueError, match="without repetition"):
        class_folders(pets, 32, class_names=["dog", "cat", "eel", "cat"])


def test_empty_class_and_empty_folder_are_refused(pets, tmp_path):
    (pets / "fox").mkdir()
    with pytest.raises(ValueError, match=r"Expected images in .*fox, but it has none"):
        class_folders(pets, 32)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="one sub-folder a class, but it has none"):
        class_folders(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        class_folders(tmp_path / "nowhere")
