"""Labelled images that stay in their files and are decoded, resized and cropped when asked for."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vcotta._messages import unknown_name
from vcotta.data import ImageData, check_labels

__all__ = ["PREPROCESSES", "FilePixels", "ImageFiles", "image_suffixes", "to_rgb", "to_size"]


PREPROCESSES: Final = {
    "none": "the files must have the right size already",
    "resize": "shorter side to `size`, centre crop; files of that size stay as they are",
    "res256crop224": "shorter side to 256, centre crop of 224: the usual one for photographs of ImageNet",
}
"""How a file becomes an image of the wanted size."""

_SEEN_FIRST: Final = 8  # files whose size is looked at before anything is decoded


def image_suffixes() -> frozenset[str]:
    """Return the endings by which an image file is known, in small letters."""
    return frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})


@dataclass(frozen=True)
class FilePixels:
    """Files that can be sliced like an array (n, size, size, 3) of uint8; a slice is decoded by a few threads.

    Attributes:
        root: Folder of the files.
        files: Their paths in it.
        size: Side of the images, in pixels.
        preprocess: One of `PREPROCESSES`.
        legacy: Confirms that images which already have the final size shall be enlarged and cropped once more.
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
        # A photograph may happen to have this size; that the first ones all have it means they were cropped before.
        first = [] if self.legacy else [_size(self.root / file) for file in self.files[:_SEEN_FIRST]]
        if first and set(first) == {(self.size, self.size)}:
            raise ValueError(
                f"Expected photographs to resize, but the images in {self.root} already are {self.size} x {self.size}: "
                '"res256crop224" would resize them a second time. Use preprocess="none"; to repeat the numbers of code '
                "that resizes ImageNet-C twice, confirm it by legacy=True."
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
        """Width and height of the first file, by its header."""
        return _size(self.root / self.files[0])

    def _read(self, file: str) -> NDArray[np.uint8]:
        path = self.root / file
        try:
            with Image.open(path) as opened:
                image = to_rgb(opened, str(path))
        except FileNotFoundError:
            raise FileNotFoundError(f"Expected an image {path}, but there is no such file.") from None
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(f"Expected {path} to be an image, but it cannot be read: {error}") from error
        return np.asarray(to_size(image, self.size, self.preprocess, str(path)))


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Labelled image files with the interface of `ImageData`.

    Attributes:
        images: The files, decoded when sliced.
        labels: int64 array (n,).
        class_names: What each label stands for.
        name: Name of the data set and split, as written into manifests.
    """

    images: FilePixels
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str

    def __post_init__(self) -> None:
        check_labels(self.labels, len(self.images), self.class_names)

    def __len__(self) -> int:
        return len(self.images)

    def read(self) -> ImageData:
        """Decode every file, and return them all in memory."""
        return ImageData(self.images[:], self.labels, self.class_names, self.name)

    def sha256(self) -> str:
        """Return the SHA-256 of paths, sizes in bytes, labels and preprocessing; the pixels are not decoded for it."""
        digest = hashlib.sha256(f"{self.images.size} {self.images.preprocess}\n".encode())
        for file, label in zip(self.images.files, self.labels.tolist(), strict=True):
            digest.update(f"{file}\t{(self.images.root / file).stat().st_size}\t{label}\n".encode())
        return digest.hexdigest()


def to_size(image: Image.Image, size: int, preprocess: str, name: str) -> Image.Image:
    """Bring an image to its final size.

    Args:
        image: The image.
        size: The wanted side, in pixels.
        preprocess: One of `PREPROCESSES`.
        name: What to call the image in an error text.

    Raises:
        ValueError: With ``"none"``, if the image has another size.

    Example:
        >>> to_size(Image.new("RGB", (40, 20)), 10, "resize", "a.png").size
        (10, 10)
    """
    if image.size == (size, size) and preprocess != "res256crop224":
        return image
    if preprocess == "none":
        raise ValueError(
            f"Expected {name} to be {size} x {size}, as images are taken as they are, but "
            f'got {image.width} x {image.height}. Use "res256crop224" for photographs.'
        )
    return _fit(image, 256 if preprocess == "res256crop224" else size, size)


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """An image as RGB, unless Pillow would clip it: of sixteen bits a channel nearly everything would be white.

    Raises:
        ValueError: It has sixteen bits a channel or more.

    Example:
        >>> to_rgb(Image.new("L", (2, 2)), "grey.png").mode
        'RGB'
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"Expected {name} to have eight bits a channel, but its mode is {image.mode}. Convert it first."
        )
    return image.convert("RGB")


def _size(path: Path) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            return image.size
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected {path} to be an image, but it cannot be read: {error}") from error


def _fit(image: Image.Image, shorter: int, crop: int) -> Image.Image:
    """Resize the shorter side (bilinear with antialiasing) and cut out the centre, to the pixel as torchvision does."""
    width, height = image.size
    scaled = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - crop) / 2), round((scaled[1] - crop) / 2)
    return image.crop((left, top, left + crop, top + crop))
