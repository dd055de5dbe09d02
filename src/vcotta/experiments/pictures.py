"""The figure of each experiment, drawn from its runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vcotta.corruptions import GROUPS
from vcotta.experiments.outcome import FORMS, Row
from vcotta.experiments.paper.experiment import Experiment
from vcotta.report.figures import error_heat_map, named_points, notes_along_stream, reliability, risk_against_coverage
from vcotta.report.groups import Group, labelled
from vcotta.report.setting_figures import Series, bar_panels, curves, dots, stacked_bars
from vcotta.report.stats import Score, half_width
from vcotta.report.stream_map import stream_map
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

__all__ = ["CAPTIONS", "INTERVALS", "PAPER_MARKS", "draw"]

UP_AND_DOWN = 9  # steps of severity within a corruption of the gradual stream

CAPTIONS = {
    "heat map": "Error in per cent of each method on each corruption; deeper is worse, the lowest of a column is bold.",
    "streams": "Error in per cent; purple is less than Source's on that stream, orange more, the lowest is framed.",
    "groups": "Each group's share of the mean error: the sum of its errors, divided by the number of corruptions.",
    "gradual": "Error at each step of severity, averaged over the corruptions.",
    "orders": "A mark for each run, by seed and order; the line is their mean.",
    "loops": "Error of each round through the corruptions.",
    "drift": "Mean over runs, batch by batch.",
    "risk": "Error among the predictions that are kept, the most confident first; all runs together.",
    "reliability": "Accuracy against confidence in 15 bins, all runs together; overconfident below the diagonal.",
    "cost": "Mean error against seconds a corruption.",
}
"""Captions of figures whose axes do not say enough."""

INTERVALS = {
    "bars": "Whiskers are 95 % intervals over seeds.",
    **dict.fromkeys(("curve", "gradual", "loops", "cost"), "Bars are 95 % intervals over seeds."),
}
"""How the intervals over several seeds are drawn."""

PAPER_MARKS = {"bars": "Diamonds", "orders": "Diamonds", "curve": "Dashed lines"}
"""How the paper's values are drawn."""


@dataclass(frozen=True)
class _Results:
    """An experiment with its specs, their runs and the rows made from them."""

    experiment: Experiment
    specs: Sequence[RunSpec]
    runs: Sequence[Run]
    rows: Sequence[Row]

    def members(self, row: Row) -> list[Run]:
        """The runs of a row."""
        return [run for spec, run in zip(self.specs, self.runs, strict=True) if spec.label == row.label]

    def groups(self) -> list[Group]:
        """The runs of each row, all of one stream, under its label."""
        return [labelled(row.label, self.members(row)) for row in self.rows]


def draw(
    experiment: Experiment, specs: Sequence[RunSpec], runs: Sequence[Run], rows: Sequence[Row], folder: Path
) -> None:
    """Draw the figure of an experiment as ``picture.png`` and ``picture.pdf``; ``rows`` are from `outcome`."""
    results = _Results(experiment, specs, runs, rows)
    for kind in ("png", "pdf"):
        _DRAWINGS[experiment.picture](results, folder / f"picture.{kind}")


def _bars(results: _Results, path: Any) -> None:
    """Bars of the first score; of up to four where the experiment is about likelihood and calibration."""
    scores = results.experiment.scores[:4] if results.experiment.scores[0] == "nll" else results.experiment.scores[:1]
    series = [_series(FORMS[score][0], results.rows, score) for score in scores]
    bar_panels([row.label for row in results.rows], [row.method for row in results.rows], series, path)


def _curve(results: _Results, path: Any) -> None:
    varied = results.experiment.varied
    assert varied is not None  # an experiment with this figure varies a setting
    values = sorted({row.value for row in results.rows if row.value is not None})
    lines = []
    for method in dict.fromkeys(row.method for row in results.rows):
        own = {row.value: row for row in results.rows if row.method == method}
        lines.append(_series(method, [own.get(value) for value in values]))
    curves([varied.text(value) for value in values], lines, varied.name, path)


def _stacked(results: _Results, path: Any) -> None:
    visited = len(results.rows[0].corruptions)
    parts = {
        group: [sum(row.corruptions.get(name, 0.0) for name in names) / visited for row in results.rows]
        for group, names in GROUPS.items()
    }
    stacked_bars([row.label for row in results.rows], parts, "mean error (%), by group of corruptions", path)


def _gradual(results: _Results, path: Any) -> None:
    def steps(run: Run) -> list[float]:
        errors = [100 * part["error"] for part in run.summary()["domains"]]
        return np.reshape(errors, (-1, UP_AND_DOWN)).mean(0).tolist()  # type: ignore[no-any-return]

    ticks = [str(severity) for severity in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    curves(ticks, _over_runs(results, steps), "severity, in the order of the stream", path)


def _loops(results: _Results, path: Any) -> None:
    rounds = int(results.specs[0].protocol_options["rounds"])

    def errors(run: Run) -> list[float]:
        counts = np.array([[record["errors"], record["n"]] for record in run.records])
        wrong, seen = counts.reshape(rounds, -1, 2).sum(1).T
        return (100 * wrong / seen).tolist()  # type: ignore[no-any-return]

    curves([str(place) for place in range(1, rounds + 1)], _over_runs(results, errors), "round", path)


def _orders(results: _Results, path: Any) -> None:
    errors = {row.label: [100 * run.summary()["mean"]["error"] for run in results.members(row)] for row in results.rows}
    paper = {row.label: row.paper["error"] for row in results.rows if "error" in row.paper}
    dots(errors, paper, "mean error (%)", path)


def _drift(results: _Results, path: Any) -> None:
    notes = {"alpha": "α", "drift": "drift, KL(student, source)\nin nats per weight"}
    notes_along_stream(results.groups(), notes, path)


def _streams(results: _Results, path: Any) -> None:
    errors = {tuple(row.label.split(": ")): row.scores["error"] for row in results.rows}
    streams, methods = (list(dict.fromkeys(names)) for names in zip(*errors, strict=True))
    table = np.array([[errors.get((stream, method), math.nan) for method in methods] for stream in streams])
    stream_map(streams, methods, table, path)


def _cost(results: _Results, path: Any) -> None:
    costs = [Score(row.scores["seconds"]) for row in results.rows]
    errors = [Score(row.scores["error"], row.interval.get("error", math.nan)) for row in results.rows]
    named_points([row.label for row in results.rows], costs, errors, "seconds a corruption", path)


def _series(label: str, rows: Sequence[Row | None], score: str = "error") -> Series:
    """A score of some rows; not-a-number for a missing row."""
    return Series(
        label,
        [math.nan if row is None else row.scores[score] for row in rows],
        [math.nan if row is None else row.interval.get(score, math.nan) for row in rows],
        [math.nan if row is None else row.paper.get(score, math.nan) for row in rows],
    )


def _over_runs(results: _Results, read: Callable[[Run], list[float]]) -> list[Series]:
    """A line for each row: the mean over its runs of what ``read`` returns, with its interval."""
    lines = []
    for row in results.rows:
        columns = np.array([read(run) for run in results.members(row)]).T
        widths = [half_width(column) for column in columns]
        lines.append(Series(row.label, columns.mean(1).tolist(), widths, [math.nan] * len(columns)))
    return lines


_DRAWINGS: dict[str, Callable[[_Results, str | os.PathLike[str]], None]] = {
    "heat map": lambda results, path: error_heat_map(results.groups(), path),
    "streams": _streams,
    "groups": _stacked,
    "bars": _bars,
    "curve": _curve,
    "gradual": _gradual,
    "orders": _orders,
    "loops": _loops,
    "drift": _drift,
    "risk": lambda results, path: risk_against_coverage(results.groups(), path),
    "reliability": lambda results, path: reliability(results.groups(), path),
    "cost": _cost,
}
