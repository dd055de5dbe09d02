"""The tables of ImageNet-C, Tiny-ImageNet-C and PACS."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from studies.files import results_of
from studies.markdown import listed, table

RESULTS = results_of("imagenet")
TITLES = {"imagenetc": "ImageNet-C", "tiny-imagenetc": "Tiny-ImageNet-C", "pacs": "PACS"}
SCORES = {
    "error": ("Error %", ".2f"),
    "nll": ("NLL", ".3f"),
    "brier": ("Brier", ".3f"),
    "ece": ("ECE", ".3f"),
    "seconds_per_corruption": ("Seconds", ".1f"),
    "peak_gib": ("GiB", ".1f"),
}

Row = dict[str, Any]


def rows_of(part: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a part, none if it was not run."""
    path = folder / f"{part}.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


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
        ours = {name: error for name, error in _means(rows).items() if name.startswith("vcotta")}
        others = {name: error for name, error in _means(rows).items() if not name.startswith("vcotta")}
        if not (ours and others):
            lines.append(f"{title} is not measured yet.")
            continue
        (mine, error), (best, least) = (min(found.items(), key=lambda pair: pair[1]) for found in (ours, others))
        lines.append(f"On {title} {mine} has {error:.2f} % and the best other method, {best}, {least:.2f} %.")
    return " ".join(lines)


def label(row: Row) -> str:
    """Return the name of a row: the method, and its preset and warmed network if it has them."""
    words = [word for word in (row["preset"], row["start"] if row["start"] == "warmed" else None) if word]
    return f"{row['method']} ({', '.join(words)})" if words else str(row["method"])


def _means(rows: list[Row], score: str = "error") -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row[score])
    return {name: statistics.fmean(values) for name, values in found.items()}


def _scores(rows: list[Row]) -> str:
    means = {score: _means(rows, score) for score in SCORES}
    names = sorted(means["error"], key=means["error"].__getitem__)
    cells = [[name, *(format(means[score][name], form) for score, (_, form) in SCORES.items())] for name in names]
    return table(["Method", *(heading for heading, _ in SCORES.values())], cells)


def _domains(rows: list[Row]) -> str:
    """Return the error on each domain."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        found.setdefault(label(row), []).append(row["errors"])
    means = {name: map(statistics.fmean, zip(*several, strict=True)) for name, several in found.items()}
    headings = ["Method", *(domain.replace("_", " ") for domain in rows[0]["domains"])]
    return table(headings, [[name, *(f"{error:.1f}" for error in errors)] for name, errors in means.items()])


def _note(rows: list[Row]) -> str:
    """Say in which batches, with which seeds and views, and on which machine the rows were made."""

    def values(key: str) -> str:
        return listed([str(value) for value in sorted({row[key] for row in rows if row[key] is not None})])

    seeds = len({row["seed"] for row in rows})
    machines = listed(sorted({f"{row['hardware']}, torch {row['torch']}, {row['precision']}" for row in rows}))
    views = f", {values('views')} views" if any(row["views"] is not None for row in rows) else ""
    said = f"Batches of {values('batch_size')}, seed{'s' * (seeds > 1)} {values('seed')}{views}; {machines}"
    return f"{said} (`studies/imagenet/run.py`)."


TABLES: dict[str, Callable[[], str]] = {
    "imagenet-summary": summary_text,
    **{f"imagenet-{part}": partial(part_text, part) for part in TITLES},
}
