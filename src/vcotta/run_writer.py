"""The files of a run while it runs: what is written outlives the process, and can be gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from vcotta._messages import differences
from vcotta.files import sync_folder, write_json
from vcotta.resume import (
    CIRCUMSTANCES,
    Mark,
    Place,
    has_checkpoints,
    identity,
    remove_checkpoints,
    restore,
    save_checkpoint,
)
from vcotta.runs import FILES, MANIFEST, RECORDS, SUMMARY, TIMING, Run, check_folder, read_lines, read_manifest

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["RunWriter", "finished_run"]

_NO_STATE = "The run in {} was stopped before it had saved a state:"


def finished_run(folder: Path, manifest: dict[str, Any]) -> Run | None:
    """Return the run of a folder if it is finished, None if it is yet to be resumed or started.

    Raises:
        ValueError: The folder holds another run than the manifest tells of, or a damaged one.
        FileExistsError: The folder holds files of a run, but not what they belong to.
    """
    if not (folder / MANIFEST).exists():
        check_folder(folder)
        return None
    if odd := differences(identity(manifest), identity(read_manifest(folder))):
        raise ValueError(
            f"Expected {folder} to hold the run that is to be resumed, but it holds another: {', '.join(odd)}. Choose "
            "another folder, or overwrite it."
        )
    if not (folder / SUMMARY).exists():
        return None
    remove_checkpoints(folder)  # a process may have died between writing the summary and removing them
    return Run.load(folder)


class RunWriter:
    """Writes the files of a run: `add` every batch, then `finish`.

    Making one starts the run, in place of whatever run is in the folder, or with ``resume`` goes on with that one.

    Args:
        folder: Folder of the run.
        manifest: What is run.
        adapter: What runs; its state is saved, and restored on ``resume``.
        resume: Go on from the newest good checkpoint, or start over if there is none.
        every: Save a checkpoint after so many batches, None for never.
        seconds: But only when so many seconds have passed since the latest one.

    Attributes:
        run: The run as it was when the writer was made, without batches or with those that are not to be run again.
    """

    def __init__(
        self,
        folder: Path,
        manifest: dict[str, Any],
        adapter: Adapter,
        *,
        resume: bool = False,
        every: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        self._folder, self._adapter, self._every, self._seconds = folder, adapter, every, seconds
        _sweep(folder)
        place = self._find_place(manifest) if resume and (folder / MANIFEST).exists() else None
        if place is None:
            _clear(folder)
        else:
            manifest = _resumed(read_manifest(folder), manifest, place.batches)
        write_json(folder / MANIFEST, manifest)
        lengths = {} if place is None else place.lengths
        self._files = {name: _LineFile(folder / name, lengths.get(name, 0)) for name in (RECORDS, TIMING)}
        sync_folder(folder)
        self.run = Run(manifest, *(read_lines(folder / name) for name in (RECORDS, TIMING)))
        self._done = self._saved = len(self.run.records)
        self._saved_at = time.monotonic()
        self._told: set[str] = set()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, record: dict[str, Any], times: dict[str, Any]) -> None:
        """Append a batch to the files, and save a checkpoint if it is time; what finds no room waits in memory."""
        self._files[RECORDS].add(record)
        self._files[TIMING].add(times)
        self._write()
        self._done = done = record["batch"] + 1
        due = self._every is not None and done - self._saved >= self._every and done < self.run.manifest["batches"]
        if due and time.monotonic() - self._saved_at >= self._seconds:
            self._save(done)

    def save(self) -> int:
        """Save a checkpoint of all that was added, and return from which batch the run would be resumed."""
        if self._done != self._saved:
            self._save(self._done)
        return self._saved

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which makes the run a finished one, and remove what only an unfinished one needs.

        Raises:
            OSError: There is still no room for all of it; the run can be resumed.
        """
        try:
            for file in self._files.values():
                file.mark()
            write_json(self._folder / SUMMARY, summary)
        except OSError as error:
            raise OSError(
                f"The run came to its end, but its files could not be written to {self._folder} ({error}). Make room "
                f"and resume it: it goes on from batch {self._saved}."
            ) from error
        remove_checkpoints(self._folder)

    def _find_place(self, manifest: dict[str, Any]) -> Place | None:
        place = restore(self._folder, manifest, self._adapter)
        if place is None:
            reason = "There is no good checkpoint in {}:" if has_checkpoints(self._folder) else _NO_STATE
            warnings.warn(f"{reason.format(self._folder)} the run starts over.", stacklevel=4)
        return place

    def _write(self) -> None:
        try:
            for file in self._files.values():
                file.write()
        except OSError as error:
            self._tell("Records wait in memory, as they cannot be written to", error)

    def _save(self, done: int) -> None:
        try:
            marks = {name: file.mark() for name, file in self._files.items()}
            save_checkpoint(self._folder, self.run.manifest, self._adapter, done, marks)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            self._tell("No checkpoint could be saved in", error)
        else:
            self._saved = done
        self._saved_at = time.monotonic()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()  # the copies made for saving are no cost of the method

    def _tell(self, problem: str, error: BaseException) -> None:
        if problem not in self._told:
            warnings.warn(
                f"{problem} {self._folder} ({error}). The run goes on; if it is stopped, it will resume from batch "
                f"{self._saved} unless a later attempt succeeds.",
                stacklevel=5,
            )
        self._told.add(problem)


class _LineFile:
    """A file of JSON lines that knows its length and hash; what lies behind ``length`` bytes is cut off."""

    def __init__(self, path: Path, length: int) -> None:
        kept = path.read_bytes()[:length] if length else b""
        self._digest, self._length, self._waiting = hashlib.sha256(kept), length, b""
        self._file = path.open("r+b" if length else "wb", buffering=0)  # what waits is ours to know
        self._file.truncate(length)
        self._file.seek(length)

    def add(self, line: dict[str, Any]) -> None:
        """Append a line, which waits for `write`."""
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        self._waiting += data
        self._digest.update(data)
        self._length += len(data)

    def write(self) -> None:
        """Write what waits; on an `OSError` what was not written goes on waiting."""
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def mark(self) -> Mark:
        """Make sure that all is on the disk, and return what it is."""
        self.write()
        os.fsync(self._file.fileno())
        return self._length, self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()


def _resumed(old: dict[str, Any], new: dict[str, Any], batches: int) -> dict[str, Any]:
    """The manifest of a run that goes on after so many batches, with what has changed since it was started."""
    changed = {key: new[key] for key in CIRCUMSTANCES if key != "resumed" and new[key] != old.get(key)}
    return old | {"resumed": [*old.get("resumed", []), {"batch": batches, **changed}]}


def _sweep(folder: Path) -> None:
    """Remove what killed processes left half written."""
    for name in (MANIFEST, SUMMARY):
        for aside in folder.glob(f".{name}.*"):
            aside.unlink()


def _clear(folder: Path) -> None:
    """Remove the run of a folder; the summary first and the manifest last, so that a kill leaves no false one."""
    for name in FILES:
        if name == MANIFEST:
            remove_checkpoints(folder)
        (folder / name).unlink(missing_ok=True)
