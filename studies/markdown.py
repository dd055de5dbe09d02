"""Markdown tables and lists of words, as the pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vcotta.methods import marked
from vcotta.report.tables import footnote


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Return a table whose first ``left`` columns are aligned to the left and the others to the right.

    Reconstructions of methods are marked in headings and first column, and a footnote says what that means.
    """
    rule = "|:--" * left + "|--:" * (len(headings) - left) + "|"
    shown = [list(map(str, headings)), *([marked(str(first)), *map(str, cells)] for first, *cells in rows)]
    shown[0] = list(map(marked, shown[0]))
    note = footnote([*shown[0], *(cells[0] for cells in shown)])
    lines = [f"| {' | '.join(cells)} |" for cells in shown]
    return "\n".join([lines[0], rule, *lines[1:], *(["", note] if note else [])])


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence has them: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
