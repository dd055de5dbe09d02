"""The picture of each experiment, drawn from its runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vcotta.corruptions import GROUPS
from vcotta.experiments.cells import Cell
from vcotta.experiments.entry import Entry
from vcotta.experiments.outcome import FORMS, Row, interval, steady
from vcotta.report.comparison_figures import cost_against_error, error_heat_map, risk_against_coverage
from vcotta.report.figures import reliability
from vcotta.report.groups import Group, labelled
from vcotta.report.setting_figures import Series, bar_panels, curves, dots, notes_along_stream, stacked_bars
from vcotta.runs import Run

__all__ = ["CAPTIONS", "MARKS", "SPREAD", "draw"]

UP_AND_DOWN = 9  # steps of severity within a corruption of the gradual stream

CAPTIONS = {
    "heat map": "Error in per cent of each method on each corruption; deeper is worse, the lowest of a column is bold.",
    "groups": "Each group's share of the mean error: the sum of its errors, divided by the number of corruptions.",
    "gradual": "Error at each step of severity, averaged over the corruptions.",
    "orders": "One mark a run, by seed and order; the line is their mean.",
    "loops": "Error of each round through the corruptions.",
    "drift": "Mean over runs, batch by batch.",
    "risk": "Error among the predictions that are kept, the most confident first; all runs together.",
    "reliability": "Accuracy against confidence in 15 bins, all runs together; below the diagonal one is too sure.",
    "cost": "Mean error against seconds a corruption.",
}
"""What each kind of picture shows, where its axes do not say it."""

SPREAD = {
    "bars": "Whiskers are 95 % intervals over seeds.",
    **dict.fromkeys(("curve", "gradual", "loops"), "Bars are 95 % intervals over seeds."),
    "cost": "Bars are ranges over seeds.",
}
"""How a picture shows that there are several seeds."""

MARKS = {"bars": "Diamonds", "orders": "Diamonds", "curve": "Dashed lines"}
"""What the paper's values are in the pictures that have them."""


@dataclass(frozen=True)
class _Found:
    """All there is to draw from."""

    entry: Entry
    cells: Sequence[Cell]
    runs: Sequence[Run]
    rows: Sequence[Row]

    def members(self, row: Row) -> list[Run]:
        """The runs of a row."""
        return [run for cell, run in zip(self.cells, self.runs, strict=True) if cell.label == row.label]

    def groups(self) -> list[Group]:
        """The runs of each row, all of one stream, under its label."""
        return [labelled(row.label, self.members(row)) for row in self.rows]


def draw(entry: Entry, cells: Sequence[Cell], runs: Sequence[Run], rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw the picture of an experiment as ``picture.png`` and ``picture.pdf``.

    Args:
        entry: The experiment, which says what is drawn.
        cells: Its cells.
        runs: Their runs.
        rows: What came out of them.
        folder: Where to.

    Returns:
        The files.
    """
    found = _Found(entry, cells, runs, rows)
    files = [folder / f"picture.{kind}" for kind in ("png", "pdf")]
    for path in files:
        _DRAWINGS[entry.picture](found, path)
    return files


def _bars(found: _Found, path: Any) -> None:
    """The score that ranks; a few of them where the scores are what the experiment is about."""
    scores = found.entry.scores[:4] if found.entry.scores[0] == "nll" else found.entry.scores[:1]
    series = [_series(FORMS[score][0], found.rows, score) for score in scores]
    bar_panels([row.label for row in found.rows], [row.method for row in found.rows], series, path)


def _curve(found: _Found, path: Any) -> None:
    varied = found.entry.varied
    assert varied is not None  # an entry with this picture has one
    values = sorted({row.value for row in found.rows if row.value is not None})
    lines = []
    for method in dict.fromkeys(row.method for row in found.rows):
        own = {row.value: row for row in found.rows if row.method == method}
        lines.append(_series(method, [own.get(value) for value in values]))
    curves([varied.text(value) for value in values], lines, varied.name, path)


def _stacked(found: _Found, path: Any) -> None:
    visited = len(found.rows[0].corruptions)
    parts = {
        group: [sum(row.corruptions.get(name, 0.0) for name in names) / visited for row in found.rows]
        for group, names in GROUPS.items()
    }
    stacked_bars([row.label for row in found.rows], parts, "mean error (%), by group of corruptions", path)


def _gradual(found: _Found, path: Any) -> None:
    def steps(run: Run) -> list[float]:
        errors = [100 * part["error"] for part in run.summary()["domains"]]
        return np.reshape(errors, (-1, UP_AND_DOWN)).mean(0).tolist()  # type: ignore[no-any-return]

    ticks = [str(severity) for severity in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    curves(ticks, _over_runs(found, steps), "severity, in the order met", path)


def _loops(found: _Found, path: Any) -> None:
    rounds = int(found.cells[0].protocol_options["rounds"])

    def errors(run: Run) -> list[float]:
        counts = np.array([[record["errors"], record["n"]] for record in run.records])
        wrong, seen = counts.reshape(rounds, -1, 2).sum(1).T
        return (100 * wrong / seen).tolist()  # type: ignore[no-any-return]

    curves([str(place) for place in range(1, rounds + 1)], _over_runs(found, errors), "round", path)


def _orders(found: _Found, path: Any) -> None:
    errors = {row.label: [100 * run.summary()["mean"]["error"] for run in found.members(row)] for row in found.rows}
    paper = {row.label: row.paper["error"] for row in found.rows if "error" in row.paper}
    dots(errors, paper, "mean error (%)", path)


def _drift(found: _Found, path: Any) -> None:
    notes = {"alpha": r"$\alpha$", "drift": "KL(teacher, source)\na weight"}
    notes_along_stream(found.groups(), notes, path)


def _cost(found: _Found, path: Any) -> None:
    groups = [labelled(row.label, [steady(run) for run in found.members(row)]) for row in found.rows]
    cost_against_error(groups, path, by="seconds")


def _series(label: str, rows: Sequence[Row | None], score: str = "error") -> Series:
    """A score of some rows; not-a-number for a row that is not there."""
    return Series(
        label,
        [math.nan if row is None else row.scores[score] for row in rows],
        [math.nan if row is None else row.interval.get(score, math.nan) for row in rows],
        [math.nan if row is None else row.paper.get(score, math.nan) for row in rows],
    )


def _over_runs(found: _Found, read: Callable[[Run], list[float]]) -> list[Series]:
    """A line a row, the mean over its runs of what is read from each, with its interval."""
    lines = []
    for row in found.rows:
        columns = np.array([read(run) for run in found.members(row)]).T
        widths = [interval(column.tolist()) for column in columns]
        lines.append(Series(row.label, columns.mean(1).tolist(), widths, [math.nan] * len(columns)))
    return lines


_DRAWINGS: dict[str, Callable[[_Found, str | os.PathLike[str]], None]] = {
    "heat map": lambda found, path: error_heat_map(found.groups(), path),
    "groups": _stacked,
    "bars": _bars,
    "curve": _curve,
    "gradual": _gradual,
    "orders": _orders,
    "loops": _loops,
    "drift": _drift,
    "risk": lambda found, path: risk_against_coverage(found.groups(), path),
    "reliability": lambda found, path: reliability(found.groups(), path),
    "cost": _cost,
}
