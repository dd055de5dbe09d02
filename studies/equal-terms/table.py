"""The tables of all methods on equal terms."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from studies.files import results_of
from studies.markdown import table
from studies.scores import SCORES, Row, circumstances, mean_errors, mean_scores, read_rows

RESULTS = results_of("equal-terms")
TITLES = {"cifar10c": "CIFAR10-C", "cifar100c": "CIFAR100-C", "digits": "The digits stream"}
SHOWN = SCORES | {"forwards": ("Forwards", ".1f"), "backwards": ("Backwards", ".1f")}


def rows_of(part: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a part, none if it was not run."""
    return read_rows(folder / f"{part}.json")


def kinds_of(part: str, folder: Path = RESULTS) -> dict[tuple[str, int | None], list[Row]]:
    """Return the rows of a part by network and number of images, in the order in which they were measured."""
    kinds: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows_of(part, folder):
        kinds.setdefault((row["network"], row["images"]), []).append(row)
    return kinds


def part_text(part: str, folder: Path = RESULTS) -> str:
    """Return the tables of a part, one for each number of images, or say that it was not measured."""
    kinds = kinds_of(part, folder)
    if not kinds:
        return f"{TITLES[part]} is not measured yet: `python -m studies.equal-terms.run {part}`."
    picture = f"![Error of each method from the plain and from the warmed network](results/{part}.png)"
    return "\n\n".join([picture, *(_kind_text(part, *kind, rows) for kind, rows in kinds.items())])


def summary_text(folder: Path = RESULTS) -> str:
    """Say which parts were measured, and VCoTTA's error beside that of the best other method."""
    lines = []
    for part, title in TITLES.items():
        means = means_of(_compared(rows_of(part, folder)))
        ours = {key: error for key, error in means.items() if key[0].startswith("vcotta")}
        others = {key: error for key, error in means.items() if key not in ours}
        if not (ours and others):
            lines.append(f"{title} is not measured yet.")
            continue
        (own, least), (name, start) = min(ours, key=ours.__getitem__), min(others, key=others.__getitem__)
        lines.append(
            f"{title}: {own} has {ours[own, least]:.2f} % from the {least} network, the best of the others measured, "
            f"{name}, {others[name, start]:.2f} % from the {start} one."
        )
    return " ".join(lines)


def _compared(rows: list[Row]) -> list[Row]:
    """Return the rows of all images, or else of the most, of which VCoTTA has some and other methods, too."""
    for count in sorted({row["images"] for row in rows}, key=lambda images: -(images or math.inf)):
        found = [row for row in rows if row["images"] == count]
        if 0 < sum(row["method"] == "vcotta" for row in found) < len(found):
            return found
    return []


def _groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of all seeds by the name of the method and the start."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((_name(row), row["start"]), []).append(row)
    return dict(sorted(found.items(), key=lambda pair: statistics.fmean(row["error"] for row in pair[1])))


def _name(row: Row) -> str:
    """Return the method of a row, with its preset and views if it has them."""
    views = None if row["views"] is None else f"{row['views']} views"
    words = [word for word in (row["preset"], views) if word]
    return f"{row['method']} ({', '.join(words)})" if words else str(row["method"])


def means_of(rows: list[Row]) -> dict[tuple[str, str], float]:
    """Return the mean error over seeds by the name of the method and the start, the lowest first."""
    return {key: statistics.fmean(row["error"] for row in group) for key, group in _groups(rows).items()}


def _kind_text(part: str, network: str, images: int | None, rows: list[Row]) -> str:
    """Return scores and cost of each method and start, the lowest error first, and the errors by corruption."""
    groups = _groups(rows)
    cells = [[name, start, *mean_scores(group, SHOWN)] for (name, start), group in groups.items()]
    headings = ["Method", "Network", *(heading for heading, _ in SHOWN.values())]
    by_corruption = [[f"{name}, {start}", *mean_errors(group)] for (name, start), group in groups.items()]
    domains = [domain.replace("_", " ") for domain in rows[0]["domains"]]
    count = f"{images} images of each corruption" if images else "all images"
    title = f"{TITLES[part]}, {network}, {count}:"
    tables = (table(headings, cells, left=2), table(["Error %", *domains], by_corruption))
    note = f"{circumstances(rows)} (`studies/equal-terms/run.py`). Seconds are for a corruption, the first left out; "
    note += "passes are over a batch."
    return "\n\n".join([title, *tables, note])


TABLES: dict[str, Callable[[], str]] = {
    "equal-summary": summary_text,
    **{f"equal-{part}": functools.partial(part_text, part) for part in TITLES},
}
