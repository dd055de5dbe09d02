"""The pictures of what a batch costs by the number of views, and of error against time.

python -m studies.cost.picture
"""

from __future__ import annotations

from pathlib import Path

from studies.cost.table import BUDGETS, frontier, prices_of, rows_of
from studies.files import read_result, results_of
from vcotta.report.canvas import canvas

PICTURE = results_of("cost") / "steps.png"


def draw_cost(path: Path = PICTURE) -> None:
    """Draw VCoTTA's milliseconds an image by its views, a line a batch size, and the plain network's dashed."""
    with canvas(path, 6.4, 3.2) as figure:
        axes = figure.axes[0]
        for size, colour in zip(BUDGETS, ("#0072B2", "#D55E00"), strict=True):
            rows = {(row["method"], row["views"]): row["ms_per_batch"] / size for row in rows_of(size)}
            views = [views for method, views in rows if method == "vcotta"]
            costs = [rows["vcotta", n] for n in views]
            axes.plot(views, costs, color=colour, marker="o", label=f"VCoTTA, batch {size}")
        axes.axhline(rows["plain", None], color="0.4", linestyle="--", label=f"plain network, batch {size}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("views")
        axes.set_ylabel("ms an image")
        figure.legend(axes)


def draw_frontier(dataset: str = "digits", path: Path | None = None) -> None:
    """Draw the error of every row of a price list against its milliseconds, and a line through the frontier."""
    rows = prices_of(dataset)
    best = frontier(rows)
    with canvas(path or results_of("cost") / f"frontier-{dataset}.png", 6.4, 4.0) as figure:
        axes = figure.axes[0]
        times, errors = ([row[key] for row in best] for key in ("ms_per_batch", "error"))
        axes.step(times, errors, where="post", color="0.6", linewidth=1, label="none cheaper and better")
        for ours, colour in ((True, "#D55E00"), (False, "#0072B2")):
            some = [row for row in rows if (row["method"] == "vcotta") == ours]
            places = ([row[key] for row in some] for key in ("ms_per_batch", "error"))
            axes.scatter(
                *places, s=18, color=colour, label="VCoTTA, by its views" if ours else "other methods", zorder=3
            )
            for row in some:
                text = str(row["views"]) if ours else row["method"]
                place = (row["ms_per_batch"], row["error"])
                axes.annotate(text, place, (3, 3), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        for formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatter("{x:g}")  # the usual one writes powers of ten as mathematics, which is switched off
        axes.set_xlabel("ms a batch")
        axes.set_ylabel("error %")
        figure.legend(axes)


if __name__ == "__main__":
    draw_cost()
    for dataset in read_result("cost", "steps.json").get("prices", ()):
        draw_frontier(dataset)
