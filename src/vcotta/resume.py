"""Checkpoints of a run: all that a killed run needs to go on as if nothing had happened.

They lie in the folder of the run, ``checkpoints/N.safetensors`` after N batches, the newest two of them, until the run
is finished. Each holds the state of the adapter, the length and SHA-256 that the files of the run had then, and what
the run is, so that a checkpoint of another run is never taken for one of this.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vcotta._messages import differences
from vcotta.files import sync_folder
from vcotta.state_files import read_state, write_state

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = [
    "Mark",
    "Place",
    "has_checkpoints",
    "identity",
    "remove_checkpoints",
    "restore",
    "save_checkpoint",
]

CHECKPOINTS = "checkpoints"
GENERATIONS = 2
CIRCUMSTANCES = ("versions", "platform", "hardware", "distributed", "command", "resumed")
"""What a manifest tells of where and how a run was run: the same run elsewhere is the same run."""
_KIND = "vcotta-run-1"

Mark = tuple[int, str]
"""What a file held at some moment: its length in bytes, and their SHA-256."""


@dataclass(frozen=True)
class Place:
    """Where a run goes on.

    Attributes:
        batches: How many batches were done.
        lengths: How many bytes of the run's files belong to them, by name.
    """

    batches: int
    lengths: dict[str, int]


def identity(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a run this one and no other: its manifest without the circumstances.

    Example:
        >>> identity({"method": "bn", "seed": 0, "platform": "Linux", "resumed": []})
        {'method': 'bn', 'seed': 0}
    """
    return {key: value for key, value in manifest.items() if key not in CIRCUMSTANCES}


def save_checkpoint(
    folder: Path, manifest: dict[str, Any], adapter: Adapter, batches: int, files: dict[str, Mark]
) -> None:
    """Write a checkpoint into a run's folder, then remove all but the newest two.

    Args:
        folder: Folder of the run.
        manifest: The manifest of the run.
        adapter: The adapter, after ``batches`` batches.
        batches: How many batches are done.
        files: What the files of the run hold at this moment, by name.

    Raises:
        OSError: It cannot be written; the earlier ones are still there.
    """
    place = folder / CHECKPOINTS
    if not place.is_dir():
        place.mkdir()
        sync_folder(folder)
    content = {"run": identity(manifest), "batches": batches, "files": files, "adapter": adapter.state_dict()}
    write_state(place / f"{batches}.safetensors", _KIND, content)
    for path in _newest_first(place)[GENERATIONS:]:
        path.unlink()


def restore(folder: Path, manifest: dict[str, Any], adapter: Adapter) -> Place | None:
    """Put the adapter into the state of the newest good checkpoint; each newer one is told and renamed ``N.refused``.

    What is no fault of a checkpoint, a disk that cannot be read or too little memory, is raised: it may be good.

    Args:
        folder: Folder of the run.
        manifest: What is to be resumed.
        adapter: The adapter that is to go on.

    Returns:
        Where the run goes on, or None if no checkpoint is good; then all are left where they are.

    Raises:
        OSError: One cannot be read.
        torch.OutOfMemoryError: There is no room for one.
    """
    for aside in (folder / CHECKPOINTS).glob(".*.safetensors"):  # half written by a process that was killed
        aside.unlink()
    refused: list[Path] = []
    for path in _newest_first(folder / CHECKPOINTS):
        try:
            place = _restore(path, manifest, adapter)
        except ValueError as reason:
            warnings.warn(f"The checkpoint {path} is not used. {reason}", stacklevel=2)
            refused.append(path)
            continue
        for other in refused:  # or it would outlive those to come, as the newest
            other.replace(other.with_suffix(".refused"))
        return place
    return None


def has_checkpoints(folder: Path) -> bool:
    """Whether a state of the run was ever saved in its folder, be it good or not."""
    return bool(_newest_first(folder / CHECKPOINTS))


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run, with what a kill left half written."""
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _restore(path: Path, manifest: dict[str, Any], adapter: Adapter) -> Place:
    content = read_state(path, _KIND)
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
        adapter.load_state_dict(before)  # whatever was loaded before the error, the start network included
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
    """The complete checkpoints: a file that is still written, or was when its process died, has another name."""
    found = [path for path in place.glob("*.safetensors") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem), reverse=True)
