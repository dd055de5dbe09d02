"""The demo: one network, fifteen corruptions, five methods, one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vcotta.corruptions import frost_source
from vcotta.evaluate import Run, run_stream
from vcotta.experiments.digits import digits_adapter, digits_stream, train_digits, warm_up_digits
from vcotta.files import write_json, write_text
from vcotta.methods import METHODS
from vcotta.report.figures import alpha_along_stream, error_by_corruption
from vcotta.report.progress import Report
from vcotta.report.tables import by_corruption, comparison, rows

__all__ = ["run_demo"]

DEMO_METHODS = ("source", "bn", "tent", "cotta", "vcotta")


def run_demo(out: Path, seed: int, task: Callable[[str, str], Report]) -> list[Run]:
    """Train and warm up the digits network, run every method of the demo, and write results and figures.

    Args:
        out: Folder to write to; an earlier demo there is replaced.
        seed: Seed of everything: network, corruptions, adapters.
        task: Starts a line of the progress display, see `vcotta.report.progress.display`.

    Returns:
        The runs, whose files are in ``out/runs/METHOD``; beside them ``results.json``, ``tables.md`` and the figures
        ``error.png`` and ``alpha.png``.
    """
    model = train_digits(seed, task("Training", "loss {:.3f}"))
    warmed = warm_up_digits(model, seed, task("Warm-up", "loss {:.3f}"))
    runs = []
    for method in DEMO_METHODS:
        adapter = digits_adapter(method, warmed if METHODS[method].needs_variational else model, seed)
        runs.append(
            run_stream(
                adapter,
                digits_stream(seed),
                out / "runs" / method,
                progress=task(method, "error {:.1%}"),
                manifest={"dataset": "digits", "frost": frost_source()},
                overwrite=True,
            )
        )
    write_json(out / "results.json", rows(runs))
    write_text(out / "tables.md", comparison(runs).markdown() + "\n" + by_corruption(runs).markdown())
    error_by_corruption(runs, out / "error.png")
    alpha_along_stream(runs[-1], out / "alpha.png")
    return runs
