"""The tables of networks without BatchNorm."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from studies.files import results_of
from studies.markdown import listed, table

RESULTS = results_of("transformers")
TITLES = {"digits": "Digits", "cifar10c": "CIFAR10-C"}

Row = dict[str, Any]


def rows_of(part: str, folder: Path = RESULTS) -> list[Row]:
    """Return the rows of a part, none if it was not run."""
    path = folder / f"{part}.json"
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return rows


def methods_text(part: str, folder: Path = RESULTS) -> str:
    """Return, for each network, every method on the fifteen corruptions, the lowest error first."""
    return _by_network(part, folder, _methods)


def variants_text(part: str, folder: Path = RESULTS) -> str:
    """Return, for each network, VCoTTA with one thing changed at a time, on the held-out corruptions."""
    return _by_network(part, folder, _variants)


def summary_text(folder: Path = RESULTS) -> str:
    """Say for each network what VCoTTA has on the fifteen, beside the source and the best other method."""
    lines = []
    for part, title in TITLES.items():
        found = rows_of(part, folder)
        for network in dict.fromkeys(row["network"] for row in found):
            means = _means([row for row in found if row["network"] == network and row["stream"] == "standard"])
            ours = means.pop(("vcotta", "default", "warmed", 1.0), None)
            source = next((value[0] for key, value in means.items() if key[0] == "source"), None)
            others = {key: value for key, value in means.items() if key[0] not in ("source", "vcotta")}
            if ours is None or source is None or not others:
                continue
            best = min(others, key=lambda key: others[key][0])
            lines.append(
                f"{title}, {network}: VCoTTA {ours[0]:.2f} %, source {source:.2f} %, the best other method, {best[0]}, "
                f"{others[best][0]:.2f} %."
            )
        if not found:
            lines.append(f"{title} is not measured yet.")
    return " ".join(lines)


def _by_network(part: str, folder: Path, draw: Callable[[list[Row]], str]) -> str:
    found = rows_of(part, folder)
    texts = []
    for network, images in dict.fromkeys((row["network"], row["images"]) for row in found):
        rows = [row for row in found if (row["network"], row["images"]) == (network, images)]
        if text := draw(rows):
            count = f"{images} images of each corruption" if images else "all images"
            texts.append(f"**{network}**, {TITLES[part]}, {count}:\n\n{text}\n\n{_note(rows)}")
    return "\n\n".join(texts) or f"{TITLES[part]} is not measured yet: `python -m studies.transformers.run {part}`."


def _means(rows: Sequence[Row]) -> dict[tuple[str, str, str, float], tuple[float, float]]:
    """Mean error and NLL over the seeds by method, variant, start and step, the lowest error first."""
    found: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in rows:
        found.setdefault((row["method"], row["variant"], row["start"], row["step"]), []).append(row)
    means = {
        key: (statistics.fmean(row["error"] for row in group), statistics.fmean(row["nll"] for row in group))
        for key, group in found.items()
    }
    return dict(sorted(means.items(), key=lambda pair: pair[1][0]))


def _methods(rows: list[Row]) -> str:
    """Each method with its best start and step on the held-out corruptions, there and on the fifteen."""
    held, final = (_means([row for row in rows if row["stream"] == stream]) for stream in ("held-out", "standard"))
    usual = {key[0]: error for key, (error, _) in held.items() if key[2:] == ("plain", 1.0)}
    cells = []
    for key, (error, nll) in final.items():
        method, variant, start, step = key
        name = method if variant == "default" else f"{method}, {variant}"
        own = "-" if method == "vcotta" or method not in usual else f"{usual[method]:.2f}"
        cells.append([name, start, f"{step:g}", own, f"{held[key][0]:.2f}" if key in held else "-", f"{error:.2f}"])
        cells[-1].append(f"{nll:.3f}")
    if not cells:
        return ""
    headings = ["Method", "Network", "Step", "Held-out, plain, its own step", "Held-out", "Fifteen", "NLL"]
    return table(headings, cells, left=2)


def _variants(rows: list[Row]) -> str:
    """VCoTTA's variants on the held-out corruptions and on correlated labels, with the source to compare with."""
    held, correlated = (
        _means([row for row in rows if row["stream"] == stream]) for stream in ("held-out", "correlated")
    )
    cells = []
    for key in dict.fromkeys((row["method"], row["variant"], row["start"], row["step"]) for row in rows):
        method, variant, start, _ = key
        if method not in ("source", "vcotta") or key not in held:
            continue
        own = {"vcotta": variant if start == "warmed" else "default, without a warm-up"}.get(method, f"source, {start}")
        there = f"{correlated[key][0]:.2f} / {correlated[key][1]:.3f}" if key in correlated else "-"
        cells.append([own, f"{held[key][0]:.2f} / {held[key][1]:.3f}", there])
    return table(["VCoTTA", "Held-out", "Correlated, delta 0.1"], cells) if cells else ""


def _note(rows: list[Row]) -> str:
    seeds = [str(seed) for seed in sorted({row["seed"] for row in rows})]
    machines = listed(sorted({f"{row['hardware']}, torch {row['torch']}, {row['precision']}" for row in rows}))
    return (
        f"Seed{'s' * (len(seeds) > 1)} {listed(seeds)}, severity 5, error in per cent (/ NLL). {machines} "
        "(`studies/transformers/run.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "transformers-summary": summary_text,
    **{f"transformers-{part}": functools.partial(methods_text, part) for part in TITLES},
    **{f"transformers-{part}-variants": functools.partial(variants_text, part) for part in TITLES},
}
