"""The tables of small states: errors and sizes by what adapts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table

SHOWN = {"nothing": "nothing", "norm": '`trains="norm"`', "all": '`trains="all"`'}


def errors_text() -> str:
    """Return the mean error and NLL by what adapts, a row for each network."""
    found = read_result("small_state", "small-state.json")
    setting, rows = found["setting"], []
    for data, network in dict.fromkeys((row["data"], row["network"]) for row in found["errors"]):
        same = [row for row in found["errors"] if (row["data"], row["network"]) == (data, network)]
        seeds = dict.fromkeys(row["seed"] for row in same)
        cells = [_mean(same, name, "error") for name in SHOWN] + [_mean(same, name, "nll", 3) for name in SHOWN]
        images = same[0]["images"][0] if isinstance(same[0]["images"], list) else same[0]["images"]
        rows.append((data, network, len(seeds), same[0]["batch_size"], images, *cells))
    headings = ["Data", "Network", "Seeds", "Batch", "Images", *(f"{shown}: error" for shown in SHOWN.values())]
    headings += [f"{shown}: NLL" for shown in SHOWN.values()]
    note = (
        f"Error in per cent, mean over {', '.join(setting['corruptions'])} at severities "
        f"{', '.join(map(str, setting['severities']))}, one after another, images of each; VCoTTA, {setting['views']} "
        f"views, from the same warmed networks; torch {setting['torch']} (`studies/small_state/run.py`)."
    )
    return f"{table(headings, rows, left=2)}\n\n{note}"


def sizes_text() -> str:
    """Return what an adapter takes by what adapts."""
    found = read_result("small_state", "small-state.json")
    setting, rows = found["setting"], []
    for row in found["sizes"]:
        sizes = (_megabytes(row[name]) for name in ("source_bytes", "tensor_bytes"))
        more = row["tensor_bytes"] - row["source_bytes"]
        rows.append(
            (
                row["network"],
                SHOWN[row["trains"]],
                *sizes,
                _megabytes(more),
                _megabytes(row["file_bytes"]),
                row["batch_size"],
                f"{row['ms_per_step']:.0f}",
            )
        )
    headings = ["Network", "Adapts", "Source: MB", "Adapter in memory: MB", "of it beside the source"]
    headings += ["State on disk: MB", "Batch", "Step: ms"]
    note = (
        f"{setting['views']} views, median CPU time on one thread ({setting['hardware']}); activations not counted; "
        f"torch {setting['torch']} (`studies/small_state/run.py`)."
    )
    return f"{table(headings, rows, left=2)}\n\n{note}"


def summary_text() -> str:
    """Return in words what is lost and saved."""
    found = read_result("small_state", "small-state.json")
    parts = []
    for data, network in dict.fromkeys((row["data"], row["network"]) for row in found["errors"]):
        same = [row for row in found["errors"] if (row["data"], row["network"]) == (data, network)]
        errors = [_mean(same, name, "error") for name in ("norm", "all", "nothing")]
        parts.append(
            f"{errors[0]} % instead of {errors[1]} on {data} ({network}), where without learning it is {errors[2]}"
        )
    files = {(row["network"], row["trains"]): row["file_bytes"] for row in found["sizes"]}
    sizes = [
        f"{_megabytes(files[network, 'norm'])} MB instead of {_megabytes(files[network, 'all'])} for a {network}"
        for network in dict.fromkeys(network for network, _ in files)
    ]
    return (
        f"A state takes {' and '.join(sizes)}. The mean error on the held-out corruptions is {'; '.join(parts)}. "
        "[Measured](../../studies/small_state/page.md)."
    )


def _mean(rows: list[dict[str, Any]], trains: str, key: str, digits: int = 2) -> str:
    return f"{statistics.mean(row[key] for row in rows if row['trains'] == trains):.{digits}f}"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g}" if count < 1e9 else f"{count / 1e6:.0f}"


TABLES: dict[str, Callable[[], str]] = {
    "small-state-errors": errors_text,
    "small-state-sizes": sizes_text,
    "small-state-summary": summary_text,
}
