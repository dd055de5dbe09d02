"""Prepared data: plain arrays in the cache folder, memory-mapped, so that loading is instant and shared.

A prepared data set is a folder ``data/NAME`` of the cache: ``SPLIT_images.npy``, ``SPLIT_labels.npy`` and
``meta.json`` with where the data came from, the SHA-256 of the pixels and labels, and the licence. Images too many to
decode beforehand stay in their files: ``SPLIT_files.tsv`` then lists them with their labels.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vcotta._messages import unknown_name
from vcotta.data import ImageData
from vcotta.data.atomic_folder import replaced_folder
from vcotta.data.cifar_facts import CIFAR
from vcotta.data.image_files import ImageFiles
from vcotta.data.prepared_files import read_listed
from vcotta.files import cache_dir

__all__ = ["FORMAT", "Available", "available", "load", "load_source", "prepared_dir", "write_prepared"]

FORMAT: Final = 1
"""Written into ``meta.json`` as ``format``."""


class Available(NamedTuple):
    """One row of what is prepared.

    Attributes:
        name: Name of the data set.
        where: Its folder.
        images: Number of images of each split.
        state: ``right`` (the stored hash is that of the bytes), ``damaged``, or ``unchecked``.
        official: Whether the data are the published ones, byte for byte and in their order; None if nobody can tell.
        note: What the user should know, or the empty text.
    """

    name: str
    where: Path
    images: dict[str, int]
    state: str
    official: bool | None
    note: str


def prepared_dir(name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a prepared data set, whether or not it is there."""
    return (cache_dir() if cache is None else Path(cache).expanduser()) / "data" / name


def write_prepared(
    folder: Path, splits: dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]], meta: dict[str, Any]
) -> Path:
    """Write a prepared data set; it appears under its name whole or not at all.

    Args:
        folder: Where; an older one there is replaced.
        splits: Images (n, height, width, channels) and labels (n,) of each split.
        meta: ``format``, ``name``, ``class_names``, ``source``, ``licence``, ``official`` and ``note``.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
    """
    told = {
        split: {
            "images": len(images),
            "image_shape": list(images.shape[1:]),
            "sha256": _digest(images),
            "labels_sha256": _digest(labels),
        }
        for split, (images, labels) in splits.items()
    }
    with replaced_folder(folder) as aside:
        for split, (images, labels) in splits.items():
            _save(aside / f"{split}_images.npy", images)
            _save(aside / f"{split}_labels.npy", labels)
        text = json.dumps({**meta, "kind": "arrays", "splits": told}, indent=2)
        (aside / "meta.json").write_text(text + "\n", encoding="utf-8")
    return folder


def load(name: str, split: str = "test", *, cache: str | os.PathLike[str] | None = None) -> ImageData:
    """Return prepared arrays, memory-mapped: nothing is copied, and processes share the pages.

    Args:
        name: For example ``cifar10``.
        split: ``train`` or ``test``.
        cache: Cache folder; by default the package's.

    Raises:
        FileNotFoundError: It has not been prepared.
        ValueError: The prepared files are damaged, there is no such split, or the images are in files.
    """
    data = load_source(name, split, cache=cache)
    if isinstance(data, ImageFiles):
        raise ValueError(f"Expected {name} to be prepared as arrays, but its images are in files. Use `load_source`.")
    return data


def load_source(
    name: str, split: str = "test", *, cache: str | os.PathLike[str] | None = None
) -> ImageData | ImageFiles:
    """Return prepared data, as arrays or as files, for a stream; see `load`."""
    folder = prepared_dir(name, cache)
    meta = _read_meta(folder)
    if split not in meta["splits"]:
        raise unknown_name("split", split, meta["splits"])
    if meta["kind"] == "files":
        return read_listed(folder, meta, split)
    images, labels = (_map(folder / f"{split}_{kind}.npy") for kind in ("images", "labels"))
    told = meta["splits"][split]
    if images.shape != (told["images"], *told["image_shape"]) or len(labels) != told["images"]:
        raise ValueError(
            f"Expected {folder} to hold {told['images']} images of {told['image_shape']}, but got {images.shape} and "
            f"{len(labels)} labels. Prepare {name} again."
        )
    return ImageData(images, labels, tuple(meta["class_names"]), f"{name}-{split}")


def available(*, cache: str | os.PathLike[str] | None = None, check: bool = True) -> list[Available]:
    """Return what is prepared, sorted by name.

    Args:
        cache: Cache folder; by default the package's.
        check: Read every byte and compare its hash (of images in files: their sizes); else the state is ``unchecked``.
    """
    base = prepared_dir("", cache)
    folders = sorted(path for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    rows = []
    for folder in folders:
        if folder.name.startswith("."):  # left by a process that was killed
            continue
        try:
            meta = _read_meta(folder)
            images = {split: int(told["images"]) for split, told in meta["splits"].items()}
            state = ("right" if _is_whole(folder, meta) else "damaged") if check else "unchecked"
            rows.append(Available(folder.name, folder, images, state, meta["official"], str(meta["note"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            rows.append(Available(folder.name, folder, {}, "damaged", None, str(error)))
    return rows


def _is_whole(folder: Path, meta: dict[str, Any]) -> bool:
    if meta["kind"] == "files":
        return all(
            read_listed(folder, meta, split).sha256() == told["sha256"] for split, told in meta["splits"].items()
        )
    return all(
        _digest(_map(folder / f"{split}_images.npy")) == told["sha256"]
        and _digest(_map(folder / f"{split}_labels.npy")) == told["labels_sha256"]
        for split, told in meta["splits"].items()
    )


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / "meta.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected {folder.name} to be prepared in {folder}, but it is not. Run `vcotta data prepare "
            f"{folder.name} --root DIR`, where DIR holds its official files"
            + (", or with --download in place of --root DIR." if folder.name in CIFAR else ".")
        )
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        if meta["format"] != FORMAT or meta["kind"] not in ("arrays", "files"):
            raise ValueError(f"format {meta['format']} {meta['kind']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Expected {path} to be of format {FORMAT}, but got {error!r}. Prepare it again.") from error
    return dict(meta)


def _map(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, FileNotFoundError) as error:
        raise ValueError(f"Expected {path} to be a whole array, but got: {error}. Prepare it again.") from error
    return array


def _save(path: Path, array: NDArray[Any]) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
