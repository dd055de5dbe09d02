"""The ImageNet validation images: found, labelled and listed; they stay in their files.

Images come in the order of their file names, ``ILSVRC2012_val_00000001.JPEG`` first, in which the classes are mixed.
"""

from __future__ import annotations

import hashlib
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vcotta.data.atomic_folder import replaced_folder
from vcotta.data.class_folders import list_class_folders
from vcotta.data.image_files import FilePixels, ImageFiles
from vcotta.data.imagenet_labels import read_labels

__all__ = ["CLASSES", "IMAGES", "choose", "list_wnid_folders", "open_imagenet"]

CLASSES: Final = 1000
IMAGES: Final = 50_000
_TAR: Final = "ILSVRC2012_img_val.tar"
_TAR_MD5: Final = "29b22e2961454d5413ddabcf34fc5622"  # published on the download page, and in torchvision
_FOLDERS: Final = ("val", "ILSVRC2012_img_val", "validation", "ILSVRC/Data/CLS-LOC/val", ".")
_WNID = re.compile(r"n\d{8}")
_FILE = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")


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
        root: Folder that holds, or is, one of: class folders (``n01440764``, ...); all images flat, with the devkit
            or Kaggle's ``LOC_val_solution.csv`` beside them; ``ILSVRC2012_img_val.tar`` with the same, which is
            unpacked beside itself.
        subset: Only this many, the same number of each class and the first by file name: 5000 is five a class. This
            is not the 5 000 images of RobustBench, for which pass its list.
        list_file: Text file with one path ``n01440764/ILSVRC2012_val_00000293.JPEG`` a line, which sets the images
            and their order.
        preprocess: ``"res256crop224"`` for photographs, ``"none"`` for images that are 224 x 224 already.
        verify: Check the hash of the tar before it is unpacked.

    Raises:
        FileNotFoundError: No images, or no labels for them.
        ValueError: The images, the labels or the list do not fit each other.
    """
    base = Path(root).expanduser()
    folder = _find_folder(base) or _unpack(base, verify)
    if _has_class_folders(folder):
        wnids, files, labels = list_wnid_folders(folder)
    else:
        files = sorted(path.name for path in folder.iterdir() if _FILE.fullmatch(path.name))
        classes = read_labels([base, folder, folder.parent], files)
        wnids = tuple(sorted(set(classes.values())))
        _check_classes(folder, wnids)
        number = {wnid: label for label, wnid in enumerate(wnids)}
        labels = [number[classes[file]] for file in files]
    chosen, chosen_labels = choose(files, labels, len(wnids), subset=subset, list_file=list_file)
    pixels = FilePixels(folder, chosen, 224, preprocess)
    pixels[:1]  # images of a wrong size are refused now, not in the middle of a run
    return ImageFiles(pixels, chosen_labels, wnids, "imagenet-test")


def list_wnid_folders(folder: Path) -> tuple[tuple[str, ...], list[str], list[int]]:
    """Return the classes, and the files with their labels in the order of the files' own names."""
    wnids, files, labels = list_class_folders(folder)
    _check_classes(folder, wnids)
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
    """Return some of the files with their labels: the first few of each class, or those of a list.

    Example:
        >>> choose(["a1", "b1", "a2", "b2"], [0, 1, 0, 1], 2, subset=2)
        (('a1', 'b1'), array([0, 1]))
    """
    if list_file is not None:
        if subset is not None:
            raise ValueError("Expected `subset` or `list_file`, but got both. The list alone says which images.")
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
    if not path.is_file():
        raise FileNotFoundError(f"Expected `list_file` to be a text file of image paths, but there is no file {path}.")
    # by base name, which is unique in ImageNet, so that one list serves flat folders too
    place_of = {PurePosixPath(file).name: place for place, file in enumerate(files)}
    names = [PurePosixPath(line).name for line in path.read_text(encoding="utf-8").split()]
    if not names:
        raise ValueError(f"Expected {path} to list images, one path a line, but it is empty.")
    for name in names:
        if name not in place_of:
            raise ValueError(f"Expected every image of {path} to be there, but {name} is not. Get the whole data set.")
    return [place_of[name] for name in names]


def _check_classes(folder: Path, wnids: Sequence[str]) -> None:
    for wnid in wnids:
        if not _WNID.fullmatch(wnid):
            raise ValueError(
                f"Expected the class folders of {folder} to be WordNet ids such as n01440764, but {wnid!r} is one too "
                "many. Move it away; for classes of your own use the data set folder:DIR."
            )
    if len(wnids) != CLASSES:
        raise ValueError(
            f"Expected {CLASSES} classes in {folder}, but got {len(wnids)}. Get the whole validation set; for a part "
            "of the classes use the data set folder:DIR."
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
    """Unpack the tar into a folder beside it, which appears whole or not at all; only names we know are written."""
    tar = base if base.name == _TAR else base / _TAR
    if not tar.is_file():
        raise FileNotFoundError(
            f"Expected {base} to hold ImageNet's validation images, as class folders, as {_FOLDERS[0]}/ or as {_TAR}, "
            "but found none. They must be downloaded by hand, after agreeing to their terms."
        )
    if verify:
        with tar.open("rb") as file:
            found = hashlib.file_digest(file, "md5").hexdigest()
        if found != _TAR_MD5:
            raise ValueError(
                f"Expected {tar} to have MD5 {_TAR_MD5}, but got {found}. Download it again, or take it as it is "
                "(`verify=False`, --no-verify)."
            )
    folder = tar.parent / "ILSVRC2012_img_val"
    with replaced_folder(folder) as aside:
        try:
            with tarfile.open(tar) as archive:
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if member.isfile() and _FILE.fullmatch(name) and (contents := archive.extractfile(member)):
                        (aside / name).write_bytes(contents.read())
        except (tarfile.TarError, EOFError) as error:
            reason = str(error).partition("\n")[0].rstrip(":")
            raise ValueError(
                f"Expected {tar} to be a whole tar archive, but it is truncated or damaged: {reason}. Get it again."
            ) from error
    return folder
