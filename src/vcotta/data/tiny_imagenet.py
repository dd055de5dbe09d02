"""Tiny-ImageNet-200: 200 classes of ImageNet at 64 x 64 pixels, from its official archive or the unpacked folder.

The layout is ``wnids.txt``, ``train/WNID/images/*.JPEG`` and ``val/images/*.JPEG`` with ``val/val_annotations.txt``;
the test images have no labels and are not used.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources.abc import Traversable
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

__all__ = ["ARCHIVE", "FOLDER", "LICENCE", "TinyImageNet", "read_tiny_imagenet"]

FOLDER: Final = "tiny-imagenet-200"
ARCHIVE: Final = f"{FOLDER}.zip"
LICENCE: Final = "Images of ImageNet, for non-commercial research and education only; see image-net.org."
CLASSES: Final = 200
IMAGES: Final = {"train": 100_000, "test": 10_000}
_MD5: Final = "90528d7ca1a48142e341f4ef8d21d0de"  # of the official archive, as Avalanche checks it
_SIZE: Final = 64

Split = tuple[NDArray[np.uint8], NDArray[np.int64]]


class TinyImageNet(NamedTuple):
    """Images (n, 64, 64, 3) and labels of each split, the classes' WordNet ids, and what is known of the origin.

    ``official`` is True for the official archive, None for a folder; ``note`` says what is missing.
    """

    splits: dict[str, Split]
    wnids: tuple[str, ...]
    source: str
    official: bool | None
    note: str


def read_tiny_imagenet(root: str | os.PathLike[str], *, verify: bool = True) -> TinyImageNet:
    """Read the training images, and the validation images as test images.

    Labels are the places of the sorted WordNet ids. The training images come one of each class in turn, so that the
    first ones are of all classes; the validation images are in the order of their list, in which classes are mixed.
    Grey images become RGB.

    Args:
        root: The archive, its unpacked folder, or a folder that holds one of them.
        verify: Require the hash of the archive, or the official number of images of a folder.

    Raises:
        FileNotFoundError: There is neither, or a file is missing.
        ValueError: A file is damaged, or not the official one.
    """
    path = _find(Path(root).expanduser())
    packed = path.is_file()
    official = _check_archive(path, verify) if packed else None
    try:
        base: Traversable = zipfile.Path(path, f"{FOLDER}/") if packed else path
        wnids = tuple(sorted(_text(base / "wnids.txt").split()))
        number = {wnid: place for place, wnid in enumerate(wnids)}
        splits = {"train": _training(base, wnids), "test": _validation(base, number)}
    except zipfile.BadZipFile as error:
        raise ValueError(f"Expected {path} to be a complete zip archive, but it is damaged: {error}.") from error
    counts = {split: len(labels) for split, (_, labels) in splits.items()}
    note = ""
    if len(wnids) != CLASSES or counts != IMAGES:
        found = f"{counts['train']} training and {counts['test']} validation images of {len(wnids)} classes"
        if verify:
            raise ValueError(
                f"Expected {IMAGES['train']} training and {IMAGES['test']} validation images of {CLASSES} classes in "
                f"{path}, but got {found}. Get the complete data set, or accept it as it is (`verify=False`, "
                "--no-verify)."
            )
        note = found
    return TinyImageNet(splits, wnids, f"{'archive' if packed else 'files'}: {path.name}", official, note)


def _find(base: Path) -> Path:
    """Return the archive or the unpacked folder."""
    for path in (base, base / FOLDER):
        if (path / "wnids.txt").is_file():
            return path
    for path in (base, base / ARCHIVE):
        if path.suffix == ".zip" and path.is_file():
            return path
    raise FileNotFoundError(
        f"Expected {ARCHIVE}, or the folder {FOLDER} with wnids.txt, train/ and val/, in {base}, but found none. "
        "Download it by hand, after agreeing to ImageNet's terms."
    )


def _check_archive(path: Path, verify: bool) -> bool:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if verify and found != _MD5:
        raise ValueError(
            f"Expected {path} to have MD5 {_MD5}, but got {found}. Download it again, or accept it as it is "
            "(`verify=False`, --no-verify)."
        )
    return found == _MD5


def _training(base: Traversable, wnids: Sequence[str]) -> Split:
    files = [[(file, label) for file in _images(base / "train" / w / "images")] for label, w in enumerate(wnids)]
    return _read([pair for row in zip_longest(*files) for pair in row if pair is not None])


def _validation(base: Traversable, number: dict[str, int]) -> Split:
    pairs = []
    for line in _text(base / "val" / "val_annotations.txt").splitlines():
        name, wnid = line.split("\t")[:2]
        if wnid not in number:
            raise ValueError(f"Expected the classes of val_annotations.txt to be in wnids.txt, but got {wnid!r}.")
        pairs.append((base / "val" / "images" / name, number[wnid]))
    return _read(pairs)


def _images(folder: Traversable) -> list[Traversable]:
    if not folder.is_dir():
        raise FileNotFoundError(f"Expected the training images of a class in {folder}, but there is no such folder.")
    return sorted((file for file in folder.iterdir() if file.name.endswith(".JPEG")), key=lambda file: file.name)


def _text(file: Traversable) -> str:
    if not file.is_file():
        raise FileNotFoundError(f"Expected {file}, but there is no such file. Unpack the archive again.")
    return file.read_text(encoding="utf-8")


def _read(pairs: Sequence[tuple[Traversable, int]]) -> Split:
    images = np.empty((len(pairs), _SIZE, _SIZE, 3), np.uint8)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for place, image in enumerate(pool.map(_decode, (file for file, _ in pairs))):
            images[place] = image
    return images, np.array([label for _, label in pairs], np.int64)


def _decode(file: Traversable) -> NDArray[np.uint8]:
    if not file.is_file():
        raise FileNotFoundError(f"Expected the image {file}, but there is no such file. Unpack the archive again.")
    try:
        with Image.open(io.BytesIO(file.read_bytes())) as image:
            pixels = np.asarray(image.convert("RGB"))  # about two in a hundred are grey
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected {file} to be an image, but it cannot be read: {error}.") from error
    if pixels.shape != (_SIZE, _SIZE, 3):
        raise ValueError(f"Expected {file} to be {_SIZE} x {_SIZE}, but got {pixels.shape[1]} x {pixels.shape[0]}.")
    return pixels
