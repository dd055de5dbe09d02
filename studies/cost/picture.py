"""The picture of what a batch costs by the number of views.

python -m studies.cost.picture
"""

from __future__ import annotations

from pathlib import Path

from studies.cost.table import BUDGETS, rows_of
from studies.files import results_of
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


if __name__ == "__main__":
    draw_cost()
