"""The demo: one network, fifteen corruptions, five methods, one table.

VCoTTA starts from the warmed network and the others from the plain one, so BN is run from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcotta._util.files import write_json, write_text
from vcotta.experiments.build import Task
from vcotta.experiments.grid import run_spec
from vcotta.report.figures import error_by_corruption, priors_along_stream, reliability
from vcotta.report.tables import by_corruption, comparison, rows
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

__all__ = ["demo_rows", "run_demo"]

DEMO_RUNS = {
    **{method: RunSpec(method) for method in ("source", "bn", "tent", "cotta")},
    "bn-warmed": RunSpec("bn", start="warmed"),
    "vcotta": RunSpec("vcotta"),
}
"""The runs by the names of their folders."""


def run_demo(out: Path, seed: int, task: Task, limit: int | None = None) -> list[Run]:
    """Train and warm up the digits network, run every method of the demo, and write results and figures.

    Args:
        out: Folder to write to; an earlier demo there is replaced.
        seed: Seed of network, warm-up and adapters; the corrupted images are always the same.
        task: Starts a line of the progress display, see `vcotta._util.progress.display`.
        limit: Use only this many images of each corruption.

    Returns:
        The runs, whose files are in ``out/runs/NAME``; beside them ``results.json``, ``tables.md`` and the figures
        ``error.png``, ``priors.png`` and ``reliability.png``.
    """
    runs = [
        run_spec(replace(spec, limit=limit, seed=seed), out / "runs" / name, task=task, overwrite=True)
        for name, spec in DEMO_RUNS.items()
    ]
    write_json(out / "results.json", demo_rows(runs))
    write_text(out / "tables.md", comparison(runs).markdown() + "\n" + by_corruption(runs).markdown())
    error_by_corruption(runs, out / "error.png")
    priors_along_stream(runs[-1], out / "priors.png")
    reliability(runs, out / "reliability.png")
    return runs


def demo_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the scores of the demo's runs, see `vcotta.report.tables.rows`, with the runs' names as methods."""
    return [row | {"method": name} for name, row in zip(DEMO_RUNS, rows(runs), strict=True)]
