"""Folders of images: labelled data with one sub-folder a class, and corrupted copies of image files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vcotta._util.archives import map_array
from vcotta._util.files import atomic_path
from vcotta.corruptions import corrupt
from vcotta.data.image_files import FilePixels, ImageFiles, image_suffixes, read_rgb

__all__ = ["class_folders", "corrupt_files", "list_class_folders"]


def class_folders(
    folder: str | os.PathLike[str],
    size: int = 224,
    *,
    class_names: Sequence[str] | None = None,
    preprocess: str = "resize",
    order_seed: int | None = 0,
    name: str | None = None,
) -> ImageFiles:
    """Return the images of a folder whose sub-folders are the classes.

    Args:
        folder: Folder with one sub-folder a class; images may lie deeper within it.
        size: Side of the images, in pixels.
        class_names: The sub-folders in the order of the labels; by default all of them, sorted.
        preprocess: How a file becomes an image of that size, one of `PREPROCESSES`.
        order_seed: Seed of the order of the images; None sorts them by class, which gives batches of one class and
            ruins every method that uses batch statistics.
        name: Name for manifests; by default ``folder:`` and the folder's own name.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A class is missing, unknown or without images.
    """
    root = Path(folder).expanduser()
    names, files, labels = list_class_folders(root, class_names)
    order = np.arange(len(files)) if order_seed is None else np.random.default_rng(order_seed).permutation(len(files))
    pixels = FilePixels(root, tuple(files[place] for place in order), size, preprocess)
    return ImageFiles(pixels, np.array(labels, np.int64)[order], names, name or f"folder:{root.resolve().name}")


def list_class_folders(
    root: Path, class_names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], list[str], list[int]]:
    """Return the class names, and the image files below ``root`` with their labels, sorted by class and path."""
    if not root.is_dir():
        raise FileNotFoundError(
            f"Expected {root} to be a folder of class folders, but there is no folder. Check the path."
        )
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = tuple(found if class_names is None else class_names)
    if not names:
        raise ValueError(f"Expected {root} to have one sub-folder a class, but it has none.")
    if len(set(names)) != len(names):
        raise ValueError(f"Expected `class_names` without repetition, but got {names}.")
    for problem, those in (
        ("is not one of them", sorted(set(found) - set(names))),
        ("is missing", sorted(set(names) - set(found))),
    ):
        if those:
            more = f" (and {len(those) - 1} more)" if len(those) > 1 else ""
            raise ValueError(
                f"Expected the class folders of {root} to be the {len(names)} given classes, but {those[0]!r}{more} "
                f"{problem}. Move it away or correct the class names."
            )
    files, labels = [], []
    for label, name in enumerate(names):
        inside = sorted(path.relative_to(root).as_posix() for path in _images_below(root / name))
        if not inside:
            raise ValueError(f"Expected images in {root / name}, but it has none. Remove the folder or fill it.")
        files += inside
        labels += [label] * len(inside)
    return names, files, labels


def _images_below(folder: Path) -> list[Path]:
    """The image files of a folder and its sub-folders, sorted, without hidden ones."""
    suffixes = image_suffixes()
    found = (path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())
    return sorted(path for path in found if not path.name.startswith("."))


def corrupt_files(source: Path, out: Path, name: str, severity: int, seed: int = 0) -> int:
    """Corrupt an image, every image of a folder (with its subfolders), or an ``.npy`` array, into ``out``.

    Image k, in the order of sorted paths, gets the draws of (seed, name, severity, k), as in `corrupt`. Files keep
    their relative paths and become PNG, which is lossless. Nothing is overwritten; a folder appears complete or not at
    all.

    Args:
        source: Image, folder, or ``.npy`` file with uint8 images (n, height, width, 3).
        out: Image, folder or ``.npy`` file to write.
        name: Corruption.
        severity: 1 to 5.
        seed: Seed of the draws.

    Returns:
        The number of images.

    Raises:
        FileExistsError: ``out`` exists and is no empty folder.
        FileNotFoundError: ``source`` does not exist.
        ValueError: A file is no image, two would become the same PNG, or ``out`` has the wrong ending.
    """
    if not source.exists():
        raise FileNotFoundError(f"No such file or folder: {source}. Check the path.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise FileExistsError(f"Expected {out} not to exist yet, but it does. Move it away or choose another name.")
    wanted = ".npy" if source.suffix == ".npy" else "" if source.is_dir() else ".png"
    if wanted and out.suffix.lower() != wanted:
        raise ValueError(f"Expected `out` to end in {wanted}, the format that is written, but got {out.name!r}.")
    if source.suffix == ".npy":
        result = corrupt(map_array(source), name, severity, seed)
        with atomic_path(out) as aside, aside.open("wb") as file:
            np.save(file, result, allow_pickle=False)
        return len(result)
    if source.is_file():
        _corrupt_file(source, out, name, severity, seed)
        return 1
    targets = _targets(source)
    home = out if out.exists() else out.parent  # an empty folder may be a mount, which cannot be moved
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".corrupting", dir=home) as temporary:
        for place, (target, path) in enumerate(targets.items()):
            _corrupt_file(path, Path(temporary) / target, name, severity, seed, place)
        out.mkdir(exist_ok=True)
        for made in Path(temporary).iterdir():
            made.rename(out / made.name)
    return len(targets)


def _corrupt_file(path: Path, target: Path, name: str, severity: int, seed: int, place: int = 0) -> None:
    image = corrupt(np.asarray(read_rgb(path))[None], name, severity, seed, offset=place)[0]
    with atomic_path(target) as aside:
        Image.fromarray(image).save(aside, format="PNG")


def _targets(source: Path) -> dict[Path, Path]:
    """The images of a folder, by the relative path of the PNG that each becomes."""
    found: dict[Path, Path] = {}
    for path in _images_below(source):
        target = path.relative_to(source).with_suffix(".png")
        if other := found.get(target):
            raise ValueError(
                f"Expected images that differ in more than their ending, but {other} and {path} would both become "
                f"{target}. Rename one of them."
            )
        found[target] = path
    if not found:
        endings = ", ".join(sorted(image_suffixes()))
        raise ValueError(f"Expected images in {source}, but it has none that end in {endings}.")
    return found
