"""Running the cells of an experiment: side by side, each run resumable, none repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vcotta.corruptions import frost_source
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import find_benchmark
from vcotta.experiments.board import Board
from vcotta.experiments.cells import Cell
from vcotta.experiments.launch import Launcher, LocalLauncher
from vcotta.experiments.networks import Weights, network_for
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
    cell: Cell,
    folder: Path,
    *,
    weights: Weights | None = None,
    device: str = "cpu",
    checkpoint_seconds: float | None = None,
    progress: Report | None = None,
) -> Run:
    """Run one cell into its folder; one that is finished is read, one that was stopped goes on."""
    if (folder / SUMMARY).exists():
        return Run.load(folder)
    benchmark, runtime = find_benchmark(cell.dataset), Runtime(device)
    model = network_for(cell, benchmark, weights, runtime)
    adapter = adapter_for(benchmark, cell.method, model, seed=cell.seed, runtime=runtime, guard=False, **cell.options)
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
        checkpoint_seconds=CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds,
    )


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    *,
    workers: int = 2,
    launcher: Launcher | None = None,
    weights: Weights | None = None,
    device: str = "cpu",
    checkpoint_seconds: float | None = None,
    report: Report | None = None,
) -> list[Run]:
    """Run many cells, each in a folder of ``out`` by its key, and return their runs in order.

    Killed and called again, it goes on: finished cells are read, others continue from their last checkpoint. Cells
    that several experiments share are run once.

    Args:
        cells: What to run.
        out: Folder of the runs.
        workers: Processes of this machine; 1 runs everything in this one, as a GPU wants it.
        launcher: Runs the cells elsewhere than in ``workers`` processes, for example `RayLauncher`.
        weights: Networks that were made elsewhere.
        device: Where to compute.
        checkpoint_seconds: Seconds between two saved states of a run at least; None for `CHECKPOINT_SECONDS`.
        report: Called with (batches done, batches known of, cells finished) as the work goes on.
    """
    out, weights = out.absolute(), weights and weights.absolute()  # another process may be in another folder
    shared: dict[str, Any] = {"weights": weights, "device": device, "checkpoint_seconds": checkpoint_seconds}
    jobs = {
        out / cell.key: partial(run_cell, cell, out / cell.key, **shared)
        for cell in cells
        if not (out / cell.key / SUMMARY).exists()
    }
    if jobs:
        board = Board(list(jobs), report)
        (launcher or LocalLauncher(workers))(jobs, board, device=device)
        board.end()
    return [Run.load(out / cell.key) for cell in cells]
