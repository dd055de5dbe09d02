import numpy as np
import pytest

from vcotta.data.class_folders import class_folders


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
    with pytest.raises(ValueError, match=r"the 2 given classes, but 'eel' is one class folder too many"):
        class_folders(pets, 32, class_names=["dog", "cat"])
    with pytest.raises(ValueError, match=r"but 'fox' is missing"):
        class_folders(pets, 32, class_names=["dog", "cat", "eel", "fox"])
    with pytest.raises(ValueError, match="different from each other"):
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
