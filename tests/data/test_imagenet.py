import hashlib

import numpy as np
import pytest

from vcotta.data import imagenet
from vcotta.data.imagenet import open_imagenet
from vcotta.data.prepared import available, load_prepared, prepare, prepared_dir

WNIDS = ("n01440764", "n01443537", "n01484850")
CLASS_OF = [2, 0, 1, 1, 2, 0, 0, 1, 2]  # of images 1 to 9


@pytest.fixture(autouse=True)
def _three_classes(monkeypatch):
    monkeypatch.setattr(imagenet, "CLASSES", 3)


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


@pytest.fixture
def put(save_image):
    """A function that writes the nine images flat or in class folders."""

    def write(folder, *, flat, size=(300, 280)):
        for number, label in enumerate(CLASS_OF, 1):
            save_image(folder / ("." if flat else WNIDS[label]) / name(number), size, seed=number)
        return folder

    return write


def write_devkit(folder):
    from scipy.io import savemat

    # the numbers of the devkit are not in the order of the ids, and inner nodes of the tree are no classes
    rows = [(1, WNIDS[1], 0), (2, WNIDS[2], 0), (3, WNIDS[0], 0), (4, "n00000001", 3)]
    synsets = np.array(rows, dtype=[("ILSVRC2012_ID", "i4"), ("WNID", "O"), ("num_children", "i4")])
    folder.mkdir(parents=True, exist_ok=True)
    savemat(folder / "meta.mat", {"synsets": synsets})
    numbers = [{1: 1, 2: 2, 0: 3}[label] for label in CLASS_OF]
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{number}\n" for number in numbers))
    return folder


def check(data):
    assert [file.split("/")[-1] for file in data.images.files] == [name(number) for number in range(1, 10)]
    assert data.labels.tolist() == CLASS_OF
    assert data.class_names == WNIDS
    assert data.images[2:4].shape == (2, 224, 224, 3)


@pytest.mark.parametrize("where", ["val", "ILSVRC/Data/CLS-LOC/val", "."])
def test_class_folders_are_found_and_classes_come_mixed(put, tmp_path, where):
    put(tmp_path / where, flat=False)
    check(open_imagenet(tmp_path))


def test_flat_folder_takes_labels_from_the_devkit(put, tmp_path, make_tar):
    put(tmp_path / "val", flat=True)
    with pytest.raises(
        FileNotFoundError, match=r"Expected the labels .*ILSVRC2012_devkit_t12.tar.gz.*LOC_val_solution"
    ):
        open_imagenet(tmp_path)
    folder = write_devkit(tmp_path / "ILSVRC2012_devkit_t12" / "data")
    check(open_imagenet(tmp_path))
    files = {f"ILSVRC2012_devkit_t12/data/{path.name}": path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        path.unlink()
    make_tar(tmp_path / "ILSVRC2012_devkit_t12.tar.gz", files)
    check(open_imagenet(tmp_path))
    check(open_imagenet(tmp_path / "val"))


def test_flat_folder_takes_labels_from_the_list_of_kaggle(put, tmp_path):
    put(tmp_path / "val", flat=True)
    rows = [f"ILSVRC2012_val_{number:08d},{WNIDS[label]} 1 2 3 4 \n" for number, label in enumerate(CLASS_OF, 1)]
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows))
    check(open_imagenet(tmp_path))
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(rows[:-1]))
    with pytest.raises(ValueError, match=r"to contain ILSVRC2012_val_00000009.JPEG, but it does not"):
        open_imagenet(tmp_path)


def test_labels_of_another_length_are_refused(put, tmp_path):
    put(tmp_path, flat=True)
    write_devkit(tmp_path)
    path = tmp_path / "ILSVRC2012_validation_ground_truth.txt"
    path.write_text("1\n2\n")
    with pytest.raises(ValueError, match="to contain ILSVRC2012_val_00000003"):
        open_imagenet(tmp_path)
    path.write_text("17\n")
    with pytest.raises(ValueError, match=r"to be class numbers of meta.mat, but got 17"):
        open_imagenet(tmp_path)
    (tmp_path / "meta.mat").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"meta.mat to list the synsets"):
        open_imagenet(tmp_path)


def test_tar_is_checked_and_unpacked_whole_or_not_at_all(put, tmp_path, make_tar, monkeypatch):
    flat = put(tmp_path / "flat", flat=True)
    files = {path.name: path.read_bytes() for path in flat.iterdir()} | {"../evil.JPEG": b"", "readme": b""}
    root = tmp_path / "root"
    tar = make_tar(root / "ILSVRC2012_img_val.tar", files)
    write_devkit(root)
    with pytest.raises(ValueError, match=r"to have MD5 29b22e.*verify=False"):
        open_imagenet(root)
    whole = tar.read_bytes()
    tar.write_bytes(whole[:600])  # within the first image
    with pytest.raises(ValueError, match="truncated or damaged"):
        open_imagenet(root, verify=False)
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == []
    tar.write_bytes(whole)
    monkeypatch.setattr(imagenet, "_TAR_MD5", hashlib.md5(whole).hexdigest())
    check(open_imagenet(root))
    assert len(list((root / "ILSVRC2012_img_val").iterdir())) == 9
    assert not list(tmp_path.rglob("evil.JPEG"))


def test_subset_has_the_first_images_of_every_class(put, tmp_path):
    data = open_imagenet(put(tmp_path, flat=False), subset=6)
    assert data.labels.tolist() == [2, 0, 1, 1, 2, 0]
    with pytest.raises(ValueError, match="`subset` to be a multiple of 3"):
        open_imagenet(tmp_path, subset=5)
    with pytest.raises(ValueError, match="Expected 4 images of each class"):
        open_imagenet(tmp_path, subset=12)


@pytest.mark.parametrize("flat", [True, False])
def test_list_sets_images_and_their_order(put, tmp_path, flat):
    put(tmp_path / "val", flat=flat)
    write_devkit(tmp_path)
    path = tmp_path / "ids.txt"
    path.write_text(f"{WNIDS[1]}/{name(8)}\n{WNIDS[2]}/{name(1)}\n")
    data = open_imagenet(tmp_path, list_file=path)
    assert data.labels.tolist() == [1, 2]
    path.write_text(f"{WNIDS[1]}/{name(18)}\n")
    with pytest.raises(ValueError, match=r"Expected the image ILSVRC2012_val_00000018.JPEG of .*, but there is none"):
        open_imagenet(tmp_path, list_file=path)
    path.write_text("")
    with pytest.raises(ValueError, match="it is empty"):
        open_imagenet(tmp_path, list_file=path)
    with pytest.raises(ValueError, match="but got both"):
        open_imagenet(tmp_path, list_file=path, subset=3)
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        open_imagenet(tmp_path, list_file=tmp_path / "no.txt")


def test_class_folder_too_many_is_named(put, save_image, tmp_path):
    put(tmp_path, flat=False)
    save_image(tmp_path / "n02000000" / "a.JPEG")
    with pytest.raises(ValueError, match=r"Expected 3 classes in .*, but got 4"):
        open_imagenet(tmp_path)
    save_image(tmp_path / "extras" / "a.JPEG")
    with pytest.raises(ValueError, match=r"but got 'extras'"):
        open_imagenet(tmp_path)


def test_images_cropped_before_need_preprocess_none(put, tmp_path):
    put(tmp_path, flat=False, size=(224, 224))
    with pytest.raises(ValueError, match="a second time"):
        open_imagenet(tmp_path)
    check(open_imagenet(tmp_path, preprocess="none"))


def test_photographs_are_refused_where_none_is_resized(put, tmp_path):
    with pytest.raises(ValueError, match=r"to be 224 x 224, .* but got 300 x 280"):
        open_imagenet(put(tmp_path, flat=False), preprocess="none")


def test_nothing_found_says_that_it_must_be_downloaded_by_hand(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ILSVRC2012_img_val.tar, but found none.*by hand"):
        open_imagenet(tmp_path)
    with pytest.raises(ValueError, match="Download them by hand"):
        prepare("imagenet", tmp_path, download=True)
    with pytest.raises(ValueError, match="for imagenet only"):
        prepare("cifar10", tmp_path, subset=5000)


def test_prepared_list_is_loaded_and_checked(put, tmp_path):
    put(tmp_path / "root", flat=False)
    assert prepare("imagenet", tmp_path / "root") == prepared_dir("imagenet")
    check(load_prepared("imagenet"))
    (row,) = available()
    assert (row.state, row.official, row.images) == ("right", None, {"test": 9})
    assert row.note == "9 of 50000 images: all found"
    (tmp_path / "root" / WNIDS[2] / name(1)).write_bytes(b"damaged")
    assert available()[0].state == "damaged"
    (tmp_path / "root").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"where they were when it was prepared, but .* Prepare it again"):
        load_prepared("imagenet")
