"""The ImageNet-C tree, ``CORRUPTION/SEVERITY/WNID/IMAGE.JPEG``, read as it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vcotta.corruptions import EXTRA, STANDARD
from vcotta.data.image_files import FilePixels
from vcotta.data.imagenet import choose, list_wnid_folders

__all__ = ["CorruptedTree", "open_corrupted_tree"]

_GROUPS: Final = (".", "noise", "blur", "weather", "digital", "extra")  # folders named after the published archives


@dataclass(frozen=True, eq=False)
class CorruptedTree:
    """Corrupted images in files, decoded when sliced; a `CorruptedSource` for a stream.

    Attributes:
        root: Root of the tree.
        files: Paths within one corruption and severity, the same in all of them.
        labels: int64 (n,).
        class_names: WordNet ids, sorted.
        name: Name for manifests.
        preprocess: ``"none"``, or ``"res256crop224"`` with ``legacy``.
        legacy: Confirms the second resize.
    """

    root: Path
    files: tuple[str, ...] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    name: str
    preprocess: str = "none"
    legacy: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def corrupted(self, name: str, severity: int) -> FilePixels:
        """Return the images of one corruption at one severity, (n, 224, 224, 3), decoded when sliced.

        Raises:
            FileNotFoundError: That corruption or severity is not in the tree.
        """
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
        return FilePixels(folder / str(severity), self.files, 224, self.preprocess, self.legacy)

    def corrupted_sha256(self, domains: Sequence[tuple[str, int]]) -> str:
        """Return the SHA-256 of paths, sizes in bytes and preprocessing; the pixels are not decoded for it."""
        digest = hashlib.sha256(f"{self.preprocess}\n".encode())
        for name, severity in domains:
            root = self.corrupted(name, severity).root
            for file in self.files:
                digest.update(f"{name}/{severity}/{file}\t{(root / file).stat().st_size}\n".encode())
        return digest.hexdigest()


def open_corrupted_tree(
    root: str | os.PathLike[str],
    *,
    preprocess: str = "none",
    legacy: bool = False,
    subset: int | None = None,
    list_file: str | os.PathLike[str] | None = None,
) -> CorruptedTree:
    """Open the ImageNet-C tree; images come in the order of their file names, in which the classes are mixed.

    Args:
        root: Folder with the folders of the corruptions, or with the groups noise, blur, weather and digital of them.
        preprocess: ``"none"``, as the images are 224 x 224 already. ``"res256crop224"``, to repeat numbers of code
            that resizes them once more, needs ``legacy`` too.
        legacy: Confirms that second resize.
        subset: Only this many images, the same number of each class; 5000 is five a class. See `open_imagenet`.
        list_file: Text file with one path ``n01440764/ILSVRC2012_val_00000293.JPEG`` a line.

    Raises:
        FileNotFoundError: There is no corruption in the folder.
        ValueError: The classes are not ImageNet's, or the images would be resized twice.
    """
    base = Path(root).expanduser()
    found = (_find(base, name) for name in (*STANDARD, *EXTRA))
    first = next((path for folder in found if folder for path in sorted(folder.iterdir()) if path.is_dir()), None)
    if first is None:
        raise FileNotFoundError(
            f"Expected {base} to hold ImageNet-C, as CORRUPTION/SEVERITY/CLASS/IMAGE, but it holds no corruption."
        )
    wnids, files, labels = list_wnid_folders(first)
    chosen, chosen_labels = choose(files, labels, len(wnids), subset=subset, list_file=list_file)
    FilePixels(first, chosen, 224, preprocess, legacy)[:1]  # a wrong size is refused now, not in the middle of a run
    return CorruptedTree(base, chosen, chosen_labels, wnids, "imagenet-c", preprocess, legacy)


def _find(base: Path, name: str) -> Path | None:
    return next((base / group / name for group in _GROUPS if (base / group / name).is_dir()), None)
