"""Where the cells of a grid run: a launcher takes them all and returns when all are done."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, Protocol

import torch

from vcotta.experiments.board import Board
from vcotta.experiments.orphans import end_with_parent

__all__ = ["WATCH_SECONDS", "Job", "Launcher", "LocalLauncher"]

Job = Callable[..., Any]
"""A cell ready to run, which can be sent to another process; takes the `Report` to call as ``progress``."""

WATCH_SECONDS = 0.5
"""How often a launcher looks how far other processes are."""


class Launcher(Protocol):
    """Runs jobs, each given with the folder it writes to, and keeps the board up to date.

    The first failure is raised at once. What was begun can be gone on with by launching it again.
    """

    def __call__(self, jobs: Mapping[Path, Job], board: Board, *, device: str = "cpu") -> None:
        """Run all jobs to their end.

        Args:
            jobs: What to run, by the folder it writes to.
            board: Is told how far the runs are.
            device: What the jobs compute on, which says what they need.
        """


@dataclass(frozen=True)
class LocalLauncher:
    """Runs jobs on this machine.

    Attributes:
        workers: Processes, on a CPU with one torch thread each; 1 runs everything in this one, as a GPU wants it.
    """

    workers: int = 2

    def __call__(self, jobs: Mapping[Path, Job], board: Board, *, device: str = "cpu") -> None:
        """Run all jobs to their end, in the order given."""
        if self.workers == 1:
            with _one_thread() if torch.device(device).type == "cpu" else nullcontext():
                for folder, job in jobs.items():
                    job(progress=board.line(folder))
                    board.finish(folder)
            return
        context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
        notes = context.SimpleQueue()
        pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=_start, initargs=(notes,))
        try:
            waiting: set[Future[None]] = {pool.submit(_work, job) for job in jobs.values()}
            while waiting:
                done, waiting = wait(waiting, timeout=WATCH_SECONDS, return_when="FIRST_COMPLETED")
                _pass_on(notes)
                for future in done:
                    future.result()
                board.look()
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # runs are made to be cut off anywhere
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread within the block, as workers have it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _start(notes: SimpleQueue[str]) -> None:
    torch.set_num_threads(1)
    warnings.showwarning = lambda message, *_, **__: notes.put(str(message))
    end_with_parent()


def _pass_on(notes: SimpleQueue[str]) -> None:
    """Warn of what workers warned of; a note that several have is one note here."""
    for note in dict.fromkeys(iter(lambda: None if notes.empty() else notes.get(), None)):
        warnings.warn(note, stacklevel=2)


def _work(job: Job) -> None:
    job()  # what it returns stays here: it is in the files
