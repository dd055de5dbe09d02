"""Scores and costs as several studies show them, from the rows that `studies.cells` writes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.markdown import listed

SCORES = {
    "error": ("Error %", ".2f"),
    "nll": ("NLL", ".3f"),
    "brier": ("Brier", ".3f"),
    "ece": ("ECE", ".3f"),
    "seconds_per_corruption": ("Seconds", ".2f"),
    "peak_gib": ("GiB", ".2f"),
}
"""Heading and format of what `studies.cells.scores_of` puts into each row."""

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, none if the part was not run."""
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def mean_scores(rows: Sequence[Row], scores: dict[str, tuple[str, str]]) -> list[str]:
    """Return the mean of each score over rows that differ in the seed, the error with its standard deviation."""
    values = []
    for score, (_, form) in scores.items():
        found = [row[score] for row in rows]
        spread = f" ± {statistics.stdev(found):{form}}" if score == "error" and len(found) > 1 else ""
        values.append(f"{statistics.fmean(found):{form}}{spread}")
    return values


def mean_errors(rows: Sequence[Row]) -> list[str]:
    """Return the mean error of rows on each of their domains."""
    return [f"{statistics.fmean(errors):.1f}" for errors in zip(*(row["errors"] for row in rows), strict=True)]


def circumstances(rows: Sequence[Row]) -> str:
    """Say in which batches, with which seeds and on which machines rows were made."""
    seeds = sorted({row["seed"] for row in rows})
    machines = listed(sorted({f"{row['hardware']}, torch {row['torch']}, {row['precision']}" for row in rows}))
    sizes = listed([str(size) for size in sorted({row["batch_size"] for row in rows})])
    several = " (± is the standard deviation over them)" if len(seeds) > 1 else ""
    given = f"seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}{several}"
    return f"Batches of {sizes}, {given}; {machines}"
