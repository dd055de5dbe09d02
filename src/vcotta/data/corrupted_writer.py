"""Writing corrupted images in the official layout of CIFAR-10-C."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from vcotta._messages import unknown_name
from vcotta.corruptions import EXTRA, STANDARD, corrupt, frost_source, nearest_table
from vcotta.data import ImageSource
from vcotta.files import atomic_path, sha256, write_json

__all__ = ["write_corrupted"]

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
    """Write ``NAME.npy`` for each corruption, its severities one after another, ``labels.npy`` and ``meta.json``.

    The pixels are those of a `ContinualStream` with the same seed. With all five severities this is the layout of
    CIFAR-10-C; with fewer, ``meta.json`` tells which. A file appears whole or not at all, and a second call with the
    same arguments goes on with the files that are missing.

    Args:
        data: Clean images.
        out: Folder to write.
        severities: Which, in the order of the rows.
        seed: Seed of the corruptions.
        corruptions: Which.
        device: Where to compute; None for the CPU.
        progress: Called with the images done and to do, over all corruptions and severities.

    Returns:
        The folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written.
        ValueError: A wrong name or severity, or the folder holds something made with other settings.
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
                for written in _write(aside, data, name, levels, seed, device):
                    count += written
                    if progress is not None:
                        progress(count, each * len(corruptions))
                digest = sha256(aside)
            done[name] = digest
            write_json(folder / "meta.json", meta)
    except OSError as error:
        raise OSError(
            error.errno,
            f"Could not write {folder}: {error.strerror or error}. No file there is incomplete; free some space, and "
            "the same command goes on from there",
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
    """Return the files of an earlier call with the same settings, and their hashes."""
    path = folder / "meta.json"
    if not path.is_file():
        if (folder / "labels.npy").exists():
            raise ValueError(
                f"Expected {folder} to be empty or made by this function, but it holds other files. Choose another."
            )
        return {}
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        files = dict(meta.pop("files"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected {path} to be made by this function, but got {error!r}. Choose another.") from error
    if meta != settings:
        which = next(key for key in settings if meta.get(key) != settings[key])
        raise ValueError(
            f"Expected {folder} to be empty or made with the same settings, but its `{which}` is {meta.get(which)!r}, "
            f"not {settings[which]!r}. Choose another folder."
        )
    return {name: digest for name, digest in files.items() if (folder / f"{name}.npy").is_file()}


def _write(
    path: Path, data: ImageSource, name: str, severities: list[int], seed: int, device: str | torch.device | None
) -> Iterator[int]:
    """Write one array piece by piece, and yield the number of images of each; a full disk is then a plain error."""
    count, height, width, channels = data.images.shape
    size = max(1, _CHUNK // (height * width * channels))
    header = {"descr": "|u1", "fortran_order": False, "shape": (count * len(severities), height, width, channels)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for severity in severities:
            for first in range(0, count, size):
                images = data.images[first : first + size]
                file.write(corrupt(images, name, severity, seed, offset=first, device=device).data)
                yield len(images)
