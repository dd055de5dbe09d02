"""Corrupting image files: one image, a folder of them, or an array."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vcotta.corruptions import corrupt
from vcotta.data.image_files import to_rgb
from vcotta.files import atomic_path

__all__ = ["corrupt_files"]

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm"}


def corrupt_files(source: Path, out: Path, name: str, severity: int, seed: int = 0) -> int:
    """Corrupt an image, every image of a folder (with its subfolders), or an ``.npy`` array, into ``out``.

    Image k, in the order of sorted paths, gets the draws of (seed, name, severity, k), as in `corrupt`. Files keep
    their relative paths and become PNG, so that no second loss is added. Nothing that exists is overwritten; a folder
    appears whole or not at all.

    Args:
        source: Image, folder, or ``.npy`` file with uint8 images, (n, height, width, 3).
        out: Image, folder or ``.npy`` file to write.
        name: Corruption.
        severity: 1 to 5.
        seed: Seed of the draws.

    Returns:
        The number of images written.

    Raises:
        FileExistsError: If ``out`` exists, an empty folder excepted.
        FileNotFoundError: If ``source`` does not exist.
        ValueError: If a file is no image, two would become the same PNG, or ``out`` has the wrong ending.
    """
    if not source.exists():
        raise FileNotFoundError(f"Expected {source} to be an image, a folder or an .npy file, but it does not exist.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"Expected {out} not to exist yet, but it does. Move it away or choose another name.")
    wanted = ".npy" if source.suffix == ".npy" else "" if source.is_dir() else ".png"
    if wanted and out.suffix.lower() != wanted:
        raise ValueError(f"Expected `out` to end in {wanted}, which is what will be written, but got {out.name!r}.")
    if source.suffix == ".npy":
        result = corrupt(_read_array(source), name, severity, seed)
        with atomic_path(out) as aside, aside.open("wb") as file:
            np.save(file, result, allow_pickle=False)
        return len(result)
    if source.is_file():
        _corrupt_file(source, out, name, severity, seed)
        return 1
    targets = _targets(source)
    home = out if out.exists() else out.parent  # an empty folder may be one that cannot be moved
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".corrupting", dir=home) as temporary:
        for place, (target, path) in enumerate(targets.items()):
            _corrupt_file(path, Path(temporary) / target, name, severity, seed, place)
        out.mkdir(exist_ok=True)
        for made in Path(temporary).iterdir():
            made.rename(out / made.name)
    return len(targets)


def _corrupt_file(path: Path, target: Path, name: str, severity: int, seed: int, place: int = 0) -> None:
    image = corrupt(_read_image(path)[None], name, severity, seed, offset=place)[0]
    with atomic_path(target) as aside:
        Image.fromarray(image).save(aside, format="PNG")


def _targets(source: Path) -> dict[Path, Path]:
    """The images of a folder by the relative path of what each becomes, in the order of their own paths."""
    found: dict[Path, Path] = {}
    for path in sorted(source.rglob("*")):
        if path.suffix.lower() in _SUFFIXES and path.is_file():
            target = path.relative_to(source).with_suffix(".png")
            if other := found.get(target):
                raise ValueError(
                    f"Expected images that differ in more than their ending, but {other} and {path} would both become "
                    f"{target}. Rename one of them."
                )
            found[target] = path
    if not found:
        raise ValueError(f"Expected images in {source}, but it has none that end in {', '.join(sorted(_SUFFIXES))}.")
    return found


def _read_array(path: Path) -> NDArray[np.uint8]:
    try:
        images: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"Expected {path} to be an array of uint8 images, but it cannot be read: {error}") from error
    return images


def _read_image(path: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            return np.asarray(to_rgb(image, str(path)))
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"Expected {path} to be an image, but it cannot be read: {error}") from error
