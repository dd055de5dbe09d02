"""Prepared data whose images stay in their files: a list of them with their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vcotta.data.atomic_folder import replaced_folder
from vcotta.data.image_files import FilePixels, ImageFiles

__all__ = ["read_listed", "write_listed"]


def write_listed(folder: Path, data: ImageFiles, split: str, meta: dict[str, Any]) -> Path:
    """Write the list of files and ``meta.json``; they appear whole or not at all.

    Args:
        folder: Where; an older one there is replaced.
        data: The files.
        split: Name of the split, of which there is one.
        meta: As of `write_prepared`.
    """
    pixels = data.images
    told = {
        "images": len(data),
        "image_shape": list(pixels.shape[1:]),
        "sha256": data.sha256(),
        "root": str(pixels.root.resolve()),
        "preprocess": pixels.preprocess,
    }
    rows = (f"{label}\t{file}\n" for label, file in zip(data.labels.tolist(), pixels.files, strict=True))
    with replaced_folder(folder) as aside:
        (aside / f"{split}_files.tsv").write_text("".join(rows), encoding="utf-8")
        text = json.dumps({**meta, "kind": "files", "splits": {split: told}}, indent=2)
        (aside / "meta.json").write_text(text + "\n", encoding="utf-8")
    return folder


def read_listed(folder: Path, meta: dict[str, Any], split: str) -> ImageFiles:
    """Return the files of a list written before.

    Raises:
        FileNotFoundError: The images have gone from where they were.
        ValueError: The list is damaged.
    """
    told = meta["splits"][split]
    root = Path(told["root"])
    if not root.is_dir():
        raise FileNotFoundError(
            f"Expected the images of {folder.name} in {root}, where they were when it was prepared, but there is no "
            "such folder. Prepare it again from where they are now."
        )
    try:
        lines = (folder / f"{split}_files.tsv").read_text(encoding="utf-8").splitlines()
        labels, files = zip(*(line.split("\t", 1) for line in lines), strict=True)
        numbers = np.array([int(label) for label in labels], np.int64)
    except (OSError, ValueError) as error:
        raise ValueError(f"Expected {folder} to list its images, but got {error}. Prepare it again.") from error
    pixels = FilePixels(root, tuple(files), told["image_shape"][0], told["preprocess"])
    return ImageFiles(pixels, numbers, tuple(meta["class_names"]), f"{folder.name}-{split}")
