"""The tables of ImageNet-C, Tiny-ImageNet-C and PACS."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from studies.files import results_of
from studies.markdown import listed, table
from studies.scores import SCORES, Row, circumstances, mean_errors, mean_scores, read_rows

RESULTS = results_of("imagenet")
TITLES = {"imagenetc": "ImageNet-C", "tiny-imagenetc": "Tiny-ImageNet-C", "pacs": "PACS"}


def rows_of(part: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a part, none if it was not run."""
    return read_rows(folder / f"{part}.json")


def part_text(part: str, folder: Path = RESULTS) -> str:
    """Return the tables of a part, one for each stream and number of images, or say that it was not measured."""
    rows = rows_of(part, folder)
    if not rows:
        return f"Not measured yet: `python -m studies.imagenet.run {part}`."
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row["protocol"], row["network"], row["images"]), []).append(row)
    parts = []
    for (protocol, network, images), chosen in kinds.items():
        count = f"{images} images of each domain" if images else "all images"
        parts += [f"{TITLES[part]}, {protocol}, {network}, {count}:", _scores(chosen), _domains(chosen), _note(chosen)]
    return "\n\n".join(parts)


def summary_text(folder: Path = RESULTS) -> str:
    """Say which parts were measured, and VCoTTA's error beside that of the best other method."""
    lines = []
    for part, title in TITLES.items():
        rows = [row for row in rows_of(part, folder) if row["protocol"] == "continual"]
        errors = {name: _error(group) for name, group in _groups(rows).items()}
        ours = {name: error for name, error in errors.items() if name.startswith("vcotta")}
        others = {name: error for name, error in errors.items() if name not in ours}
        if not (ours and others):
            lines.append(f"{title} is not measured yet.")
            continue
        (mine, error), (best, least) = (min(found.items(), key=lambda pair: pair[1]) for found in (ours, others))
        lines.append(f"On {title} {mine} has {error:.2f} % and the best of the others measured, {best}, {least:.2f} %.")
    return " ".join(lines)


def label(row: Row) -> str:
    """Return the name of a row: the method, and its preset and warmed network if it has them."""
    words = [word for word in (row["preset"], row["start"] if row["start"] == "warmed" else None) if word]
    return f"{row['method']} ({', '.join(words)})" if words else str(row["method"])


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the rows of all seeds by label, the lowest error first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row)
    return dict(sorted(found.items(), key=lambda pair: _error(pair[1])))


def _error(rows: list[Row]) -> float:
    return statistics.fmean(row["error"] for row in rows)


def _scores(rows: list[Row]) -> str:
    cells = [[name, *mean_scores(group, SCORES)] for name, group in _groups(rows).items()]
    return table(["Method", *(heading for heading, _ in SCORES.values())], cells)


def _domains(rows: list[Row]) -> str:
    """Return the error on each domain."""
    headings = ["Method", *(domain.replace("_", " ") for domain in rows[0]["domains"])]
    return table(headings, [[name, *mean_errors(group)] for name, group in _groups(rows).items()])


def _note(rows: list[Row]) -> str:
    """Say in which batches, with which seeds and views, and on which machine the rows were made."""
    views = [str(count) for count in sorted({row["views"] for row in rows if row["views"] is not None})]
    said = f"; {listed(views)} views" if views else ""
    return f"{circumstances(rows)}{said} (`studies/imagenet/run.py`)."


TABLES: dict[str, Callable[[], str]] = {
    "imagenet-summary": summary_text,
    **{f"imagenet-{part}": partial(part_text, part) for part in TITLES},
}
