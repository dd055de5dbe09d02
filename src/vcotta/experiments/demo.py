"""The demo: one network, fifteen corruptions, five methods, one table."""

from __future__ import annotations

from pathlib import Path

from vcotta.corruptions import frost_source
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import Task, adapter_for, stream_for, train_network, warm_network
from vcotta.files import write_json, write_text
from vcotta.methods import METHODS
from vcotta.report.figures import error_by_corruption, priors_along_stream, reliability
from vcotta.report.tables import by_corruption, comparison, rows
from vcotta.runs import Run

__all__ = ["run_demo"]

DEMO_METHODS = ("source", "bn", "tent", "cotta", "vcotta")


def run_demo(out: Path, seed: int, task: Task) -> list[Run]:
    """Train and warm up the digits network, run every method of the demo, and write results and figures.

    Args:
        out: Folder to write to; an earlier demo there is replaced.
        seed: Seed of everything: network, corruptions, adapters.
        task: Starts a line of the progress display, see `vcotta.report.progress.display`.

    Returns:
        The runs, whose files are in ``out/runs/METHOD``; beside them ``results.json``, ``tables.md`` and the figures
        ``error.png``, ``priors.png`` and ``reliability.png``.
    """
    digits = BENCHMARKS["digits"]
    model = train_network(digits, seed=seed, task=task)
    warmed = warm_network(digits, model, seed=seed, task=task)
    runs = []
    for method in DEMO_METHODS:
        adapter = adapter_for(digits, method, warmed if METHODS[method].needs_variational else model, seed=seed)
        runs.append(
            run_stream(
                adapter,
                stream_for(digits, seed=seed),
                out / "runs" / method,
                progress=task(method, "error {:.1%}"),
                manifest={"dataset": "digits", "frost": frost_source()},
                overwrite=True,
            )
        )
    write_json(out / "results.json", rows(runs))
    write_text(out / "tables.md", comparison(runs).markdown() + "\n" + by_corruption(runs).markdown())
    error_by_corruption(runs, out / "error.png")
    priors_along_stream(runs[-1], out / "priors.png")
    reliability(runs, out / "reliability.png")
    return runs
