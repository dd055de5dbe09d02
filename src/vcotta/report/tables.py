"""Comparison tables of runs, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vcotta.report.domains import same_domains
from vcotta.runs import Run

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Grid", "by_corruption", "comparison", "rows"]

COLUMNS = {  # key of a row: heading, format
    "error": ("Error %", ".1f"),
    "nll": ("NLL", ".3f"),
    "brier": ("Brier", ".3f"),
    "ece": ("ECE", ".3f"),
    "seconds": ("Seconds", ".1f"),
}


@dataclass(frozen=True)
class Grid:
    """A table as text, ready to be drawn.

    Attributes:
        header: One heading a column; the first column holds names, the others numbers.
        cells: Rows of text.
        best: Places (row, column) of the cells to set in bold.
        title: What the table shows.
    """

    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]
    title: str = ""

    def rich(self) -> Table:
        """Return the table for ``rich.print``."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=self.title or None)
        for place, heading in enumerate(self.header):
            table.add_column(heading, justify="right" if place else "left", no_wrap=True)
        for r, row in enumerate(self.cells):
            table.add_row(*(Text(cell, style="bold" if (r, c) in self.best else "") for c, cell in enumerate(row)))
        return table

    def markdown(self) -> str:
        """Return the table as GitHub Markdown, ending in a line break.

        Example:
            >>> print(Grid(("Method", "Error %"), (("source", "43.5"), ("bn", "20.4")), frozenset({(1, 1)})).markdown())
            | Method | Error % |
            |:--|--:|
            | source | 43.5 |
            | bn | **20.4** |
            <BLANKLINE>
        """
        marked = [
            [f"**{cell}**" if (r, c) in self.best else cell for c, cell in enumerate(row)]
            for r, row in enumerate(self.cells)
        ]
        rule = "|".join([":--"] + ["--:"] * (len(self.header) - 1))
        lines = ["| " + " | ".join(row) + " |" for row in (self.header, *marked)]
        return "\n".join([lines[0], f"|{rule}|", *lines[1:], ""])


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one row a run: ``method``, ``error`` (per cent), ``nll``, ``brier``, ``ece`` and ``seconds``.

    Scores are the unweighted means over domains; seconds are those of all calls of the adapter.
    """
    table = []
    for run in runs:
        summary = run.summary()
        mean = summary["mean"]
        table.append(
            {
                "method": run.method,
                "error": 100 * mean["error"],
                "nll": mean["nll"],
                "brier": mean["brier"],
                "ece": mean["ece"],
                "seconds": summary["seconds"],
            }
        )
    return table


def comparison(runs: Sequence[Run]) -> Grid:
    """Return the table of `rows`, one line a run, the best score of each column marked (being quick is no score)."""
    table = rows(runs)
    header = ("Method", *(heading for heading, _ in COLUMNS.values()))
    cells = tuple((row["method"], *(f"{row[key]:{form}}" for key, (_, form) in COLUMNS.items())) for row in table)
    best = {
        (r, c)
        for c, key in enumerate(COLUMNS, 1)
        if key != "seconds"
        for r in _lowest([row[key] for row in table], [row[c] for row in cells])
    }
    return Grid(header, cells, frozenset(best), "Means over corruptions")


def by_corruption(runs: Sequence[Run]) -> Grid:
    """Return the error in per cent, one line a domain and a last one for their mean, one column a run.

    The best run of each line is marked. Lines are domains rather than methods so that fifteen of them fit a terminal.
    """
    summaries, labels = same_domains(runs)
    values = [[100 * summary["domains"][place]["error"] for summary in summaries] for place in range(len(labels))] + [
        [100 * summary["mean"]["error"] for summary in summaries]
    ]
    cells = tuple(
        (label, *(f"{value:.1f}" for value in line)) for label, line in zip([*labels, "mean"], values, strict=True)
    )
    best = {(r, c + 1) for r, line in enumerate(values) for c in _lowest(line, cells[r][1:])}
    return Grid(("Corruption", *(run.method for run in runs)), cells, frozenset(best), "Error in per cent")


def _lowest(values: Sequence[float], shown: Sequence[str]) -> list[int]:
    """Return the places of the smallest value and of those that look the same once rounded; none if all do."""
    if len(set(shown)) < 2:
        return []
    least = shown[min(range(len(values)), key=values.__getitem__)]
    return [place for place, text in enumerate(shown) if text == least]
