"""The table of what the student learns from, and of whether it should predict, too."""

from __future__ import annotations

from collections.abc import Callable

from studies.files import read_result
from studies.markdown import table
from studies.posterior.learning import PREDICTIONS, VARIANTS
from studies.scores import Row


def learning_text() -> str:
    """Return a row for each variant, with error and NLL of each prediction, from either network."""
    rows: list[Row] = read_result("posterior", "learning.json")
    starts = [start for start in ("warmed", "plain") if any(row["start"] == start for row in rows)]
    cells = []
    for name in (*VARIANTS, "tca"):
        own = {row["start"]: row["predictions"] for row in rows if row["variant"] == name}
        if own:
            cells.append((name, *(_pair(own.get(start, {}).get(kind)) for start in starts for kind in PREDICTIONS)))
    headings = ["VCoTTA", *(f"{start}: {kind}" for start in starts for kind in PREDICTIONS)]
    one = rows[0]
    note = (
        f"Error % / NLL on the four extra corruptions at severity 5, {one['limit']} images of each, batches of "
        f"{one['batch_size']}, one seed; {one['network']}, {one['hardware']}, torch {one['torch']} "
        "(`studies/posterior/learning.py`)."
    )
    return f"{table(headings, cells)}\n\n{note}"


def _pair(scores: Row | None) -> str:
    return "" if scores is None else f"{scores['error']:.2f} / {scores['nll']:.3f}"


TABLES: dict[str, Callable[[], str]] = {"posterior-learning": learning_text}
