"""The demo: one network, fifteen corruptions, five methods, one table."""

from __future__ import annotations

from pathlib import Path

from vcotta._util.files import write_json, write_text
from vcotta.experiments.build import Task
from vcotta.experiments.grid import run_spec
from vcotta.report.figures import error_by_corruption, priors_along_stream, reliability
from vcotta.report.tables import by_corruption, comparison, rows
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

__all__ = ["run_demo"]

DEMO_METHODS = ("source", "bn", "tent", "cotta", "vcotta")


def run_demo(out: Path, seed: int, task: Task, limit: int | None = None) -> list[Run]:
    """Train and warm up the digits network, run every method of the demo, and write results and figures.

    Args:
        out: Folder to write to; an earlier demo there is replaced.
        seed: Seed of network, warm-up and adapters; the corrupted images are always the same.
        task: Starts a line of the progress display, see `vcotta._util.progress.display`.
        limit: Use only this many images of each corruption.

    Returns:
        The runs, whose files are in ``out/runs/METHOD``; beside them ``results.json``, ``tables.md`` and the figures
        ``error.png``, ``priors.png`` and ``reliability.png``.
    """
    runs = [
        run_spec(RunSpec(method, limit=limit, seed=seed), out / "runs" / method, task=task, overwrite=True)
        for method in DEMO_METHODS
    ]
    write_json(out / "results.json", rows(runs))
    write_text(out / "tables.md", comparison(runs).markdown() + "\n" + by_corruption(runs).markdown())
    error_by_corruption(runs, out / "error.png")
    priors_along_stream(runs[-1], out / "priors.png")
    reliability(runs, out / "reliability.png")
    return runs
