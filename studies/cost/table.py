"""The tables of what a batch costs, and how many views a budget allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.files import read_result, results_of
from studies.markdown import listed, table

BUDGETS = {16: 500, 64: 2000}  # milliseconds for a batch of so many images

RATES = (5, 10, 20, 50, 100, 200, 400)  # images a second
VERSION_COLUMNS = {"ms_per_step": ".1f", "seconds": ".1f", "page_faults_per_step": ".0f", "error": ".2f"}

Row = dict[str, Any]


def rows_of(batch_size: int) -> list[Row]:
    """Return the rows of one batch size of random images, in the order they were measured."""
    rows = [row for row in read_result("cost", "steps.json")["rows"] if row["dataset"].startswith("random")]
    return [row for row in rows if row["batch_size"] == batch_size]


def line_of(batch_size: int) -> tuple[float, float]:
    """Return VCoTTA's milliseconds without a view and for each view, by a least-squares line."""
    rows = [row for row in rows_of(batch_size) if row["method"] == "vcotta"]
    each, base = np.polyfit([row["views"] for row in rows], [row["ms_per_batch"] for row in rows], 1)
    return float(base), float(each)


def steps_text() -> str:
    """Return milliseconds, ratio to the plain network, images per second and memory of each method."""
    setting = read_result("cost", "steps.json")["setting"]
    headings, columns = ["Method", "Views"], []
    for size in BUDGETS:
        headings += [f"batch {size}: ms", "times plain", "images/s", "peak GiB"]
        rows = rows_of(size)
        plain = next(row["ms_per_batch"] for row in rows if row["method"] == "plain")
        columns.append([_cells(row, plain) for row in rows])
    names = [(row["method"], "" if row["views"] is None else row["views"]) for row in rows]
    shown = [(*name, *first, *second) for name, first, second in zip(names, *columns, strict=True)]
    note = (
        f"{rows[0]['network']}, 32 x 32 pixels, {setting['hardware']}, {setting['threads']} thread, median "
        f"{setting['clock']} of {setting['steps']} steps, {setting['runs']} run; memory of the whole process, torch "
        f"included; random weights and images (timing only); VCoTTA with its guard, "
        f"the others without; torch {setting['torch']}, vcotta {setting['vcotta']} (`studies/cost/run.py`)."
    )
    return f"{table(headings, shown, left=2)}\n\n{note}"


def _cells(row: Row, plain: float) -> tuple[str, ...]:
    ms = row["ms_per_batch"]
    return f"{ms:.0f}", f"{ms / plain:.1f}", f"{1000 * row['batch_size'] / ms:.0f}", f"{row['peak_gib']:.2f}"


def budget_text() -> str:
    """Return VCoTTA's cost as a line in the number of views, and the views that a budget allows."""
    lines, allowed = [], []
    for size, budget in BUDGETS.items():
        base, each = line_of(size)
        lines.append(f"{base:.0f} ms + {each:.0f} ms x views for {size} images")
        allowed.append(f"{budget} ms for {size} images allow {(budget - base) / each:.0f} views")
    return f"On that thread a batch takes {listed(lines)}. As a budget, {listed(allowed)}."


def prices_of(dataset: str) -> list[Row]:
    """Return the rows of the price list of a data set, in the order they were measured."""
    return [row for row in read_result("cost", "steps.json")["rows"] if row["dataset"] == dataset]


def frontier(rows: list[Row]) -> list[Row]:
    """Return the rows than which none is both cheaper and better, from the cheapest to the best.

    Example:
        >>> made = [{"ms_per_batch": ms, "error": error} for ms, error in ((1, 9), (2, 9.5), (3, 8), (4, 8))]
        >>> [row["ms_per_batch"] for row in frontier(made)]
        [1, 3]
    """
    found: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["ms_per_batch"], row["error"])):
        if not found or row["error"] < found[-1]["error"]:
            found.append(row)
    return found


def prices_text(dataset: str = "digits") -> str:
    """Return the price list of a data set; rows of the frontier are bold."""
    rows, best = prices_of(dataset), frontier(prices_of(dataset))
    headings = ["Method", "Views", "ms a batch", "peak GiB", "error %", "reference: ms", "error %", "times ours"]
    shown = []
    for row in rows:
        reference, error = row["reference_ms"], row["reference_error"]
        name = f"**{row['method']}**" if row in best else row["method"]
        shown.append(
            (
                name,
                "" if row["views"] is None else row["views"],
                f"{row['ms_per_batch']:.1f}",
                f"{row['peak_gib']:.2f}",
                f"{row['error']:.2f}",
                "" if reference is None else f"{reference:.1f}",
                "" if error is None else f"{error:.2f}",
                "" if reference is None else f"{reference / row['ms_per_batch']:.1f}",
            )
        )
    setting = read_result("cost", "steps.json")["prices"][dataset]
    stand_ins = sorted({name for row in rows for name in row.get("reference_stand_ins", [])})
    reference = "" if setting["reference"] is None else f" Reference: {setting['reference']}, in the same run"
    if stand_ins:
        reference += f", with stand-ins for packages that were not installed ({listed(stand_ins)})"
        reference += "; its random views are ours, as torchvision was missing" if "torchvision" in stand_ins else ""
    note = (
        f"{rows[0]['network']} network, batches of {rows[0]['batch_size']}, "
        f"{setting['images_per_corruption'] or 'all'} images of each of fifteen corruptions, {setting['hardware']}, "
        f"{setting['threads']} thread, {setting['clock']}, median step, seed {setting['seed']}, {setting['runs']} run, "
        f"torch {setting['torch']}, vcotta {setting['vcotta']} (`studies/cost/prices.py`). In bold, what no "
        f"other row is both cheaper and better than.{reference + '.' if reference else ''}"
    )
    return f"{table(headings, shown, left=2)}\n\n{note}"


def growth_text() -> str:
    """Return how the cost of a step grows with each size."""
    found = read_result("cost", "growth.json")
    setting, shown = found["setting"], []
    for row in found["rows"]:
        times = ", ".join(f"{size}: {ms:.0f}" for size, ms in zip(row["sizes"], row["ms"], strict=True))
        law = (
            f"{row['base_ms']:.0f} ms + {row['each_ms']:.1f} ms x views"
            if "each_ms" in row
            else f"{row['exponent']:.2f} ({row['at_the_end']:.2f} at the end)"
        )
        shown.append((row["grows"], row["method"], times, law))
    usual = ", ".join(f"{value} {name}" for name, value in setting["usual"].items())
    note = (
        f"{setting['network']}; otherwise {usual}. {setting['hardware']}, {setting['threads']} thread, median "
        f"{setting['clock']} of {setting['steps']} steps, {setting['runs']} run, torch {setting['torch']}, vcotta "
        f"{setting['vcotta']} (`studies/cost/growth.py`)."
    )
    return f"{table(['What grows', 'Method', 'ms a step', 'Exponent'], shown, left=4)}\n\n{note}"


def needs_text() -> str:
    """Return for each rate of images what one CPU thread can do for them, a third of its time left free."""
    shown = []
    for rate in RATES:
        cells = []
        for size in BUDGETS:
            budget = 2 / 3 * 1000 * size / rate
            base, each = line_of(size)
            dearer = [row for row in rows_of(size) if row["method"] in ("tent", "bn", "plain")]
            fits = [row["method"] for row in sorted(dearer, key=lambda row: -row["ms_per_batch"])]
            fits = [name for name in fits if next(r for r in dearer if r["method"] == name)["ms_per_batch"] <= budget]
            views = min(32, int((budget - base) / each))
            name = {"tent": "TENT", "bn": "BN", "plain": "the network without adaptation"}
            cells.append(
                f"VCoTTA with {views} views" if base <= budget else name[fits[0]] if fits else "more than one thread"
            )
        shown.append((rate, *cells))
    headings = ["Images a second", *(f"batches of {size}" for size in BUDGETS)]
    return table(headings, shown, left=3)


def launches_text() -> str:
    """Return how many operations a step dispatches, by part, before and after."""
    found = read_result("cost", "launches.json")
    names = {
        "statistics": "inferred statistics, with the source's passes",
        "views": "making views",
        "backward": "backward pass",
        "divergence": "divergences",
        "optimiser": "optimiser",
        "average": "teacher's average",
        "step": "whole step",
        "fast": "whole step, without what is compiled on a GPU",
    }
    before, after = found["rows"]
    shown = [(text, before[name], after[name]) for name, text in names.items()]
    note = (
        f"Operations of a step of VCoTTA with 4 views on a {found['setting']['network']} that launch a kernel on a "
        "GPU, counted on a CPU; nothing is compiled, and in the last row each call of what a GPU compiles counts as "
        f"one, torch {found['setting']['torch']} (`benchmarks/launches.py`)."
    )
    return f"{table(['Part', 'before', 'after'], shown)}\n\n{note}"


def versions_text() -> str:
    """Return CPU time and error of VCoTTA on the demo's stream, before and after."""
    found = read_result("cost", "versions.json")
    rows, setting = found["rows"], found["setting"]
    seeds = sorted(set.intersection(*({r["seed"] for r in rows if r["version"] == v} for v in ("before", "after"))))
    shown, times = [], dict[str, list[float]]()
    for version in ("before", "after"):
        own = sorted((r for r in rows if r["version"] == version and r["seed"] in seeds), key=lambda row: row["seed"])
        times[version] = [row["ms_per_step"] for row in own]
        columns = (", ".join(f"{row[key]:{form}}" for row in own) for key, form in VERSION_COLUMNS.items())
        shown.append((version, *columns, f"{np.mean([row['error'] for row in own]):.2f}"))
    ratios = [before / after for before, after in zip(times["before"], times["after"], strict=True)]
    headings = ["Code", "ms a step", "seconds in all", "page faults a step", "error %", "mean error %"]
    note = (
        f"VCoTTA on {rows[0]['steps']} batches of the stream of `vcotta demo`, through all fifteen corruptions, "
        f"seeds {listed([str(seed) for seed in seeds])}, both versions from the same warmed networks. "
        f"{min(ratios):.2f} to {max(ratios):.2f} times faster. {setting['hardware']}, {setting['threads']} thread, "
        f"{setting['clock']} on a machine that other programs used, too, torch {setting['torch']} "
        f"(`benchmarks/versions.py`)."
    )
    return f"{table(headings, shown)}\n\n{note}"


def _if_measured(text: Callable[[], str], name: str, command: str) -> Callable[[], str]:
    """Draw a text if its result file, or the part of it, is there."""

    def draw() -> str:
        measured = (results_of("cost") / name).exists() and (
            name != "steps.json" or "prices" in read_result("cost", name)
        )
        return text() if measured else f"Not measured yet: `{command}`."

    return draw


TABLES: dict[str, Callable[[], str]] = {
    "cost-steps": steps_text,
    "cost-budget": budget_text,
    "cost-needs": needs_text,
    "cost-prices": _if_measured(prices_text, "steps.json", "python -m studies.cost.prices"),
    "cost-growth": _if_measured(growth_text, "growth.json", "python -m studies.cost.growth"),
    "cost-versions": _if_measured(versions_text, "versions.json", "python -m benchmarks.versions FOLDER"),
    "cost-launches": _if_measured(launches_text, "launches.json", "python -m benchmarks.launches FOLDER"),
}
