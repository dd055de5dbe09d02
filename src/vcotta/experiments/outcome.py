"""The results of an experiment: a row for each label, our scores beside the paper's."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vcotta.corruptions import GROUPS
from vcotta.experiments.paper.experiment import Experiment
from vcotta.report.stats import half_width
from vcotta.report.tables import Grid
from vcotta.runs.run import Run, Summary
from vcotta.runs.spec import RunSpec

__all__ = ["FORMS", "Row", "by_corruption", "outcome", "read_rows", "rows_as_csv", "rows_as_json", "table"]

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
"""Images of a corruption for which the paper prints seconds."""
COSTS = ("seconds", "peak_gib", "forwards", "backwards")


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        label: Its name.
        method: The method.
        value: The value of the setting that the experiment varies, or None.
        runs: Number of runs.
        scores: The mean of each score over the runs; errors in per cent. ``spread`` is the standard deviation of the
            error over the runs of a seed, which differ in their order, averaged over seeds.
        interval: Half the width of the 95 % interval of each mean over seeds (`half_width`); empty for a single seed.
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


def outcome(
    experiment: Experiment,
    dataset: str,
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    paper_images: int = PAPER_IMAGES,
) -> list[Row]:
    """Average the runs of each label, first those of a seed, in the order of the experiment.

    The paper prints seconds for ``paper_images`` images of a corruption; those of other sizes are not compared.
    """
    together: dict[str, list[tuple[RunSpec, Run]]] = {}
    for spec, run in zip(specs, runs, strict=True):
        together.setdefault(spec.label, []).append((spec, _steady_timing(run)))
    return [_row(experiment, dataset, members, paper_images) for members in together.values()]


def _steady_timing(run: Run) -> Run:
    """Return a run whose first batch, in which torch may compile, is timed as the mean of the others."""
    first, *later = run.timing
    if not later:
        return run
    seconds = statistics.fmean(line["seconds"] for line in later)
    return Run(run.manifest, run.records, [{**first, "seconds": seconds}, *later])


def _row(experiment: Experiment, dataset: str, members: Sequence[tuple[RunSpec, Run]], paper_images: int) -> Row:
    spec, summaries = members[0][0], [run.summary() for _, run in members]
    by_seed: dict[int, list[dict[str, float]]] = {}
    for (member, run), summary in zip(members, summaries, strict=True):
        by_seed.setdefault(member.seed, []).append(_scores(summary, len(run.records)))
    columns = {
        score: [statistics.fmean(one[score] for one in found) for found in by_seed.values()]
        for score in FORMS
        if score != "spread"
    }
    spreads = [statistics.stdev(one["error"] for one in found) for found in by_seed.values() if len(found) > 1]
    means = {score: statistics.fmean(values) for score, values in columns.items()}
    scores = means | {"spread": statistics.fmean(spreads) if spreads else math.nan}
    paper = {
        score: values[dataset][spec.label]
        for score, values in experiment.paper.items()
        if spec.label in values.get(dataset, {})
    }
    images = {part["n"] for summary in summaries for part in summary["domains"]}
    if images != {paper_images} or any("views" in member.options for member, _ in members):
        paper.pop("seconds", None)  # a corruption was not as much work as the paper's
    return Row(
        spec.label,
        spec.method,
        None if experiment.varied is None else float(experiment.varied.of(spec)),
        len(members),
        {score: scores[score] for score in FORMS},
        {score: half_width(values) for score, values in columns.items()} if len(by_seed) > 1 else {},
        _by_corruption(summaries),
        paper,
        {score: scores[score] - value for score, value in paper.items()},
    )


def _scores(summary: Summary, batches: int) -> dict[str, float]:
    domains = summary["domains"]
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


def _by_corruption(summaries: Sequence[Summary]) -> dict[str, float]:
    """The mean error on each corruption, over runs, visits and severities, in the order of the first run."""
    found: dict[str, list[float]] = {}
    for summary in summaries:
        for part in summary["domains"]:
            found.setdefault(part["domain"], []).append(100 * part["error"])
    return {name: statistics.fmean(errors) for name, errors in found.items()}


def table(experiment: Experiment, rows: Sequence[Row]) -> Grid:
    """Return the rows as a table: means, with their 95 % intervals over seeds, and the paper's values beside them."""
    printed, several = _printed(experiment, rows), any(row.runs > 1 for row in rows)
    header, columns, best = [""], [[row.label for row in rows]], set()
    for score in experiment.scores:
        heading, form, _ = FORMS[score]
        values = [row.scores[score] for row in rows]
        if score not in (*COSTS, "spread") and len(rows) > 1:
            best |= {(place, len(header)) for place, value in enumerate(values) if value == min(values)}
        header.append(heading)
        columns.append([_cell(row, score) for row in rows])
        if score in printed:
            header += ["paper", "difference"]
            columns.append([_number(row.paper.get(score, math.nan), form) for row in rows])
            columns.append([_number(row.difference.get(score, math.nan), f"+{form}") for row in rows])
    if several:
        header.append("runs")
        columns.append([str(row.runs) for row in rows])
    lines = tuple(zip(*columns, strict=True))
    return Grid(tuple(header), lines, frozenset(best), f"{experiment.name}: {experiment.title}")


def by_corruption(experiment: Experiment, dataset: str, rows: Sequence[Row]) -> Grid:
    """Return the error of each row on each corruption, C1 to C15 as in the paper, the paper's rows below ours."""
    names = list(rows[0].corruptions) if rows else []
    printed = (experiment.by_corruption or {}).get(dataset, {})
    lowest = [min(row.corruptions[name] for row in rows) for name in names]
    lines: list[tuple[str, ...]] = []
    best: set[tuple[int, int]] = set()
    for row in rows:
        errors = [row.corruptions[name] for name in names]
        if len(rows) > 1:
            best |= {(len(lines), column + 1) for column, error in enumerate(errors) if error == lowest[column]}
        lines.append((row.label, *(f"{error:.1f}" for error in [*errors, row.scores["error"]])))
        paper = printed.get(row.label, [])
        if len(paper) == len(names) > 0:
            lines.append((f"{row.label}, paper", *(f"{error:.1f}" for error in [*paper, row.paper["error"]])))
    header = ("", *(f"C{place + 1}" for place in range(len(names))), "mean")
    return Grid(header, tuple(lines), frozenset(best), f"{experiment.name}: error by corruption")


def _cell(row: Row, score: str) -> str:
    form, width = FORMS[score][1], row.interval.get(score, math.nan)
    shown = _number(row.scores[score], form)
    return shown if math.isnan(width) or score in COSTS else f"{shown} ± {width:{form}}"


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def rows_as_csv(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Return the rows as CSV with full precision."""
    lines = [
        {
            "label": row.label,
            **{score: row.scores[score] for score in experiment.scores},
            **{f"{score}_interval": row.interval.get(score) for score in experiment.scores if score != "spread"},
            "runs": row.runs,
            **{f"{score}_paper": row.paper.get(score) for score in _printed(experiment, rows)},
        }
        for row in rows
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([*([list(lines[0])] if lines else []), *(line.values() for line in lines)])
    return text.getvalue()


def _printed(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """The scores that the paper prints for any of the rows."""
    return [score for score in experiment.scores if any(score in row.paper for row in rows)]


def rows_as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for JSON, which has no infinity and no not-a-number: these are written as words."""
    return [_with_numbers(asdict(row), lambda value: value if math.isfinite(value) else str(value)) for row in rows]


def read_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows that `rows_as_json` wrote.

    Example:
        >>> row = Row("bn", "bn", None, 1, {"nll": math.inf}, {}, {}, {}, {})
        >>> read_rows(rows_as_json([row])) == [row]
        True
    """
    return [Row(**_with_numbers(row, float)) for row in rows]


def _with_numbers(row: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a row with every number of its dictionaries changed."""
    return {
        key: {name: change(number) for name, number in value.items()} if isinstance(value, dict) else value
        for key, value in row.items()
    }
