"""The tables of official code beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table

AGREES = 1e-6
"""Largest difference of log-probabilities in float64 that counts as rounding; the float32 constants of some code cost
as much."""

Row = dict[str, Any]
Pair = dict[str, Row]
"""The rows of a comparison by their precision."""


def pairs_of(rows: list[Row]) -> list[Pair]:
    """Return the rows of each comparison together."""
    found: dict[tuple[str, ...], Pair] = {}
    for row in rows:
        key = (row["method"], row["repository"], row["variant"])
        found.setdefault(key, {})[row["precision"]] = row
    return list(found.values())


def agreeing(pair: Pair) -> bool:
    """Return whether the two sides of a comparison agree up to rounding."""
    return all("why" not in row for row in pair.values()) and bool(pair["fp64"]["log_probabilities"] < AGREES)


def agree_text() -> str:
    """Return the comparisons of methods in which nothing differs but rounding, in any variant."""
    pairs = pairs_of(read_result("parity", "parity.json"))
    apart = {_name(pair) for pair in pairs if not agreeing(pair)}
    return _table([pair for pair in pairs if _name(pair) not in apart]) + f"\n\n{_note(pairs)}"


def differ_text() -> str:
    """Return the comparisons of methods that differ in some variant."""
    pairs = pairs_of(read_result("parity", "parity.json"))
    apart = {_name(pair) for pair in pairs if not agreeing(pair) and "why" not in pair["fp64"]}
    return _table([pair for pair in pairs if _name(pair) in apart])


def failed_text() -> str:
    """Say of which methods the official code could not be run, and why."""
    pairs = pairs_of(read_result("parity", "parity.json"))
    failed = [pair["fp64"] for pair in pairs if "why" in pair["fp64"]]
    return "\n".join(f"- {row['method']}, {_source(row)}: {row['why']}." for row in failed)


def summary_text() -> str:
    """Say how many methods agree with official code."""
    pairs = pairs_of(read_result("parity", "parity.json"))
    compared = [pair for pair in pairs if "why" not in pair["fp64"]]
    same = {pair["fp64"]["method"] for pair in compared if agreeing(pair)}
    largest = max(pair["fp64"]["log_probabilities"] for pair in compared if agreeing(pair))
    repositories = {pair["fp64"]["repository"] for pair in compared}
    differing = max(row["differing"] for pair in compared if agreeing(pair) for row in pair.values())
    return (
        f"{len(same)} methods were compared with the code of {len(repositories)} repositories. In float64 each agrees "
        f"to {largest:.0e} in the log-probabilities or better, some after a difference was mended that is named below; "
        f"in either precision {differing or 'none'} of {compared[0]['fp64']['images']} images are then predicted "
        "differently."
    )


def _name(pair: Pair) -> tuple[str, str]:
    row = next(iter(pair.values()))
    return row["method"], row["repository"]


def _source(row: Row) -> str:
    return f"{row['repository']} `{row['commit'][:7]}`"


def _table(pairs: list[Pair]) -> str:
    cells = []
    for pair in pairs:
        single, double = pair["fp32"], pair["fp64"]
        method = f"{double['method']} ({double['variant']})" if double["variant"] else double["method"]
        scale = f"{double['moved']:.2g}"
        numbers = [*(f"{row['log_probabilities']:.0e}" for row in (single, double)), f"{single['probabilities']:.0e}"]
        differing = f"{single['differing']}, {double['differing']}"
        cells.append([method, _source(double), "; ".join(double["changes"]), *numbers, differing, scale])
    headings = [
        "Method",
        "Official code",
        "Changed to compare",
        "float32",
        "float64",
        "probabilities",
        "differ",
        "moved",
    ]
    return table(headings, cells, left=3)


def _note(pairs: list[Pair]) -> str:
    row = pairs[0]["fp64"]
    missing = ", ".join(sorted({name for pair in pairs for one in pair.values() for name in one.get("stand_ins", [])}))
    return (
        f"The largest difference of log-probabilities in float32 and in float64, and of probabilities in float32; the "
        f"images that the two predict differently in each; and how far our log-probabilities moved at most from those "
        f"of the network that does not learn. {row['batches']} batches of {row['images'] // row['batches']} digits, "
        f"{row['hardware']}, Python {row['versions']['python']}, torch {row['versions']['torch']}. These packages had "
        f"stand-ins: {missing} (`studies/parity/run.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "parity-summary": summary_text,
    "parity-agree": agree_text,
    "parity-differ": differ_text,
    "parity-failed": failed_text,
}
