"""Where many runs are done: a launcher takes them all and returns when all are finished."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Protocol

import torch

from vcotta._util.progress import Progress
from vcotta._util.warn import warn
from vcotta.experiments.build import one_thread
from vcotta.runs.run import RECORDS, SUMMARY, read_manifest

__all__ = ["WATCH_SECONDS", "GridProgress", "Job", "Launcher", "LocalLauncher"]

Job = Callable[..., Any]
"""A run as a function without arguments that can be sent to another process; takes ``progress``, a `Progress`."""

WATCH_SECONDS = 0.5
"""Seconds between two looks at the progress of other processes."""


class GridProgress:
    """The progress of many runs together.

    Args:
        folders: Folders of the runs.
        report: Called with (batches done, batches known of, runs finished); None for no report.
    """

    def __init__(self, folders: Sequence[Path], report: Progress | None = None) -> None:
        self._files = {folder: _Records(folder) for folder in folders}
        self._batches: dict[Path, tuple[int, int]] = {}
        self._finished: set[Path] = set()
        self._report = report

    def begin(self) -> None:
        """Report that the work begins; the first networks may take minutes."""
        if self._report is not None:
            self._report(0, 0, 0.0)

    def of_run(self, folder: Path) -> Progress:
        """Return the function that a run in this process calls after each batch."""

        def report(done: int, total: int, error: float) -> None:
            self._batches[folder] = done, total
            self._send()

        return report

    def finish(self, folder: Path) -> None:
        """Count a run as finished."""
        self._finished.add(folder)

    def read_folders(self) -> None:
        """Read the progress of runs in other processes from their folders."""
        if self._report is None:
            return
        for folder, records in self._files.items():
            if folder in self._finished:
                continue
            if (folder / SUMMARY).exists():
                self.finish(folder)
            if (found := records.read()) is not None:
                self._batches[folder] = found
        self._send()

    def end(self) -> None:
        """Report that all runs are finished."""
        if self._report is not None and self._batches:
            total = sum(total for _, total in self._batches.values())
            self._report(total, total, float(len(self._files)))

    def _send(self) -> None:
        if self._report is not None and self._batches:
            seen = sum(total for _, total in self._batches.values())
            waiting = (len(self._files) - len(self._batches)) * seen / len(self._batches)  # if they are as long
            done = sum(done for done, _ in self._batches.values())
            self._report(done, round(seen + waiting), float(len(self._finished)))


class _Records:
    """Counts the records of a run that another process writes, without reading a line twice."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._total = folder, 0
        self._read, self._lines = 0, 0

    def read(self) -> tuple[int, int] | None:
        """Return the batches done and all batches, or None while there is no run."""
        path = self._folder / RECORDS
        try:
            self._total = self._total or int(read_manifest(self._folder)["batches"])
            if path.stat().st_size < self._read:  # the run was resumed from a checkpoint and its file cut there
                self._read, self._lines = 0, 0
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return None
        self._read, self._lines = self._read + len(new), self._lines + new.count(b"\n")
        return min(self._lines, self._total), self._total


class Launcher(Protocol):
    """Runs jobs and keeps their progress up to date; raises the first failure at once.

    Launched again after a failure, jobs resume.
    """

    def __call__(self, jobs: Mapping[Path, Job], progress: GridProgress, *, device: str = "cpu") -> None:
        """Run all jobs, given by the folder that each writes to, on a device to their end."""


@dataclass(frozen=True)
class LocalLauncher:
    """Runs jobs on this machine.

    Attributes:
        workers: Number of processes, on a CPU with one torch thread each; 1 runs everything in this process.
    """

    workers: int = 2

    def __call__(self, jobs: Mapping[Path, Job], progress: GridProgress, *, device: str = "cpu") -> None:
        """Run all jobs to their end, in the order given."""
        if self.workers == 1:
            with one_thread(torch.device(device).type == "cpu"):
                for folder, job in jobs.items():
                    job(progress=progress.of_run(folder))
                    progress.finish(folder)
            return
        context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
        notes = context.SimpleQueue()
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_start_worker, initargs=(notes,))
        try:
            waiting: set[Future[None]] = {pool.submit(_work, job) for job in jobs.values()}
            while waiting:
                done, waiting = wait(waiting, timeout=WATCH_SECONDS, return_when="FIRST_COMPLETED")
                _repeat_warnings(notes)
                for future in done:
                    future.result()
                progress.read_folders()
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # a run can be killed at any moment
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(notes: SimpleQueue[str]) -> None:
    torch.set_num_threads(1)
    warnings.showwarning = lambda message, *_, **__: notes.put(str(message))
    _end_with_parent()


def _repeat_warnings(notes: SimpleQueue[str]) -> None:
    """Give the warnings of the workers in this process, each text once."""
    for note in dict.fromkeys(iter(lambda: None if notes.empty() else notes.get(), None)):
        warn(note)


def _work(job: Job) -> None:
    job()  # its result is in its folder and need not be sent back


def _end_with_parent() -> None:
    """End this worker process when its parent ends, even if the parent was killed.

    Otherwise a worker of a process pool would wait for ever and hold the lock of its run.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)  # nothing needs cleaning up: a run can be killed at any moment, and its lock dies with the process
