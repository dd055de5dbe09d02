"""Anybody's images: one folder a class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vcotta.data.image_files import FilePixels, ImageFiles, image_suffixes

__all__ = ["class_folders", "list_class_folders"]


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
        order_seed: Seed of the order of the images. Sorted by class, a stream would show one class a batch and ruin
            every method that looks at batches; None keeps that order all the same.
        name: Name for manifests; by default ``folder:`` and the folder's own name.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A class too many, too few, or without images.
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
        raise FileNotFoundError(f"Expected {root} to be a folder with one sub-folder a class, but there is no folder.")
    found = sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    names = tuple(found if class_names is None else class_names)
    if not names:
        raise ValueError(f"Expected {root} to have one sub-folder a class, but it has none.")
    if len(set(names)) != len(names):
        raise ValueError(f"Expected `class_names` to be different from each other, but got {names}.")
    for problem, those in (
        ("is one class folder too many", sorted(set(found) - set(names))),
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
        inside = _images_below(root / name)
        if not inside:
            raise ValueError(f"Expected images in {root / name}, but it has none. Remove the folder or fill it.")
        files += [f"{name}/{file}" for file in inside]
        labels += [label] * len(inside)
    return names, files, labels


def _images_below(folder: Path) -> list[str]:
    suffixes = image_suffixes()
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and not path.name.startswith(".") and path.is_file()
    )
