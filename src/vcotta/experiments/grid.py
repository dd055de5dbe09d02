"""Running the cells of an experiment: in parallel processes, each run resumable, none repeated."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vcotta.corruptions import frost_source
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import find_benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.networks import Weights, network_for
from vcotta.experiments.orphans import end_with_parent
from vcotta.experiments.setup import adapter_for
from vcotta.protocols import make_stream
from vcotta.report.progress import Report
from vcotta.runs import SUMMARY, Run
from vcotta.runtime import Runtime

__all__ = ["run_cell", "run_cells"]

CHECKPOINT_EVERY = 20
"""Batches after which a cell's state is saved."""
CHECKPOINT_SECONDS = 20.0
"""Seconds that lie between two such states at least: those of a large network are more than a gigabyte."""


def run_cell(
    cell: Cell, folder: Path, *, weights: Weights | None = None, device: str = "cpu", progress: Report | None = None
) -> Run:
    """Run one cell into its folder; one that is finished is read, one that was stopped goes on."""
    if (folder / SUMMARY).exists():
        return Run.load(folder)
    benchmark, runtime = find_benchmark(cell.dataset), Runtime(device)
    model = network_for(cell, benchmark, weights, runtime)
    adapter = adapter_for(benchmark, cell.method, model, seed=cell.seed, runtime=runtime, **cell.options)
    stream = make_stream(
        cell.protocol,
        benchmark.load(),
        batch_size=cell.batch_size or benchmark.batch_size,
        limit=cell.limit,
        device=device,
        **cell.protocol_options,
    )
    facts = {"cell": asdict(cell), "dataset": cell.dataset, "network": benchmark.network, "frost": frost_source()}
    return run_stream(
        adapter,
        stream,
        folder,
        progress=progress,
        manifest=facts,
        resume=True,
        checkpoint_every=CHECKPOINT_EVERY,
        checkpoint_seconds=CHECKPOINT_SECONDS,
    )


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    *,
    workers: int = 2,
    weights: Weights | None = None,
    device: str = "cpu",
    report: Report | None = None,
) -> list[Run]:
    """Run many cells, each in a folder of ``out`` by its key, and return their runs in order.

    Killed and called again, it goes on: finished cells are read, others continue from their last checkpoint. Cells
    that several experiments share are run once.

    Args:
        cells: What to run.
        out: Folder of the runs.
        workers: Processes; 1 runs everything in this one, as a GPU wants it.
        weights: Networks that were made elsewhere.
        device: Where to compute.
        report: Called with (batches done, batches known of, cells finished) as the work goes on.
    """
    unique = list({cell.key: cell for cell in cells}.values())
    board = _Board(len(unique), report)
    if workers == 1:
        for cell in unique:
            run_cell(cell, out / cell.key, weights=weights, device=device, progress=board.line(cell.key))
            board.finished += 1
    else:
        _run_apart(unique, out, workers, weights, device, board)
    board.end()
    return [Run.load(out / cell.key) for cell in cells]


class _Board:
    """How far each cell is, and all of them together."""

    def __init__(self, cells: int, report: Report | None) -> None:
        self.cells, self.report, self.finished = cells, report, 0
        self.lines: dict[str, tuple[int, int]] = {}

    def line(self, key: str) -> Report:
        return lambda done, total, error: self.put(key, done, total)

    def end(self) -> None:
        """Tell that all is done, if anything had to be."""
        if self.report is not None and self.lines:
            total = sum(total for _, total in self.lines.values())
            self.report(total, total, float(self.cells))

    def put(self, key: str, done: int, total: int) -> None:
        self.lines[key] = done, total
        if self.report is not None:
            seen = sum(total for _, total in self.lines.values())
            waiting = (self.cells - len(self.lines)) * seen / len(self.lines)  # as long as those that began, we guess
            self.report(sum(done for done, _ in self.lines.values()), round(seen + waiting), float(self.finished))


_messages: Any = None  # a worker's way to tell how far it is


def _start_worker(messages: Any) -> None:
    global _messages
    _messages = messages
    torch.set_num_threads(1)
    end_with_parent()


def _work(cell: Cell, folder: Path, weights: Weights | None, device: str) -> None:
    def progress(done: int, total: int, error: float) -> None:
        _messages.put((cell.key, done, total))

    run_cell(cell, folder, weights=weights, device=device, progress=progress)


def _run_apart(
    cells: Sequence[Cell], out: Path, workers: int, weights: Weights | None, device: str, board: _Board
) -> None:
    context = multiprocessing.get_context("spawn")
    messages = context.Queue()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(messages,))
    try:
        futures = [pool.submit(_work, cell, out / cell.key, weights, device) for cell in cells]
        while not all(future.done() for future in futures):
            _check(futures)
            board.finished = sum(future.done() for future in futures)
            try:
                board.put(*messages.get(timeout=0.2))
            except queue.Empty:
                continue
        _check(futures)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _check(futures: Sequence[Future[None]]) -> None:
    """Raise the first failure at once; what else is running ends at its own pace and is kept."""
    for future in futures:
        if future.done() and (error := future.exception()) is not None:
            raise error
