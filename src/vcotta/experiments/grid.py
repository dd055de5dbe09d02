"""Running the cells of an experiment: side by side, each run resumable, none repeated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vcotta.corruptions import frost_source
from vcotta.evaluate import already_finished, run_stream
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.board import Board
from vcotta.experiments.cells import Cell
from vcotta.experiments.launch import Launcher, LocalLauncher
from vcotta.experiments.networks import Weights, network_for, recipe
from vcotta.experiments.setup import adapter_for
from vcotta.methods import configure
from vcotta.report.progress import Report
from vcotta.runs import SUMMARY, Run
from vcotta.runtime import Runtime
from vcotta.streams import ProtocolStream, make_stream

__all__ = ["finished_cell", "run_cell", "run_cells"]

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
    if (done := finished_cell(cell, folder, weights=weights, device=device)) is not None:
        return done
    benchmark, runtime = find_benchmark(cell.dataset), Runtime(device)
    model = network_for(cell, benchmark, weights, runtime)
    adapter = adapter_for(benchmark, cell.method, model, seed=cell.seed, runtime=runtime, guard=False, **cell.options)
    return run_stream(
        adapter,
        _stream(cell, benchmark, device),
        folder,
        progress=progress,
        manifest=_facts(cell, benchmark, weights),
        resume=True,
        checkpoint_every=CHECKPOINT_EVERY,
        checkpoint_seconds=CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds,
    )


def finished_cell(cell: Cell, folder: Path, *, weights: Weights | None = None, device: str = "cpu") -> Run | None:
    """Return the run of a cell if it is finished, before any network is made; None if there is still work to do.

    Raises:
        ValueError: The run was made with other settings than the cell has now, after a change of defaults for example.
    """
    if not (folder / SUMMARY).exists():
        return None
    benchmark = find_benchmark(cell.dataset)
    config = configure(cell.method, **{"dataset": benchmark.settings, **cell.options})
    stream, facts = _stream(cell, benchmark, device), _facts(cell, benchmark, weights)
    try:
        return already_finished(
            folder, cell.method, config, stream, seed=cell.seed, runtime=Runtime(device), guard=None, manifest=facts
        )
    except ValueError as reason:
        raise ValueError(f"{reason} For `vcotta reproduce`: give another --out, or delete {folder}.") from reason


def _stream(cell: Cell, benchmark: Benchmark, device: str) -> ProtocolStream:
    return make_stream(
        cell.protocol,
        benchmark.load(),
        batch_size=cell.batch_size or benchmark.batch_size,
        limit=cell.limit,
        device=device,
        **cell.protocol_options,
    )


def _facts(cell: Cell, benchmark: Benchmark, weights: Weights | None) -> dict[str, Any]:
    """What the manifest tells beside what every run's does."""
    return {
        "cell": cell.facts,
        "dataset": cell.dataset,
        "network": benchmark.network,
        **recipe(cell, benchmark, weights),
        "frost": frost_source(),
    }


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
    that several experiments share are run once, whatever their rows are called. A finished cell that was made with
    other settings than it has now is refused, see `finished_cell`.

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
    done: dict[str, Run | None] = {}
    if torch.device(device).type != "cuda" or torch.cuda.is_available():  # else those who have one look
        done = {cell.key: finished_cell(cell, out / cell.key, weights=weights, device=device) for cell in cells}
    jobs = {
        out / cell.key: partial(run_cell, cell, out / cell.key, **shared)
        for cell in cells
        if done.get(cell.key) is None
    }
    if jobs:
        board = Board(list(jobs), report)
        board.begin()
        (launcher or LocalLauncher(workers))(jobs, board, device=device)
        board.end()
    return [done.get(cell.key) or Run.load(out / cell.key) for cell in cells]
