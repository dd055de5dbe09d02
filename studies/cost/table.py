"""The tables of what a batch costs, and how many views a budget allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.files import read_result
from studies.markdown import listed, table

BUDGETS = {16: 500, 64: 2000}  # milliseconds for a batch of so many images

Row = dict[str, Any]


def rows_of(batch_size: int) -> list[Row]:
    """Return the rows of one batch size, in the order they were measured."""
    return [row for row in read_result("cost", "steps.json")["rows"] if row["batch_size"] == batch_size]


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


TABLES: dict[str, Callable[[], str]] = {"cost-steps": steps_text, "cost-budget": budget_text}
