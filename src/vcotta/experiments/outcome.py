"""What came out of an experiment: one row a label, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vcotta.corruptions import GROUPS
from vcotta.experiments.cells import Cell
from vcotta.experiments.entry import Entry
from vcotta.report.tables import Grid
from vcotta.runs import Run

__all__ = [
    "FORMS",
    "Row",
    "by_corruption",
    "interval",
    "outcome",
    "read_rows",
    "rows_as_csv",
    "rows_as_json",
    "steady",
    "table",
]

FORMS = {  # score: heading, format, factor
    "error": ("Error %", ".2f", 100.0),
    **{group: (f"{group} %", ".2f", 100.0) for group in GROUPS},
    "nll": ("NLL", ".3f", 1.0),
    "brier": ("Brier", ".3f", 1.0),
    "ece": ("ECE", ".3f", 1.0),
    "aurc": ("AURC", ".4f", 1.0),
    "seconds": ("s a corruption", ".3g", 1.0),
    "peak_gib": ("peak GiB", ".2f", 1.0),
    "forwards": ("forwards a batch", ".1f", 1.0),
    "backwards": ("backwards a batch", ".1f", 1.0),
    "spread": ("std over orders", ".2f", 1.0),
}
PAPER_IMAGES = 10_000
"""Images of a corruption that the paper's seconds are for."""
COSTS = ("seconds", "peak_gib", "forwards", "backwards")

# Student's t at 97.5 per cent for 1 to 30 degrees of freedom.
_T: tuple[float, ...] = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
_T += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        label: Its name.
        method: The method.
        value: The setting that the experiment varies, or None.
        runs: How many runs.
        scores: For each score its mean over the runs; errors in per cent. ``spread`` is the standard deviation of the
            error over the runs of a seed, which differ in their order, averaged over seeds.
        interval: For each score half the width of the 95 % interval of that mean over seeds; empty for a single one.
        corruptions: The mean error on each corruption, in per cent.
        paper: The paper's values of some of the scores.
        difference: Ours minus the paper's.
    """

    label: str
    method: str
    value: float | None
    runs: int
    scores: dict[str, float]
    interval: dict[str, float]
    corruptions: dict[str, float]
    paper: dict[str, float]
    difference: dict[str, float]


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean (Student's t), not a number for fewer than two values.

    Example:
        >>> round(interval([1.0, 2.0, 3.0]), 3)
        2.484
    """
    count = len(values)
    if count < 2 or not all(math.isfinite(value) for value in values):
        return math.nan
    factor = _T[count - 2] if count - 2 < len(_T) else 1.96
    return factor * statistics.stdev(values) / math.sqrt(count)


def outcome(entry: Entry, dataset: str, cells: Sequence[Cell], runs: Sequence[Run]) -> list[Row]:
    """Average the runs of each label, first those of a seed, in the order of the entry.

    Example:
        >>> from vcotta.experiments.entries import ENTRIES
        >>> outcome(ENTRIES["margin"], "digits", [], [])
        []
    """
    together: dict[str, list[tuple[Cell, dict[str, Any]]]] = {}
    for cell, run in zip(cells, runs, strict=True):
        together.setdefault(cell.label, []).append((cell, steady(run).summary() | {"batches": len(run.records)}))
    return [_row(entry, dataset, members) for members in together.values()]


def steady(run: Run) -> Run:
    """Return a run whose first batch, in which torch may compile, took as long as the others did on average."""
    first, *later = run.timing
    if not later:
        return run
    seconds = statistics.fmean(line["seconds"] for line in later)
    return Run(run.manifest, run.records, [first | {"seconds": seconds}, *later])


def _row(entry: Entry, dataset: str, members: Sequence[tuple[Cell, dict[str, Any]]]) -> Row:
    cell = members[0][0]
    by_seed: dict[int, list[dict[str, float]]] = {}
    for member, summary in members:
        by_seed.setdefault(member.seed, []).append(_scores(summary))
    columns = {
        score: [statistics.fmean(one[score] for one in found) for found in by_seed.values()]
        for score in FORMS
        if score != "spread"
    }
    scores = {score: statistics.fmean(values) for score, values in columns.items()}
    spreads = [statistics.stdev(one["error"] for one in found) for found in by_seed.values() if len(found) > 1]
    scores["spread"] = statistics.fmean(spreads) if spreads else math.nan
    widths = {score: interval(values) for score, values in columns.items()} if len(by_seed) > 1 else {}
    printed = {score: values.get(dataset, {}).get(cell.label) for score, values in entry.paper.items()}
    paper = {score: value for score, value in printed.items() if value is not None}
    if not _papers_work(members):
        paper.pop("seconds", None)
    return Row(
        cell.label,
        cell.method,
        None if entry.varied is None else float(entry.varied.of(cell)),
        len(members),
        {score: scores[score] for score in FORMS},
        widths,
        _by_corruption([summary for _, summary in members]),
        paper,
        {score: scores[score] - value for score, value in paper.items()},
    )


def _papers_work(members: Sequence[tuple[Cell, dict[str, Any]]]) -> bool:
    """Whether a corruption was as much work as the paper's: as many images, and no fewer views than usual."""
    images = {part["n"] for _, summary in members for part in summary["domains"]}
    return images == {PAPER_IMAGES} and not any("views" in cell.options for cell, _ in members)


def _scores(summary: dict[str, Any]) -> dict[str, float]:
    domains, batches = summary["domains"], summary["batches"]
    errors = {
        group: [part["error"] for part in domains if part["domain"] in members] for group, members in GROUPS.items()
    }
    values: dict[str, float] = {
        **summary["mean"],
        **{group: statistics.fmean(found) if found else math.nan for group, found in errors.items()},
        "seconds": summary["seconds"] / len(domains),
        "peak_gib": summary["peak_memory"] / 2**30,
        "forwards": summary["forwards"] / batches,
        "backwards": summary["backwards"] / batches,
    }
    return {score: factor * values[score] for score, (_, _, factor) in FORMS.items() if score in values}


def _by_corruption(summaries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean error on each corruption, over runs, visits and severities, in the order of the first run."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        for part in summary["domains"]:
            found.setdefault(part["domain"], []).append(100 * part["error"])
    return {name: statistics.fmean(errors) for name, errors in found.items()}


def table(entry: Entry, rows: Sequence[Row]) -> Grid:
    """The rows as a table: mean, over several runs with the 95 % interval, and the paper's beside it."""
    header, several = [""], any(row.runs > 1 for row in rows)
    for score in entry.scores:
        header.append(FORMS[score][0])
        if any(score in row.paper for row in rows):
            header += ["paper", "difference"]
    lines, best = [], set()
    for place, row in enumerate(rows):
        line = [row.label]
        for score in entry.scores:
            shown, form = [other.scores[score] for other in rows], FORMS[score][1]
            if score not in (*COSTS, "spread") and len(rows) > 1 and row.scores[score] == min(shown):
                best.add((place, len(line)))
            line.append(_cell(row, score))
            if any(score in other.paper for other in rows):
                paper, gap = row.paper.get(score, math.nan), row.difference.get(score, math.nan)
                line += [_number(paper, form), _number(gap, f"+{form}")]
        lines.append((*line, str(row.runs)) if several else tuple(line))
    return Grid(
        (*header, "runs") if several else tuple(header), tuple(lines), frozenset(best), f"{entry.name}: {entry.title}"
    )


def by_corruption(entry: Entry, dataset: str, rows: Sequence[Row]) -> Grid:
    """The error of each row on each corruption, the paper's rows below ours; the corruptions are numbered as there."""
    names = list(rows[0].corruptions) if rows else []
    printed = (entry.by_corruption or {}).get(dataset, {})
    header = ("", *(f"C{place}" for place in range(1, len(names) + 1)), "mean")
    lines: list[tuple[str, ...]] = []
    best: set[tuple[int, int]] = set()
    lowest = [min((row.corruptions[name] for row in rows), default=math.nan) for name in names]
    for row in rows:
        errors = [row.corruptions[name] for name in names]
        best |= {
            (len(lines), c) for c, (error, least) in enumerate(zip(errors, lowest, strict=True), 1) if error == least
        }
        lines.append((row.label, *(f"{error:.1f}" for error in errors), f"{row.scores['error']:.1f}"))
        if row.label in printed and len(printed[row.label]) == len(names):
            paper = printed[row.label]
            lines.append((f"{row.label}, paper", *(f"{e:.1f}" for e in paper), f"{row.paper['error']:.1f}"))
    return Grid(header, tuple(lines), frozenset(best if len(rows) > 1 else ()), f"{entry.name}: error by corruption")


def _cell(row: Row, score: str) -> str:
    form, width = FORMS[score][1], row.interval.get(score, math.nan)
    shown = _number(row.scores[score], form)
    return shown if math.isnan(width) or score in COSTS else f"{shown} ± {width:{form}}"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def rows_as_csv(entry: Entry, rows: Sequence[Row]) -> str:
    """The rows as CSV with full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    spare = [score for score in entry.scores if score != "spread"]
    papers = [score for score in entry.scores if any(score in row.paper for row in rows)]
    header = [*entry.scores, *(f"{score}_interval" for score in spare), "runs", *(f"{score}_paper" for score in papers)]
    writer.writerow(["label", *header])
    for row in rows:
        values = [row.scores[score] for score in entry.scores] + [row.interval.get(score, "") for score in spare]
        writer.writerow([row.label, *values, row.runs, *(row.paper.get(score, "") for score in papers)])
    return text.getvalue()


def rows_as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON takes them: what is no finite number is a word."""
    return [_worded(asdict(row)) for row in rows]


def read_rows(told: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of `rows_as_json` again.

    Example:
        >>> row = Row("bn", "bn", None, 1, {"nll": math.inf}, {}, {}, {}, {})
        >>> read_rows(rows_as_json([row])) == [row]
        True
    """
    return [Row(**_numbered(dict(row))) for row in told]


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _each(value, lambda v: v if math.isfinite(v) else str(v)) for key, value in row.items()}


def _numbered(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _each(value, float) for key, value in row.items()}


def _each(value: Any, change: Any) -> Any:
    return {key: change(number) for key, number in value.items()} if isinstance(value, dict) else value
