"""Draw every table and number of README.md and the pages from result files.

    make tables                  # or: python -m studies.update

A page marks what is drawn by ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``. The texts come from the dictionary
``TABLES`` of each ``studies/NAME/table.py``, of ``benchmarks/table.py``, of ``studies/results_table.py``, and of
``studies/package_tables.py``, which shows the package itself. Result files are made by the ``run.py`` beside them,
never by hand.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

from studies.files import ROOT, STUDIES
from studies.methods.picture import draw_published
from studies.streams.picture import draw_streams

PAGES = (
    ROOT / "README.md",
    ROOT / "benchmarks" / "page.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    STUDIES / "README.md",
    *sorted(STUDIES.glob("*/page.md")),
)


def tables() -> dict[str, Callable[[], str]]:
    """Return what draws each marked text, by its name."""
    modules = ["benchmarks.table", "studies.package_tables", "studies.results_table"]
    modules += [f"studies.{path.parent.name}.{path.stem}" for path in sorted(STUDIES.glob("*/table*.py"))]
    found: dict[str, Callable[[], str]] = {}
    for name in modules:
        drawn = importlib.import_module(name).TABLES
        if twice := found.keys() & drawn.keys():
            raise ValueError(f"Expected each table to be drawn once, but {name} draws {', '.join(twice)} again.")
        found |= drawn
    return found


def updated(page: str, drawn: dict[str, Callable[[], str]]) -> str:
    """Return a page with the text between its markers drawn anew.

    Raises:
        ValueError: A marker has no table, or no end.
    """
    for name in re.findall(r"<!-- (\S+):begin -->", page):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if name not in drawn or end not in page:
            raise ValueError(f"Expected a table {name} and an end of its marker, but there is none.")
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{drawn[name]()}\n{end}{rest.split(end)[1]}"
    return page


def main(pages: tuple[Path, ...] = PAGES) -> None:
    """Draw all pages, the pictures of methods and the heat maps of streams."""
    drawn = tables()
    draw_published()
    draw_streams()
    importlib.import_module("studies.equal-terms.picture").draw_starts()  # a dash is no name for an import statement
    for path in pages:
        path.write_text(updated(path.read_text(encoding="utf-8"), drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
