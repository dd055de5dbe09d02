"""Bringing images to the size of a network; imports no torch, so that a process that only decodes starts at once."""

from __future__ import annotations

from typing import Final

from PIL import Image

__all__ = ["PREPROCESSES", "to_size"]

PREPROCESSES: Final = {
    "none": "the files must have the right size already",
    "resize": "shorter side to `size`, centre crop; files of that size stay as they are",
    "res256crop224": "shorter side to 256, centre crop of 224: the usual one for photographs of ImageNet",
}
"""How a file becomes an image of the wanted size."""


def to_size(image: Image.Image, size: int, preprocess: str, name: str) -> Image.Image:
    """Bring an image to its final size by one of `PREPROCESSES`; an error names the image ``name``.

    Example:
        >>> to_size(Image.new("RGB", (40, 20)), 10, "resize", "a.png").size
        (10, 10)
    """
    if image.size == (size, size) and preprocess != "res256crop224":
        return image
    if preprocess == "none":
        raise ValueError(
            f"Expected {name} to be {size} x {size}, as images are not resized, but got {image.width} x "
            f'{image.height}. Use "res256crop224" for photographs.'
        )
    return _fit(image, 256 if preprocess == "res256crop224" else size, size)


def _fit(image: Image.Image, shorter: int, crop: int) -> Image.Image:
    """Resize the shorter side (bilinear, antialiased) and crop the centre, exactly as torchvision does."""
    width, height = image.size
    scaled = (shorter, int(shorter * height / width)) if width <= height else (int(shorter * width / height), shorter)
    image = image.resize(scaled, Image.Resampling.BILINEAR)
    left, top = round((scaled[0] - crop) / 2), round((scaled[1] - crop) / 2)
    return image.crop((left, top, left + crop, top + crop))
