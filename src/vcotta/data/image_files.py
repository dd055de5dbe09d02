"""Labelled images that stay in their files and are decoded, resized and cropped when they are sliced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vcotta._util.errors import unknown_name
from vcotta._util.files import require_file
from vcotta.data.sizes import PREPROCESSES, to_size
from vcotta.data.types import ImageData, check_labels

__all__ = ["FilePixels", "ImageFiles", "image_suffixes", "read_rgb"]

_SEEN_FIRST: Final = 8  # files whose size is read before anything is decoded


def image_suffixes() -> frozenset[str]:
    """Return the endings of image files, in lower case."""
    return frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})


@dataclass(frozen=True)
class FilePixels:
    """Image files that can be sliced like a uint8 array (n, size, size, 3); a few threads decode a slice.

    Attributes:
        root: Folder of the files.
        files: Their paths in it.
        size: Side of the images, in pixels.
        preprocess: One of `PREPROCESSES`.
        legacy: Allows ``"res256crop224"`` for images that already are 224 x 224.
    """

    root: Path
    files: tuple[str, ...] = field(repr=False)
    size: int = 224
    preprocess: str = "res256crop224"
    legacy: bool = False

    def __post_init__(self) -> None:
        if self.preprocess not in PREPROCESSES:
            raise unknown_name("preprocess", self.preprocess, PREPROCESSES)
        if self.size < 1:
            raise ValueError(f"Expected `size` to be at least 1, but got {self.size}.")
        if self.preprocess == "res256crop224":
            if self.size != 224:
                raise ValueError(f'Expected `size` to be 224 with "res256crop224", but got {self.size}. Use "resize".')
            self._refuse_second_resize()

    def _refuse_second_resize(self) -> None:
        # One photograph may happen to have this size; if the first ones all do, they were cropped before.
        first = [] if self.legacy else [_size(self.root / file) for file in self.files[:_SEEN_FIRST]]
        if first and set(first) == {(self.size, self.size)}:
            raise ValueError(
                f"Expected photographs to resize, but the images in {self.root} already are {self.size} x {self.size}: "
                '"res256crop224" would resize them a second time. Use preprocess="none"; to reproduce code that '
                "resizes ImageNet-C twice, add legacy=True."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of images, height, width, channels."""
        return (len(self.files), self.size, self.size, 3)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: slice, /) -> NDArray[np.uint8]:
        chosen = self.files[index]
        result = np.empty((len(chosen), self.size, self.size, 3), np.uint8)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for place, image in enumerate(pool.map(self._read, chosen)):
                result[place] = image
        return result

    def first_size(self) -> tuple[int, int]:
        """Return width and height of the first file, from its header."""
        return _size(self.root / self.files[0])

    def _read(self, file: str) -> NDArray[np.uint8]:
        path = self.root / file
        return np.asarray(to_size(read_rgb(path), self.size, self.preprocess, str(path)))


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Labelled image files with the interface of `ImageData`, decoded when sliced."""

    images: FilePixels
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.images), self.class_names)

    def __len__(self) -> int:
        return len(self.images)

    def read(self) -> ImageData:
        """Decode every file into memory."""
        return ImageData(self.images[:], self.labels, self.class_names, self.name)

    def sha256(self) -> str:
        """Return the SHA-256 of paths, sizes in bytes, labels and preprocessing, without decoding pixels."""
        digest = hashlib.sha256(f"{self.images.size} {self.images.preprocess}\n".encode())
        for file, label in zip(self.images.files, self.labels.tolist(), strict=True):
            digest.update(f"{file}\t{(self.images.root / file).stat().st_size}\t{label}\n".encode())
        return digest.hexdigest()


def read_rgb(path: Path) -> Image.Image:
    """Read an image file as RGB.

    Raises:
        ValueError: It is no image, or has sixteen bits a channel, which Pillow would clip to white.
    """
    with _opened(path) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(
                f"Expected {path} to have eight bits a channel, but its mode is {image.mode}. Convert it first."
            )
        return image.convert("RGB")


def _size(path: Path) -> tuple[int, int]:
    with _opened(path) as image:
        return image.size


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    require_file(path, "an image")
    try:
        with Image.open(path) as image:
            yield image
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected {path} to be an image, but it cannot be read: {error}.") from error
