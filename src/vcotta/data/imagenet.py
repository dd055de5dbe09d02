"""The ImageNet validation images, left in their files and sorted by file name, which mixes the classes."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vcotta._util.archives import read_members, read_tar
from vcotta._util.files import replaced_folder, require_file
from vcotta.data.folders import list_class_folders
from vcotta.data.image_files import FilePixels, ImageFiles

__all__ = ["CLASSES", "IMAGES", "choose", "list_wnid_folders", "open_imagenet"]

CLASSES: Final = 1000
IMAGES: Final = 50_000
_TAR: Final = "ILSVRC2012_img_val.tar"
_TAR_MD5: Final = "29b22e2961454d5413ddabcf34fc5622"  # published on the download page, and in torchvision
_FOLDERS: Final = ("val", "ILSVRC2012_img_val", "validation", "ILSVRC/Data/CLS-LOC/val", ".")
_WNID = re.compile(r"n\d{8}")
_FILE = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
_KAGGLE: Final = "LOC_val_solution.csv"
_TRUTH: Final = "ILSVRC2012_validation_ground_truth.txt"
_DEVKIT: Final = "ILSVRC2012_devkit_t12"

_LABEL_FILES: Final = (f"{_DEVKIT}.tar.gz", f"{_DEVKIT}/data", f"{_TRUTH} with meta.mat", _KAGGLE)


def open_imagenet(
    root: str | os.PathLike[str],
    *,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
    preprocess: str = "res256crop224",
    verify: bool = True,
) -> ImageFiles:
    """Return the validation images found in a folder, with their labels.

    Args:
        root: Folder with, or itself, one of: class folders (``n01440764``, ...); all images in one folder, with the
            devkit or Kaggle's ``LOC_val_solution.csv`` beside them; ``ILSVRC2012_img_val.tar`` with the same, which is
            unpacked beside itself.
        subset: Only this many images, the first by file name of each class: 5000 is five a class. For the 5 000
            images of RobustBench pass its list.
        list_file: Text file with one path ``n01440764/ILSVRC2012_val_00000293.JPEG`` a line, in the wanted order.
        preprocess: ``"res256crop224"`` for photographs, ``"none"`` for images that are 224 x 224 already.
        verify: Check the hash of the tar before it is unpacked.

    Raises:
        FileNotFoundError: No images, or no labels for them.
        ValueError: The images, the labels and the list disagree.
    """
    base = Path(root).expanduser()
    folder = _find_folder(base) or _unpack(base, verify)
    if _has_class_folders(folder):
        wnids, files, labels = list_wnid_folders(folder)
    else:
        files = sorted(path.name for path in folder.iterdir() if _FILE.fullmatch(path.name))
        classes = _read_labels([base, folder, folder.parent], files)
        wnids = tuple(sorted(set(classes.values())))
        _check_classes(folder, wnids)
        number = {wnid: label for label, wnid in enumerate(wnids)}
        labels = [number[classes[file]] for file in files]
    chosen, chosen_labels = choose(files, labels, len(wnids), subset=subset, list_file=list_file)
    pixels = FilePixels(folder, chosen, 224, preprocess)
    pixels[:1]  # a wrong size is an error now, not in the middle of a run
    return ImageFiles(pixels, chosen_labels, wnids, "imagenet-test")


def list_wnid_folders(folder: Path, classes: int | None = None) -> tuple[tuple[str, ...], list[str], list[int]]:
    """Return the classes, and the files with their labels, sorted by file name; None for ImageNet's 1000 classes."""
    wnids, files, labels = list_class_folders(folder)
    _check_classes(folder, wnids, classes)
    order = sorted(range(len(files)), key=lambda place: (PurePosixPath(files[place]).name, files[place]))
    return wnids, [files[place] for place in order], [labels[place] for place in order]


def choose(
    files: Sequence[str],
    labels: Sequence[int],
    classes: int,
    *,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return all files with their labels, or the first few of each class, or those of a list.

    Example:
        >>> choose(["a1", "b1", "a2", "b2"], [0, 1, 0, 1], 2, subset=2)
        (('a1', 'b1'), array([0, 1]))
    """
    if list_file is not None:
        if subset is not None:
            raise ValueError("Expected `subset` or `list_file`, but got both. Give one of them.")
        places = _places_of_list(files, Path(list_file))
    elif subset is not None:
        if subset < 1 or subset % classes:
            raise ValueError(
                f"Expected `subset` to be a multiple of {classes}, the number of classes, but got {subset}. Use 5000 "
                "for five images a class."
            )
        seen, places = [0] * classes, []
        for place, label in enumerate(labels):
            seen[label] += 1
            if seen[label] <= subset // classes:
                places.append(place)
        if len(places) < subset:
            raise ValueError(
                f"Expected {subset // classes} images of each class, but there are only {len(places)} in all. Use a "
                "smaller `subset`, or None for all images."
            )
    else:
        places = list(range(len(files)))
    return tuple(files[place] for place in places), np.array([labels[place] for place in places], np.int64)


def _places_of_list(files: Sequence[str], path: Path) -> list[int]:
    require_file(path, "a list of images")
    # by base name, which is unique in ImageNet, so that one list fits images with and without class folders
    place_of = {PurePosixPath(file).name: place for place, file in enumerate(files)}
    names = [PurePosixPath(line).name for line in path.read_text(encoding="utf-8").split()]
    if not names:
        raise ValueError(f"Expected {path} to list images, one path a line, but it is empty.")
    for name in names:
        if name not in place_of:
            raise ValueError(f"Expected the image {name} of {path}, but there is none. Get the complete data set.")
    return [place_of[name] for name in names]


def _check_classes(folder: Path, wnids: Sequence[str], classes: int | None = None) -> None:
    classes = CLASSES if classes is None else classes
    for wnid in wnids:
        if not _WNID.fullmatch(wnid):
            raise ValueError(
                f"Expected the class folders of {folder} to be WordNet ids such as n01440764, but got {wnid!r}. "
                "Move it away; for classes of your own use the data set folder:DIR."
            )
    if len(wnids) != classes:
        raise ValueError(
            f"Expected {classes} classes in {folder}, but got {len(wnids)}. Get the complete validation set; for "
            "fewer classes use the data set folder:DIR."
        )


def _has_class_folders(folder: Path) -> bool:
    return any(_WNID.fullmatch(path.name) for path in folder.iterdir() if path.is_dir())


def _find_folder(base: Path) -> Path | None:
    for name in _FOLDERS:
        folder = base / name
        if folder.is_dir() and (_has_class_folders(folder) or any(_FILE.fullmatch(p.name) for p in folder.iterdir())):
            return folder
    return None


def _unpack(base: Path, verify: bool) -> Path:
    """Unpack the tar into a folder beside it, which appears complete or not at all."""
    tar = base if base.name == _TAR else base / _TAR
    if not tar.is_file():
        raise FileNotFoundError(
            f"Expected {base} to hold ImageNet's validation images, as class folders, as {_FOLDERS[0]}/ or as {_TAR}, "
            "but found none. Download them by hand, after agreeing to their terms."
        )
    if verify:
        with tar.open("rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest()
        if found != _TAR_MD5:
            raise ValueError(
                f"Expected {tar} to have MD5 {_TAR_MD5}, but got {found}. Download it again, or accept it as it is "
                "(`verify=False`, --no-verify)."
            )
    folder = tar.parent / "ILSVRC2012_img_val"
    with replaced_folder(folder) as aside:
        for name, contents in read_tar(tar, _FILE.fullmatch):
            (aside / name).write_bytes(contents)
    return folder


def _read_labels(places: list[Path], files: Iterable[str]) -> dict[str, str]:
    """Return the class (WordNet id) of each file, from the first list of labels in ``places``."""
    found = _find_labels(places)
    if found is None:
        raise FileNotFoundError(
            f"Expected the labels of the images, one of {', '.join(_LABEL_FILES)}, in {places[0]}, but found none. Put "
            "one there, or sort the images into class folders such as n01440764."
        )
    classes = _read_kaggle(found) if found.name == _KAGGLE else _read_devkit(found)
    result = {}
    for file in files:
        stem = Path(file).stem
        if stem not in classes:
            raise ValueError(f"Expected {found} to contain {file}, but it does not. Get the complete list.")
        result[file] = classes[stem]
    return result


def _find_labels(places: list[Path]) -> Path | None:
    for place in places:
        if (place / _KAGGLE).is_file():
            return place / _KAGGLE
        for folder in (place / _DEVKIT / "data", place / "data", place):
            if (folder / _TRUTH).is_file() and (folder / "meta.mat").is_file():
                return folder
        if (place / f"{_DEVKIT}.tar.gz").is_file():
            return place / f"{_DEVKIT}.tar.gz"
    return None


def _read_kaggle(path: Path) -> dict[str, str]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2 and row[1].startswith("n")]
    return {row[0]: row[1].split()[0] for row in rows}


def _read_devkit(path: Path) -> dict[str, str]:
    contents = read_members(path, [_TRUTH, "meta.mat"])
    wnids = _read_meta(contents["meta.mat"])
    try:
        numbers = [int(line) for line in contents[_TRUTH].split()]
        return {f"ILSVRC2012_val_{place:08d}": wnids[number] for place, number in enumerate(numbers, 1)}
    except (ValueError, KeyError) as error:
        raise ValueError(f"Expected {_TRUTH} to be class numbers of meta.mat, but got {error}.") from error


def _read_meta(contents: bytes) -> dict[int, str]:
    """Return the WordNet id of each ILSVRC2012 number; only leaves of the hierarchy are classes."""
    from scipy.io import loadmat  # slow to import, and needed only here

    try:
        synsets: Any = loadmat(io.BytesIO(contents), squeeze_me=True)["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if int(row["num_children"]) == 0}
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"Expected meta.mat to list the synsets, but it cannot be read: {error!r}.") from error
