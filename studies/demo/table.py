"""The table of the demo on the site's first page."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table

SEEDS = (0, 1, 2)
COLUMNS = {"error": ("Error %", ".1f"), "nll": ("NLL", ".3f"), "brier": ("Brier", ".3f"), "ece": ("ECE", ".3f")}


def demo_text() -> str:
    """Return the demo's table of the first seed, the ranking over all seeds, and the figures."""
    found = [read_result("demo", f"seed-{seed}.json") for seed in SEEDS]
    rows: list[dict[str, Any]] = found[0]["rows"]
    best = {key: min(row[key] for row in rows) for key in COLUMNS}
    shown = []
    for place, row in enumerate(rows):
        scores = [_bold(format(row[key], form), row[key] == best[key]) for key, (_, form) in COLUMNS.items()]
        error, nll = _means([one["rows"][place] for one in found])
        shown.append((row["method"], *scores, f"{row['seconds']:.1f}", f"{error:.2f}, {nll:.3f}"))
    headings = ["Method", *(heading for heading, _ in COLUMNS.values()), "Seconds", "Three seeds: error %, NLL"]
    note = (
        f"`vcotta demo`, seed 0, one CPU thread, torch {found[0]['versions']['torch']}, {found[0]['frost']} frost "
        f"textures. Seconds are of that one run; the last column is the mean over seeds 0, 1 and 2. "
        f"{_ranking(found)} Part of VCoTTA's gain comes from the warm-up alone, as bn-warmed shows: BN on the network "
        "that VCoTTA starts from."
    )
    figures = (
        "![Error of each method on each corruption](results/error.png)",
        "![How unsure the source and the teacher of VCoTTA are along the stream](results/priors.png)",
    )
    return "\n\n".join([table(headings, shown), note, *figures])


def _means(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Return mean error and NLL."""
    return statistics.mean(row["error"] for row in rows), statistics.mean(row["nll"] for row in rows)


def _ranking(found: list[dict[str, Any]]) -> str:
    """Say which method has the lowest error and NLL at every seed, or which has at each."""
    count = {6: "six"}[len(found[0]["rows"])]
    winners = {key: [min(one["rows"], key=lambda row: row[key])["method"] for one in found] for key in ("error", "nll")}
    if len({name for names in winners.values() for name in names}) == 1:
        return f"Of these {count} runs, {winners['error'][0]} has the lowest error and NLL at every seed."
    each = [
        f"error {error}, NLL {nll} at seed {seed}"
        for error, nll, seed in zip(winners["error"], winners["nll"], SEEDS, strict=True)
    ]
    return f"Of these {count} runs, the lowest have: {'; '.join(each)}."


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


TABLES: dict[str, Callable[[], str]] = {"demo": demo_text}
