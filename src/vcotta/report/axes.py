"""Axes that several figures share: errors on a square root, and a stream with its domains named above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vcotta.report.curves import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["legend_beside", "name_domains", "square_root"]

MOST_NAMES = 40
LEGEND_LINES = 12  # of a column; more would be longer than a figure is high
LEGEND_INCHES = 1.7  # for every further column


def legend_beside(axes: Axes, title: str | None = None) -> None:
    """Name the lines to the right of the axes, for many in a wider figure; a single one without a title needs none."""
    count = len(axes.get_legend_handles_labels()[1])
    if count < 2 and title is None:
        return
    columns = -(-count // LEGEND_LINES)
    drawing = axes.get_figure(root=True)
    assert drawing is not None  # `panels` made it
    width, height = drawing.get_size_inches()
    drawing.set_size_inches(width + LEGEND_INCHES * (columns - 1), height)
    axes.legend(title=title, ncols=columns, alignment="left", loc="upper left", bbox_to_anchor=(1.01, 1))


def square_root(axes: Axes) -> None:
    """Set an error in per cent on a square-root axis, so that 1 and 5 can be told apart where another is 90."""
    from matplotlib.ticker import NullLocator  # slow to import, and needed only where a figure is drawn

    top = axes.get_ylim()[1]
    axes.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    ticks = [tick for tick in (0, 1, 2, 5, 10, 20, 30, 50, 75, 100) if tick <= top]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, top)


def name_domains(axes: Axes, domains: Sequence[Span], named: bool = True) -> None:
    """Let the batches of a stream be the x axis, its domains set apart by lines and, unless too many, named above."""
    for span in domains[:-1]:
        axes.axvline(span.end - 0.5, color="0.8", linewidth=0.6)
    axes.set_xlim(-0.5, domains[-1].end - 0.5)
    axes.grid(axis="x", visible=False)
    if not named or len(domains) > MOST_NAMES:
        return
    top = axes.secondary_xaxis("top")
    middles, labels = [(span.start + span.end - 1) / 2 for span in domains], [span.label for span in domains]
    top.set_xticks(middles, labels, rotation=40, ha="left", rotation_mode="anchor")
    top.tick_params(length=0)
    top.spines["top"].set_visible(False)
