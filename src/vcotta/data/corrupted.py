"""Stored corrupted images: reads CIFAR-10-C, CIFAR-100-C, ImageNet-C and Tiny-ImageNet-C, writes CIFAR-10-C's layout.

A folder of arrays holds one uint8 ``NAME.npy`` for each corruption, its severities 1 to 5 one after another, and
``labels.npy`` with the labels repeated for each severity. ``meta.json``, if there is one, lists the severities. The
tree of ImageNet-C and Tiny-ImageNet-C is ``CORRUPTION/SEVERITY/WNID/IMAGE.JPEG``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from vcotta._util.archives import map_array
from vcotta._util.errors import unknown_name
from vcotta._util.files import atomic_path, read_json, sha256, write_json
from vcotta.corruptions import EXTRA, STANDARD, corrupt, frost_source, nearest_table
from vcotta.data import tiny_imagenet
from vcotta.data.cifar import CIFAR
from vcotta.data.image_files import FilePixels
from vcotta.data.imagenet import choose, list_wnid_folders
from vcotta.data.named import load_digits
from vcotta.data.prepared import load_prepared
from vcotta.data.types import ImageSource

__all__ = ["CorruptedArrays", "CorruptedTree", "open_corrupted", "open_corrupted_arrays", "write_corrupted"]

TREES: Final = ("imagenet", "tiny-imagenet")
_GROUPS: Final = (".", "noise", "blur", "weather", "digital", "extra")  # folders named after the published archives


@dataclass(frozen=True, eq=False)
class CorruptedArrays:
    """Corrupted images in memory-mapped arrays, a `CorruptedSource`; ``severities`` in the order of the rows."""

    folder: Path
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)

    def __len__(self) -> int:
        return len(self.labels)

    def corrupted(self, name: str, severity: int) -> NDArray[np.uint8]:
        """Return the images of one corruption at one severity, (n, height, width, 3), memory-mapped."""
        path = self.folder / f"{name}.npy"
        if not path.is_file():
            raise FileNotFoundError(
                f"Expected {path} for the corruption {name}, but there is no such file. Add it, or let the stream "
                "corrupt clean images itself."
            )
        if severity not in self.severities:
            raise ValueError(
                f"Expected severity {severity} of {name} in {self.folder}, but it holds only severities "
                f"{', '.join(map(str, self.severities))}. Add it, or let the stream corrupt clean images itself."
            )
        images = map_array(path)
        rows = len(self) * len(self.severities)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or len(images) != rows:
            raise ValueError(
                f"Expected {path} to be uint8 of shape ({rows}, height, width, 3), {len(self)} images for each of "
                f"{len(self.severities)} severities, but got {images.dtype} of shape {images.shape}. Get it again."
            )
        first = self.severities.index(severity) * len(self)
        part: NDArray[np.uint8] = images[first : first + len(self)]
        return part

    def corrupted_sha256(self, domains: Sequence[tuple[str, int]]) -> str:
        """Return the SHA-256 of the pixels of these (corruption, severity), one after another."""
        digest = hashlib.sha256()
        for name, severity in domains:
            digest.update(self.corrupted(name, severity).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class CorruptedTree:
    """Corrupted images in files, decoded when sliced, a `CorruptedSource`.

    Attributes:
        files: Paths within one corruption and severity, the same in all of them.
        preprocess: ``"none"``, or ``"res256crop224"`` with ``legacy``.
        size: Side of the images, in pixels.
    """

    root: Path
    files: tuple[str, ...] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str
    preprocess: str = "none"
    legacy: bool = False
    size: int = 224

    def __len__(self) -> int:
        return len(self.files)

    def corrupted(self, name: str, severity: int) -> FilePixels:
        """Return the images of one corruption at one severity, (n, size, size, 3), decoded when sliced."""
        folder = _find(self.root, name)
        if folder is None:
            raise FileNotFoundError(
                f"Expected a folder {name} in {self.root}, but there is none. Unpack it there, or let the stream "
                "corrupt clean images itself."
            )
        if not (folder / str(severity)).is_dir():
            raise FileNotFoundError(
                f"Expected severity {severity} of {name} in {folder / str(severity)}, but there is no such folder."
            )
        return FilePixels(folder / str(severity), self.files, self.size, self.preprocess, self.legacy)

    def corrupted_sha256(self, domains: Sequence[tuple[str, int]]) -> str:
        """Return the SHA-256 of paths, sizes in bytes and preprocessing, without decoding pixels."""
        digest = hashlib.sha256(f"{self.preprocess}\n".encode())
        for name, severity in domains:
            root = self.corrupted(name, severity).root
            for file in self.files:
                digest.update(f"{name}/{severity}/{file}\t{(root / file).stat().st_size}\n".encode())
        return digest.hexdigest()


def open_corrupted(
    name: str,
    folder: str | os.PathLike[str],
    *,
    preprocess: str = "none",
    legacy: bool = False,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
) -> CorruptedArrays | CorruptedTree:
    """Open a benchmark's corrupted images for a stream.

    Args:
        name: ``cifar10``, ``cifar100``, ``imagenet``, ``tiny-imagenet`` or ``digits``.
        folder: Folder of CIFAR-10-C or CIFAR-100-C, of arrays from `write_corrupted`, or of ImageNet-C or
            Tiny-ImageNet-C: with the folders of the corruptions, or with their groups noise, blur, weather and digital.
            Images of these two are sorted by file name, an order in which the classes are mixed.
        preprocess: ImageNet-C only, as are the next three: ``"none"``, as the images are 224 x 224 already;
            ``"res256crop224"`` together with ``legacy`` reproduces code that resizes them once more.
        legacy: Allows that second resize.
        subset: See `open_imagenet`.
        list_file: See `open_imagenet`.

    Raises:
        FileNotFoundError: No such folder, or a file is missing.
        ValueError: The files do not have the official layout, or the images would be resized twice.
    """
    base = Path(folder).expanduser()
    arrays = name not in TREES or (base / "labels.npy").is_file()
    if name == "imagenet" and not arrays:
        return _open_tree(base, preprocess, legacy, subset, list_file)
    if name not in (*CIFAR, *TREES, "digits"):
        raise unknown_name("data set of the corrupted files", name, (*CIFAR, *TREES, "digits"))
    if preprocess != "none" or legacy or subset is not None or list_file is not None:
        raise ValueError(
            "Expected `preprocess`, `legacy`, `subset` and `list_file` for imagenet only, in image files, but got one "
            f"for {name}{' in arrays' * (name == 'imagenet')}."
        )
    if not arrays:
        wnids, files, labels = list_wnid_folders(_first_folder(base), tiny_imagenet.CLASSES)
        return CorruptedTree(base, tuple(files), np.array(labels, np.int64), wnids, f"{name}-c", size=64)
    if name in CIFAR:
        count = sum(file.images for file in CIFAR[name].files["test"].values())
        return open_corrupted_arrays(base, CIFAR[name].class_names, f"{name}-c", count)
    clean = load_digits()[1] if name == "digits" else load_prepared(name)
    return open_corrupted_arrays(base, clean.class_names, f"{name}-c", len(clean))


def open_corrupted_arrays(
    folder: str | os.PathLike[str], class_names: Sequence[str], name: str, images: int
) -> CorruptedArrays:
    """Open a folder of arrays with ``images`` images of each severity, unless ``meta.json`` gives another number."""
    place = Path(folder).expanduser()
    path = place / "labels.npy"
    if not path.is_file():
        found = "there is no labels.npy in it" if place.is_dir() else "there is no such folder"
        raise FileNotFoundError(
            f"Expected {place} to be a folder with NAME.npy for each corruption and labels.npy, but {found}."
        )
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    if (place / "meta.json").is_file():
        severities, images = _read_meta(place / "meta.json")
    stored = map_array(path)
    rows = images * len(severities)
    if stored.shape != (rows,) or stored.dtype.kind not in "iu":
        raise ValueError(
            f"Expected {path} to hold {rows} labels, {images} for each of {len(severities)} severities, but got "
            f"{stored.dtype} of shape {stored.shape}. Get the complete file."
        )
    tiles = stored.reshape(len(severities), images)
    if not (tiles == tiles[0]).all():
        raise ValueError(f"Expected the labels in {path} to repeat for each severity, but they do not.")
    labels = tiles[0].astype(np.int64)
    if not 0 <= labels.min() <= labels.max() < len(class_names):
        raise ValueError(
            f"Expected the labels in {path} to be 0 to {len(class_names) - 1}, but got {labels.min()} to "
            f"{labels.max()}. Is it another data set?"
        )
    return CorruptedArrays(place, labels, tuple(class_names), name, severities)


def _read_meta(path: Path) -> tuple[tuple[int, ...], int]:
    meta = read_json(path)
    try:
        severities, images = tuple(int(severity) for severity in meta["severities"]), int(meta["data"]["images"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Expected {path} to list severities and images, but got {error!r}. Remove it.") from error
    return severities, images


def _open_tree(
    base: Path,
    preprocess: str,
    legacy: bool,
    subset: int | None,
    list_file: str | os.PathLike[str] | None,
) -> CorruptedTree:
    first = _first_folder(base)
    wnids, files, labels = list_wnid_folders(first)
    chosen, chosen_labels = choose(files, labels, len(wnids), subset=subset, list_file=list_file)
    FilePixels(first, chosen, 224, preprocess, legacy)[:1]  # a wrong size is an error now, not in the middle of a run
    return CorruptedTree(base, chosen, chosen_labels, wnids, "imagenet-c", preprocess, legacy)


def _first_folder(base: Path) -> Path:
    """Return the class folders of one corruption and severity of a tree."""
    found = (_find(base, name) for name in (*STANDARD, *EXTRA))
    first = next((path for folder in found if folder for path in sorted(folder.iterdir()) if path.is_dir()), None)
    if first is None:
        raise FileNotFoundError(
            f"Expected {base} to hold images as CORRUPTION/SEVERITY/CLASS/IMAGE, but it holds no corruption."
        )
    return first


def _find(base: Path, name: str) -> Path | None:
    return next((base / group / name for group in _GROUPS if (base / group / name).is_dir()), None)


_CHUNK: Final = 1 << 25  # bytes corrupted and written at a time


def write_corrupted(
    data: ImageSource,
    out: str | os.PathLike[str],
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    seed: int = 0,
    *,
    corruptions: Sequence[str] = STANDARD,
    device: str | torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write corrupted images in the layout of CIFAR-10-C, and ``meta.json``.

    The pixels are those of a stream with the same seed. A file appears complete or not at all, and a second
    call with the same arguments writes the files that are missing.

    Args:
        data: Clean images.
        out: Folder to write, which is returned.
        severities: Severities, in the order of the rows.
        seed: Seed of the corruptions.
        corruptions: Names of the corruptions.
        device: Where to compute; None for the CPU.
        progress: Called with the number of images done and in all, over all corruptions and severities.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
        ValueError: A name or severity is unknown, or the folder holds files of other settings.
    """
    for name in corruptions:
        if name not in (*STANDARD, *EXTRA):
            raise unknown_name("corruptions", name, (*STANDARD, *EXTRA))
    levels = list(severities)
    if not levels or len(set(levels)) != len(levels) or not all(severity in (1, 2, 3, 4, 5) for severity in levels):
        raise ValueError(f"Expected `severities` to be different numbers from 1 to 5, but got {levels}.")
    folder = Path(out).expanduser()
    meta = _settings(data, levels, seed)
    meta["files"] = done = _files_done(folder, meta)
    each, count = len(levels) * len(data), 0
    try:
        with atomic_path(folder / "labels.npy") as aside, aside.open("wb") as file:
            np.save(file, np.tile(data.labels, len(levels)), allow_pickle=False)
        write_json(folder / "meta.json", meta)
        for place, name in enumerate(corruptions):
            count = place * each
            if name in done:
                continue
            with atomic_path(folder / f"{name}.npy") as aside:
                for written in _write(aside, data, name, meta, device):
                    count += written
                    if progress is not None:
                        progress(count, each * len(corruptions))
                digest = sha256(aside)
            done[name] = digest
            write_json(folder / "meta.json", meta)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Could not write {folder}: {error.strerror or error}. The files there are complete: free some space and "
            "repeat the command, which writes the missing ones",
        ) from error
    return folder


def _settings(data: ImageSource, severities: list[int], seed: int) -> dict[str, Any]:
    return {
        "severities": severities,
        "seed": seed,
        "severity_table": nearest_table(*data.images.shape[1:3]),
        "frost": frost_source(),
        "data": {"name": data.name, "images": len(data), "sha256": data.sha256()},
    }


def _files_done(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Return the files of an earlier call with the same settings, with their hashes."""
    path = folder / "meta.json"
    if not path.is_file():
        if (folder / "labels.npy").exists():
            raise ValueError(
                f"Expected {folder} to be empty or of `write_corrupted`, but it holds other files. Choose another."
            )
        return {}
    meta = read_json(path)
    try:
        files = dict(meta.pop("files"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected {path} of `write_corrupted`, but got {error!r}. Choose another folder.") from error
    if meta != settings:
        which = next(key for key in settings if meta.get(key) != settings[key])
        raise ValueError(
            f"Expected {folder} to be empty or to have the same settings, but its `{which}` is {meta.get(which)!r}, "
            f"not {settings[which]!r}. Choose another folder."
        )
    return {name: digest for name, digest in files.items() if (folder / f"{name}.npy").is_file()}


def _write(
    path: Path,
    data: ImageSource,
    name: str,
    settings: dict[str, Any],
    device: str | torch.device | None,
) -> Iterator[int]:
    """Write one array in pieces, and yield the number of images of each; a full disk raises an `OSError`."""
    severities, seed, textures = (settings[key] for key in ("severities", "seed", "frost"))
    count, height, width, channels = data.images.shape
    size = max(1, _CHUNK // (height * width * channels))
    header = {"descr": "|u1", "fortran_order": False, "shape": (count * len(severities), height, width, channels)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for severity in severities:
            for first in range(0, count, size):
                images = data.images[first : first + size]
                made = corrupt(images, name, severity, seed, offset=first, device=device, textures=textures)
                file.write(made.data)
                yield len(images)
