"""Checkpoints, from which a killed run is resumed.

Until a run is finished its folder holds the newest two, ``checkpoints/N.safetensors`` after N batches. Each has the
state of the adapter, the length and SHA-256 of the run's files at that moment, and the run's identity, so that a
checkpoint of another run is not used.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vcotta._util.errors import differences
from vcotta._util.files import sync_folder
from vcotta._util.tensorfile import read_state, write_state
from vcotta._util.warn import warn
from vcotta.methods import Adapter
from vcotta.methods.state import adapter_state
from vcotta.runs.spec import without_paths

__all__ = [
    "Mark",
    "Place",
    "has_checkpoints",
    "identity",
    "newest_checkpoint",
    "remove_checkpoints",
    "restore",
    "save_checkpoint",
]

CHECKPOINTS = "checkpoints"
GENERATIONS = 2
CIRCUMSTANCES = ("versions", "platform", "hardware", "distributed", "command", "resumed")
"""Entries of a manifest on where and how a run was run, which do not belong to its identity."""
KIND = "vcotta-run-1"

Mark = tuple[int, str]
"""Length of a file in bytes at some moment, and the SHA-256 of these bytes."""


@dataclass(frozen=True)
class Place:
    """Where a run resumes.

    Attributes:
        batches: Number of batches that were done.
        lengths: Number of bytes of each file of the run that belong to them.
    """

    batches: int
    lengths: dict[str, int]


def identity(manifest: Mapping[str, object]) -> dict[str, Any]:
    """Return what identifies a run: its manifest without the circumstances and the paths of files.

    Example:
        >>> identity({"method": "bn", "seed": 0, "platform": "Linux", "resumed": []})
        {'method': 'bn', 'seed': 0}
    """
    facts = {key: value for key, value in manifest.items() if key not in CIRCUMSTANCES}
    spec = facts.get("spec")
    return {**facts, "spec": without_paths(spec)} if isinstance(spec, Mapping) else facts


def save_checkpoint(
    folder: Path,
    manifest: Mapping[str, object],
    adapter: Adapter | Mapping[str, Any],
    batches: int,
    files: dict[str, Mark],
) -> None:
    """Write a checkpoint after ``batches`` batches into a run's folder, then remove all but the newest two.

    ``adapter`` is an adapter, or a state of one.

    Raises:
        OSError: It cannot be written; the earlier ones are kept.
    """
    place = folder / CHECKPOINTS
    if not place.is_dir():
        place.mkdir()
        sync_folder(folder)
    state = adapter if isinstance(adapter, Mapping) else adapter_state(adapter, clone=False)
    content = {"run": identity(manifest), "batches": batches, "files": files, "adapter": state}
    write_state(place / f"{batches}.safetensors", KIND, content)
    for path in _newest_first(place)[GENERATIONS:]:
        path.unlink()


def restore(folder: Path, manifest: Mapping[str, object], adapter: Adapter) -> Place | None:
    """Put the adapter into the state of the newest good checkpoint.

    Newer ones that are damaged or of another run get a warning and the name ``N.refused``.

    Returns:
        Where the run resumes, or None if no checkpoint is good; then none is renamed.

    Raises:
        OSError: A checkpoint cannot be read; it may be good.
        torch.OutOfMemoryError: A checkpoint does not fit into memory; it may be good.
    """
    for aside in (folder / CHECKPOINTS).glob(".*.safetensors"):  # incomplete files of killed processes
        aside.unlink()
    refused: list[Path] = []
    for path in _newest_first(folder / CHECKPOINTS):
        try:
            place = _restore(path, manifest, adapter)
        except ValueError as reason:
            warn(f"The checkpoint {path} is not used. {reason}")
            refused.append(path)
            continue
        for other in refused:  # their numbers may be higher than those of the checkpoints to come
            other.replace(other.with_suffix(".refused"))
        return place
    return None


def has_checkpoints(folder: Path) -> bool:
    """Return whether a run's folder has checkpoints, good or not."""
    return bool(_newest_first(folder / CHECKPOINTS))


def newest_checkpoint(folder: Path) -> int:
    """Return the number of the newest checkpoint of a run, good or not; 0 if there is none."""
    return max((int(path.stem) for path in _newest_first(folder / CHECKPOINTS)), default=0)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run, incomplete ones too."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _restore(path: Path, manifest: Mapping[str, object], adapter: Adapter) -> Place:
    content = read_state(path, KIND)
    try:
        run, batches, state = content["run"], int(content["batches"]), content["adapter"]
        marks = {name: (int(length), str(digest)) for name, (length, digest) in content["files"].items()}
        odd = differences(identity(manifest), run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"Expected the checkpoint of a run in {path}, but it cannot be read: {error}") from error
    if odd:
        raise ValueError(f"It belongs to another run: {', '.join(odd)}.")
    for name, mark in marks.items():
        _check_file(path.parent.parent / name, mark)
    before = adapter.state_dict()
    try:
        adapter.load_state_dict(state)
    except torch.OutOfMemoryError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError) as error:
        adapter.load_state_dict(before)  # a part of the state may have been loaded before the error
        raise ValueError(f"It does not fit the adapter: {error}") from error
    return Place(batches, {name: length for name, (length, _) in marks.items()})


def _check_file(path: Path, mark: Mark) -> None:
    length, digest = mark
    kept = b""
    if path.exists():
        with path.open("rb") as file:
            kept = file.read(length)
    if len(kept) < length or hashlib.sha256(kept).hexdigest() != digest:
        raise ValueError(f"Expected {path} to begin with the {length} bytes written before it, but it does not.")


def _newest_first(place: Path) -> list[Path]:
    """The complete checkpoints; incomplete ones have other names."""
    found = [path for path in place.glob("*.safetensors") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem), reverse=True)
