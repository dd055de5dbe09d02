"""The README's table of results, and the candid sentence below it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.headline.table import headline_rows
from studies.markdown import table
from studies.methods.table import PUBLISHED

ROWS = {
    "source": "no adaptation",
    "bn": "BN",
    "cotta": "CoTTA",
    "bn-warmed": "BN on VCoTTA's warmed network",
    "vcotta-best": "**VCoTTA**",
}


def results_text() -> str:
    """Return mean errors on both benchmarks beside the published ones, and what they rest on."""
    first, second = (_by_name(dataset) for dataset in ("cifar10", "cifar100"))
    rows = []
    for name, label in ROWS.items():
        method = name.removesuffix("-best")
        nll, seconds = (_mean(first[name], key) for key in ("nll", "seconds_per_corruption"))
        published = [PUBLISHED[benchmark].get(method, "") for benchmark in ("cifar10c", "cifar100c")]
        errors = [f"{_mean(found[name], 'error'):.1f}" for found in (first, second)]
        rows.append((label, errors[0], published[0], f"{nll:.2f}", f"{seconds:.1f}", errors[1], published[1]))
    headings = ["Method", "CIFAR10-C error %", "published", "NLL", "s a corruption", "CIFAR100-C error %", "published"]
    manifest = next(iter(read_result("headline", "cifar10c-headline-manifests.json").values()))
    gain, warmed = (_mean(first["bn"], "error") - _mean(first[name], "error") for name in ("vcotta-best", "bn-warmed"))
    note = (
        f"Severity 5, mean of fifteen corruptions, {manifest['hardware']}. The networks were trained here and are not "
        f"the published checkpoints; of the {gain:.1f} points that VCoTTA gains over BN on CIFAR10-C, {warmed:.1f} "
        "come from its warm-up on training data, which the other methods here do not use."
    )
    return f"{table(headings, rows)}\n\n{note}"


def _by_name(dataset: str) -> dict[str, list[dict[str, Any]]]:
    rows = headline_rows("headline", dataset)
    return {name: [row for row in rows if row["name"] == name] for name in ROWS}


def _mean(rows: list[dict[str, Any]], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


TABLES: dict[str, Callable[[], str]] = {"results": results_text}
