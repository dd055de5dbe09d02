"""Writes a run's files so that a killed run can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch

from vcotta._util.errors import differences
from vcotta._util.files import sync_folder, write_json
from vcotta._util.warn import warn
from vcotta.methods import Adapter
from vcotta.runs.checkpoints import (
    CIRCUMSTANCES,
    Mark,
    Place,
    has_checkpoints,
    identity,
    remove_checkpoints,
    restore,
    save_checkpoint,
)
from vcotta.runs.run import (
    FILES,
    MANIFEST,
    RECORDS,
    SUMMARY,
    TIMING,
    Manifest,
    Record,
    Run,
    Summary,
    Timing,
    check_folder,
    read_manifest,
    read_records,
    read_timing,
)

__all__ = ["RunWriter", "finished_run"]

_NO_STATE = "The run in {} was stopped before its first checkpoint:"


def finished_run(folder: Path, manifest: Manifest) -> Run | None:
    """Return the run of a folder if it is finished, None if it must be resumed or started.

    Raises:
        ValueError: The folder holds another run than that of the manifest, or a damaged one.
        FileExistsError: The folder holds files of a run without its manifest.
    """
    if not (folder / MANIFEST).exists():
        check_folder(folder)
        return None
    if odd := differences(identity(manifest), identity(read_manifest(folder))):
        raise ValueError(
            f"Expected {folder} to hold the run to resume, but it holds another: {', '.join(odd)}. Choose "
            f"another folder, or overwrite or delete {folder}."
        )
    if not (folder / SUMMARY).exists():
        return None
    remove_checkpoints(folder)  # a process killed after writing the summary may have left them
    return Run.load(folder)


class RunWriter:
    """Writes the files of a run: call `add` for every batch, then `finish`.

    A new writer replaces the run in the folder, or continues it with ``resume``.

    Args:
        folder: Folder of the run.
        manifest: What is run.
        adapter: Its state is saved, and restored by ``resume``.
        resume: Continue from the newest good checkpoint, or start over if there is none.
        every: Batches between two checkpoints, None for no checkpoints.
        seconds: Least number of seconds between two checkpoints.

    Attributes:
        run: The run with the batches that were done before the writer was made.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        adapter: Adapter,
        *,
        resume: bool = False,
        every: int | None = None,
        seconds: float = 0.0,
    ) -> None:
        self._folder, self._adapter, self._every, self._seconds = folder, adapter, every, seconds
        _sweep(folder)
        place = self._restore(manifest) if resume and (folder / MANIFEST).exists() else None
        if place is None:
            _clear(folder)
        else:
            manifest = _resumed(read_manifest(folder), manifest, place.batches)
        write_json(folder / MANIFEST, manifest)
        lengths = {} if place is None else place.lengths
        self._files = {name: _LineFile(folder / name, lengths.get(name, 0)) for name in (RECORDS, TIMING)}
        sync_folder(folder)
        self.run = Run(manifest, read_records(folder), read_timing(folder))
        self._done = self._saved = len(self.run.records)
        self._saved_at = time.monotonic()
        self._warned: set[str] = set()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def add(self, record: Record, times: Timing) -> None:
        """Append a batch to the files, and save a checkpoint if one is due; lines that do not fit wait in memory."""
        self._files[RECORDS].add(record)
        self._files[TIMING].add(times)
        self._write()
        self._done = done = record["batch"] + 1
        due = self._every is not None and done - self._saved >= self._every and done < self.run.manifest["batches"]
        if due and time.monotonic() - self._saved_at >= self._seconds:
            self._save(done)

    def save(self) -> int:
        """Save a checkpoint and return the number of batches after which the run would resume."""
        if self._done != self._saved:
            self._save(self._done)
        return self._saved

    def finish(self, summary: Summary) -> None:
        """Write the summary, which marks the run as finished, and remove the checkpoints.

        Raises:
            OSError: The disk is still full; the run can be resumed.
        """
        try:
            for file in self._files.values():
                file.mark()
            write_json(self._folder / SUMMARY, summary)
        except OSError as error:
            raise OSError(
                f"The run reached its end, but its files could not be written to {self._folder} ({error}). Free some "
                f"space and resume it: it continues from batch {self._saved}."
            ) from error
        remove_checkpoints(self._folder)

    def _restore(self, manifest: Manifest) -> Place | None:
        place = restore(self._folder, manifest, self._adapter)
        if place is None:
            reason = "There is no good checkpoint in {}:" if has_checkpoints(self._folder) else _NO_STATE
            warn(f"{reason.format(self._folder)} the run starts over.")
        return place

    def _write(self) -> None:
        try:
            for file in self._files.values():
                file.write()
        except OSError as error:
            self._warn_once("Records wait in memory, as they cannot be written to", error)

    def _save(self, done: int) -> None:
        try:
            marks = {name: file.mark() for name, file in self._files.items()}
            save_checkpoint(self._folder, self.run.manifest, self._adapter, done, marks)
        except (OSError, MemoryError, torch.OutOfMemoryError) as error:
            self._warn_once("No checkpoint could be saved in", error)
        else:
            self._saved = done
        self._saved_at = time.monotonic()
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()  # saving is no cost of the method

    def _warn_once(self, problem: str, error: BaseException) -> None:
        if problem not in self._warned:
            warn(
                f"{problem} {self._folder} ({error}). The run continues; if it is stopped, it will resume from batch "
                f"{self._saved} unless a later attempt succeeds."
            )
        self._warned.add(problem)


class _LineFile:
    """A file of JSON lines with its length and hash; everything after the first ``length`` bytes is cut off."""

    def __init__(self, path: Path, length: int) -> None:
        kept = path.read_bytes()[:length] if length else b""
        self._digest, self._length, self._waiting = hashlib.sha256(kept), length, b""
        self._file = path.open("r+b" if length else "wb", buffering=0)  # lines wait in `_waiting`, not in a buffer
        self._file.truncate(length)
        self._file.seek(length)

    def add(self, line: Record | Timing) -> None:
        """Append a line; it waits in memory for `write`."""
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        self._waiting += data
        self._digest.update(data)
        self._length += len(data)

    def write(self) -> None:
        """Write the waiting lines; after an `OSError` the rest still waits."""
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]

    def mark(self) -> Mark:
        """Write everything to the disk, and return the file's length and hash."""
        self.write()
        os.fsync(self._file.fileno())
        return self._length, self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()


def _resumed(old: Manifest, new: Manifest, batches: int) -> Manifest:
    """The manifest of a run that resumes after so many batches, with the circumstances that changed."""
    here, there = cast(dict[str, Any], new), cast(dict[str, Any], old)
    changed = {key: here[key] for key in CIRCUMSTANCES if key != "resumed" and here[key] != there.get(key)}
    return {**old, "resumed": [*old.get("resumed", []), {"batch": batches, **changed}]}


def _sweep(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    for name in (MANIFEST, SUMMARY):
        for aside in folder.glob(f".{name}.*"):
            aside.unlink()


def _clear(folder: Path) -> None:
    """Remove the run of a folder, the summary first and the manifest last, so that a kill leaves an unfinished run."""
    for name in FILES:
        if name == MANIFEST:
            remove_checkpoints(folder)
        (folder / name).unlink(missing_ok=True)
