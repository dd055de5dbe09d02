"""Comparison tables of runs, for the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vcotta.methods import RECONSTRUCTION_NOTE, marked
from vcotta.methods.card import MARK
from vcotta.report.groups import WHOLE_RUN, group_runs
from vcotta.report.stats import Score, domain_labels, without_rounding_noise
from vcotta.runs.run import Run

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ALL_COLUMNS", "Grid", "by_corruption", "comparison", "csv_text", "escaped", "footnote", "rows"]

ALL_COLUMNS = {  # heading and format of each score
    "error": ("Error %", ".1f"),
    "nll": ("NLL", ".3f"),
    "brier": ("Brier", ".3f"),
    "ece": ("ECE", ".3f"),
    "aurc": ("AURC", ".3f"),
    "seconds": ("Seconds", ".1f"),
    "forwards": ("Forwards", ".0f"),
    "backwards": ("Backwards", ".0f"),
}
COLUMNS = {key: ALL_COLUMNS[key] for key in ("error", "nll", "brier", "ece", "seconds")}


@dataclass(frozen=True)
class Grid:
    """A table of text.

    Attributes:
        header: A heading for each column; the first column has names, the others numbers.
        cells: Rows of text.
        best: Positions (row, column) of the cells in bold.
        title: What the table shows.
    """

    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]
    title: str = ""

    def rich(self) -> Table:
        """Return the table for ``rich.print``; reconstructions are marked (`vcotta.methods.marked`)."""
        from rich.table import Table
        from rich.text import Text

        header, cells, footnote = self._marked()
        table = Table(title=self.title or None, caption=footnote or None, caption_justify="left")
        for place, heading in enumerate(header):
            table.add_column(heading, justify="right" if place else "left", no_wrap=True)
        for r, row in enumerate(cells):
            table.add_row(*(Text(cell, style="bold" if (r, c) in self.best else "") for c, cell in enumerate(row)))
        return table

    def markdown(self) -> str:
        """Return the table as GitHub Markdown, ending in a line break; reconstructions are marked.

        Example:
            >>> print(Grid(("Method", "Error %"), (("source", "43.5"), ("bn", "20.4")), frozenset({(1, 1)})).markdown())
            | Method | Error % |
            |:--|--:|
            | source | 43.5 |
            | bn | **20.4** |
            <BLANKLINE>
        """
        header, cells, footnote = self._marked()
        shown = [
            [f"**{escaped(cell)}**" if (r, c) in self.best else escaped(cell) for c, cell in enumerate(row)]
            for r, row in enumerate(cells)
        ]
        rule = "|".join([":--"] + ["--:"] * (len(header) - 1))
        lines = ["| " + " | ".join(row) + " |" for row in (map(escaped, header), *shown)]
        return "\n".join([lines[0], f"|{rule}|", *lines[1:], *(["", footnote] if footnote else []), ""])

    def _marked(self) -> tuple[list[str], list[list[str]], str]:
        """Header and cells with reconstructions marked, and the footnote that explains the mark, if there is one."""
        header, cells = list(map(marked, self.header)), [[marked(row[0]), *row[1:]] for row in self.cells]
        return header, cells, footnote([*header, *(row[0] for row in cells)])


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each run: ``method``, ``error`` (per cent), ``nll``, ``brier``, ``ece`` and ``seconds``.

    Scores are the unweighted means over domains; seconds are those of all calls of the adapter.
    """
    table = []
    for run in runs:
        summary: Mapping[str, Any] = run.summary()
        scores = {key: summary["mean"][key] for key in ("nll", "brier", "ece")}
        error = 100 * summary["mean"]["error"]
        table.append({"method": run.method, "error": error, **scores, "seconds": summary["seconds"]})
    return table


def comparison(runs: Sequence[Run], columns: Mapping[str, tuple[str, str]] = COLUMNS) -> Grid:
    """Return the means over domains, a line for each method and setting; the best of each column but cost is marked.

    Several seeds are shown as their mean and its 95 % interval (`half_width`).
    """
    groups = group_runs(runs)
    header = ("Method", *(heading for heading, _ in columns.values()))
    scores = {key: [group.score(key) for group in groups] for key in columns}
    cells = tuple(
        (group.label, *(scores[key][r].text(form) for key, (_, form) in columns.items()))
        for r, group in enumerate(groups)
    )
    best = {
        (r, c)
        for c, (key, (_, form)) in enumerate(columns.items(), 1)
        if key not in WHOLE_RUN
        for r in _lowest(scores[key], form)
    }
    return Grid(header, cells, frozenset(best), "Means over corruptions")


def by_corruption(runs: Sequence[Run]) -> Grid:
    """Return the error in per cent, a line for each domain, a column for each method; the best of a line is marked."""
    groups = group_runs(runs)
    names = (*groups[0].domains, "mean")
    values = list(zip(*([*group.domain_errors(), group.error] for group in groups), strict=True))
    cells = tuple((name, *(value.text(".1f") for value in line)) for name, line in zip(names, values, strict=True))
    best = {(r, c + 1) for r, line in enumerate(values) for c in _lowest(line, ".1f")}
    return Grid(("Corruption", *(group.label for group in groups)), cells, frozenset(best), "Error in per cent")


def csv_text(runs: Mapping[str, Run]) -> str:
    """Return a line for each run of one stream: unrounded scores (fractions and nats), cost, and errors by domain."""
    labels = {id(run): group.label for group in group_runs(list(runs.values())) for run in group.runs}
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for place, (folder, run) in enumerate(runs.items()):
        summary: Mapping[str, Any] = run.summary()
        line = {
            "run": folder,
            "method": run.method,
            "label": labels[id(run)],
            "seed": run.manifest.get("seed"),
            **summary["mean"],
            **{key: summary[key] for key in WHOLE_RUN},
            **{f"error {label}": part["error"] for label, part in _numbered(summary)},
        }
        if not place:
            writer.writerow(line)
        writer.writerow(line.values())
    return file.getvalue()


def _numbered(summary: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Each domain with its label, numbered if it is visited again, so that columns are distinct."""
    labels = domain_labels(summary["domains"])
    again = [f" ({labels[:place].count(label) + 1})" * (label in labels[:place]) for place, label in enumerate(labels)]
    return [(label + more, part) for label, more, part in zip(labels, again, summary["domains"], strict=True)]


def _lowest(scores: Sequence[Score], form: str) -> list[int]:
    """The positions of the smallest mean and those equal to it once rounded; none if all are equal."""
    shown = [f"{without_rounding_noise(score.mean):{form}}" for score in scores]
    if len(set(shown)) < 2:
        return []
    means = [math.inf if math.isnan(score.mean) else score.mean for score in scores]
    least = shown[means.index(min(means))]
    return [place for place, text in enumerate(shown) if text == least]


def footnote(labels: Iterable[str]) -> str:
    """Return the footnote of a table with these labels: what the mark of a reconstruction means, if there is one."""
    return RECONSTRUCTION_NOTE if any(MARK in label for label in labels) else ""


def escaped(cell: str) -> str:
    r"""Return text that Markdown shows as it is.

    Example:
        >>> print(escaped("a|b <i>"))
        a\|b &lt;i>
    """
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
