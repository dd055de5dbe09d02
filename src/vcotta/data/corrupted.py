"""The official CIFAR-10-C and CIFAR-100-C files, and those `write_corrupted` makes, read as they are.

A folder holds one ``NAME.npy`` a corruption, uint8, its severities 1 to 5 one after another, and ``labels.npy`` with
the labels repeated for each. A folder with fewer severities says which in ``meta.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcotta._messages import unknown_name
from vcotta.data.cifar_facts import CIFAR
from vcotta.data.corrupted_tree import CorruptedTree, open_corrupted_tree
from vcotta.data.digits import load_digits

__all__ = ["CorruptedArrays", "open_corrupted", "open_corrupted_arrays"]


@dataclass(frozen=True, eq=False)
class CorruptedArrays:
    """Corrupted images in arrays, memory-mapped; a `CorruptedSource` for a stream.

    Attributes:
        folder: Where they are.
        labels: int64 (n,), for each severity the same.
        class_names: What each label stands for.
        name: Name for manifests.
        severities: Those the files hold, in their order.
    """

    folder: Path
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)

    def __len__(self) -> int:
        return len(self.labels)

    def corrupted(self, name: str, severity: int) -> NDArray[np.uint8]:
        """Return the images of one corruption at one severity, (n, height, width, 3), memory-mapped.

        Raises:
            FileNotFoundError: There is no file of that corruption.
            ValueError: It does not hold that severity, or has another shape than it should.
        """
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
        images = _map(path)
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
        name: ``cifar10``, ``cifar100``, ``imagenet`` or ``digits``.
        folder: Folder of CIFAR-10-C or CIFAR-100-C, or what `write_corrupted` made of digits, or root of the ImageNet-C
            tree.
        preprocess: ImageNet-C only; see `open_corrupted_tree`, as for the following.
        legacy: ImageNet-C only.
        subset: ImageNet-C only.
        list_file: ImageNet-C only.

    Raises:
        FileNotFoundError: No such folder, or a file is missing.
        ValueError: The files do not have the official layout.
    """
    if name == "imagenet":
        return open_corrupted_tree(folder, preprocess=preprocess, legacy=legacy, subset=subset, list_file=list_file)
    if name not in (*CIFAR, "digits"):
        raise unknown_name("data set of the corrupted files", name, (*CIFAR, "imagenet", "digits"))
    if preprocess != "none" or legacy or subset is not None or list_file is not None:
        raise ValueError(
            f"Expected `preprocess`, `legacy`, `subset` and `list_file` for imagenet only, but got one for {name}."
        )
    if name == "digits":
        test = load_digits()[1]
        return open_corrupted_arrays(folder, test.class_names, "digits-c", len(test))
    facts = CIFAR[name]
    count = sum(file.images for file in facts.files["test"].values())
    return open_corrupted_arrays(folder, facts.class_names, f"{name}-c", count)


def open_corrupted_arrays(
    folder: str | os.PathLike[str], class_names: Sequence[str], name: str, images: int
) -> CorruptedArrays:
    """Open a folder of corrupted arrays.

    Args:
        folder: The folder.
        class_names: What each label stands for.
        name: Name for manifests.
        images: How many images each severity has, unless ``meta.json`` says otherwise.
    """
    place = Path(folder).expanduser()
    path = place / "labels.npy"
    if not path.is_file():
        came = "there is no labels.npy in it" if place.is_dir() else "there is no such folder"
        raise FileNotFoundError(
            f"Expected {place} to be a folder with NAME.npy for each corruption and labels.npy, but {came}."
        )
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    if (place / "meta.json").is_file():
        severities, images = _read_meta(place / "meta.json")
    stored = _map(path)
    rows = images * len(severities)
    if stored.shape != (rows,) or stored.dtype.kind not in "iu":
        raise ValueError(
            f"Expected {path} to hold {rows} labels, {images} for each of {len(severities)} severities, but got "
            f"{stored.dtype} of shape {stored.shape}. Get the whole file."
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
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        severities, images = tuple(int(severity) for severity in meta["severities"]), int(meta["data"]["images"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Expected {path} to tell severities and images, but got {error!r}. Remove it.") from error
    return severities, images


def _map(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"Expected {path} to be a whole array, but got: {error}. Get it again.") from error
    return array
