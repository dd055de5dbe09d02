"""Data sets by name, as the command line takes them, and the digits, which need no download."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vcotta._util.warn import warn
from vcotta.data.domains import DomainData
from vcotta.data.folders import class_folders
from vcotta.data.image_files import ImageFiles
from vcotta.data.prepared import load_prepared
from vcotta.data.types import ImageData, ImageSource

__all__ = ["folder_and_size", "load_digits", "load_domains", "load_images"]


def load_images(name: str, split: str = "test") -> ImageSource:
    """Return a split (``train`` or ``test``) of ``digits``, a prepared data set, or ``folder:DIR[@SIZE]``.

    Example:
        >>> len(load_images("digits", "train"))
        1000
    """
    if name == "digits":
        return load_digits()[("train", "test").index(split)]
    if name.startswith("folder:"):
        return _folder(*folder_and_size(name))
    return load_prepared(name, split)


def folder_and_size(name: str, usual: int = 224) -> tuple[Path, int]:
    """Return the folder and image size of ``folder:DIR`` or ``folder:DIR@SIZE``.

    Example:
        >>> folder_and_size("folder:pets@32")[1], folder_and_size("folder:me@home")[1]
        (32, 224)
    """
    text = name.removeprefix("folder:")
    folder, _, size = text.rpartition("@")
    if folder and size.isdecimal() and not Path(text).expanduser().is_dir():
        if int(size) < 1:
            raise ValueError(f"Expected a size of at least 1 pixel after the @, but got {name!r}.")
        return Path(folder).expanduser(), int(size)
    return Path(text).expanduser(), usual


def load_domains(name: str, domains: Sequence[str]) -> DomainData:
    """Return the images of some sub-folders of ``folder:DIR[@SIZE]``, each with one folder a class.

    Raises:
        FileNotFoundError: A domain has no folder.
        ValueError: The domains have different classes.
    """
    folder, size = folder_and_size(name)
    for domain in domains:
        if not (folder / domain).is_dir():
            there = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
            found = f"it has {', '.join(there[:10])}" if there else "it has no folders"
            raise FileNotFoundError(f"Expected a folder {domain} in {folder}, but {found}. Check `domains`.")
    return DomainData({one: _folder(folder / one, size) for one in domains}, f"folder:{folder.resolve().name}")


def _folder(folder: Path, size: int) -> ImageFiles:
    """Open a folder, with a warning if its images are enlarged."""
    files = class_folders(folder, size)
    width, height = files.images.first_size()
    if min(width, height) < size:
        warn(
            f"The images of {folder} are enlarged to {size} x {size} pixels; the first is {width} x {height}. "
            f"For another size write folder:{folder}@{min(width, height)}."
        )
    return files


def load_digits() -> tuple[ImageData, ImageData]:
    """Return the train (first 1 000) and test (other 797) images of scikit-learn's handwritten digits.

    The 8x8 images are enlarged smoothly to 32x32 and repeated over three channels, the format of CIFAR.

    Example:
        >>> train, test = load_digits()
        >>> train.images.shape, len(test)
        ((1000, 32, 32, 3), 797)
    """
    images, labels = _all_digits()
    images, labels = images.copy(), labels.copy()
    names = tuple("0123456789")
    return (
        ImageData(images[:1000], labels[:1000], names, "digits-train"),
        ImageData(images[1000:], labels[1000:], names, "digits-test"),
    )


@functools.cache
def _all_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn import datasets  # slow to import, and needed only here

    source = datasets.load_digits()
    return np.stack([_enlarge(image) for image in source.images]), source.target.astype(np.int64)


def _enlarge(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    grey = Image.fromarray(np.rint(image * (255 / 16)).astype(np.uint8))
    large = np.asarray(grey.resize((32, 32), Image.Resampling.BICUBIC))
    return np.repeat(large[:, :, None], 3, axis=2)
