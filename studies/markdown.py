"""Markdown tables and lists of words, as the pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Return a table whose first ``left`` columns are aligned to the left and the others to the right."""
    rule = "|:--" * left + "|--:" * (len(headings) - left) + "|"
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (headings, *rows)]
    return "\n".join([lines[0], rule, *lines[1:]])


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence has them: "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
