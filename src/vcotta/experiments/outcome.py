"""What came out of an experiment: one row a label, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vcotta.experiments.cells import Cell
from vcotta.experiments.entries import Entry
from vcotta.report.tables import Grid
from vcotta.runs import Run

__all__ = ["FORMS", "Row", "outcome", "rows_as_csv", "table"]

FORMS = {  # score: heading, format, factor
    "error": ("Error %", ".2f", 100.0),
    "nll": ("NLL", ".3f", 1.0),
    "brier": ("Brier", ".3f", 1.0),
    "ece": ("ECE", ".3f", 1.0),
    "aurc": ("AURC", ".4f", 1.0),
    "seconds": ("s a corruption", ".2f", 1.0),
    "peak_gib": ("peak GiB", ".2f", 1.0),
    "forwards": ("forwards a batch", ".1f", 1.0),
    "backwards": ("backwards a batch", ".1f", 1.0),
}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        label: Its name.
        scores: For each score its mean over the runs.
        spread: For each score its sample standard deviation over the runs; 0 for a single one.
        runs: How many runs.
        paper: The paper's value of the score that ranks, or None.
        difference: Ours minus the paper's, or None.
    """

    label: str
    scores: dict[str, float]
    spread: dict[str, float]
    runs: int
    paper: float | None
    difference: float | None


def outcome(entry: Entry, dataset: str, cells: Sequence[Cell], runs: Sequence[Run]) -> list[Row]:
    """Average the runs of each label, in the order of the entry.

    Example:
        >>> from vcotta.experiments.entries import ENTRIES
        >>> outcome(ENTRIES["margin"], "digits", [], [])
        []
    """
    rows = []
    for label in dict.fromkeys(cell.label for cell in cells):
        found = [_scores(run) for cell, run in zip(cells, runs, strict=True) if cell.label == label]
        mean = {score: statistics.mean(one[score] for one in found) for score in FORMS}
        spread = {score: statistics.stdev([one[score] for one in found]) if len(found) > 1 else 0.0 for score in FORMS}
        paper = entry.paper.get(dataset, {}).get(label)
        first = entry.scores[0]
        difference = None if paper is None else mean[first] - paper
        rows.append(Row(label, mean, spread, len(found), paper, difference))
    return rows


def _scores(run: Run) -> dict[str, float]:
    summary = run.summary()
    domains, batches = len(summary["domains"]), len(run.records)
    values: dict[str, Any] = summary["mean"] | {
        "seconds": summary["seconds"] / domains,
        "peak_gib": summary["peak_memory"] / 2**30,
        "forwards": summary["forwards"] / batches,
        "backwards": summary["backwards"] / batches,
    }
    return {score: FORMS[score][2] * values[score] for score in FORMS}


def table(entry: Entry, rows: Sequence[Row]) -> Grid:
    """The rows as a table: mean and, over several runs, plus or minus one standard deviation."""
    with_paper = any(row.paper is not None for row in rows)
    first = entry.scores[0]
    form = FORMS[first][1]
    header = ["", *(FORMS[score][0] for score in entry.scores), "runs"]
    header += ["paper", "difference"] if with_paper else []
    cells = []
    for row in rows:
        line = [row.label]
        for score in entry.scores:
            _, shape, _ = FORMS[score]
            spread = f" ± {row.spread[score]:{shape}}" if row.runs > 1 else ""
            line.append(f"{row.scores[score]:{shape}}{spread}")
        line.append(str(row.runs))
        if with_paper:
            line += ["-", "-"] if row.paper is None else [f"{row.paper:{form}}", f"{row.difference:+{form}}"]
        cells.append(tuple(line))
    best = set()
    for column, score in enumerate(entry.scores, 1):
        if rows:
            values = [row.scores[score] for row in rows]
            best.add((values.index(min(values)), column))
    return Grid(tuple(header), tuple(cells), frozenset(best), f"{entry.name}: {entry.title}")


def rows_as_csv(entry: Entry, rows: Sequence[Row]) -> str:
    """The rows as CSV with full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spreads = [f"{score}_std" for score in entry.scores]
    writer.writerow(["label", *entry.scores, *spreads, "runs", "paper"])
    for row in rows:
        values = [row.scores[score] for score in entry.scores] + [row.spread[score] for score in entry.scores]
        writer.writerow([row.label, *values, row.runs, "" if row.paper is None else row.paper])
    return text.getvalue()
