"""The heat map of streams and methods: which method copes with which stream."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vcotta.report.canvas import canvas

__all__ = ["stream_map"]

DEEPEST = 3.0  # log2 of the ratio with the deepest colour: an eighth of Source's error, or eight times as much
LEAST = 0.1  # per cent; smaller errors have the same colour, so that a ratio of two errors near 0 means nothing
LUMINANCE = (0.2126, 0.7152, 0.0722)  # of red, green and blue; text is white on less than half of it


def stream_map(
    streams: Sequence[str], methods: Sequence[str], errors: NDArray[np.float64], path: str | os.PathLike[str]
) -> None:
    """Draw the error of each method on each stream; colours compare it with Source's on that stream.

    Purple is less than Source's error, orange more, by the logarithm of their ratio. The lowest error of each stream is
    bold and framed. Without ``source`` among the methods there are no colours.

    Args:
        streams: Names of the rows.
        methods: Names of the columns.
        errors: In per cent, (streams, methods); not-a-number where there is none.
        path: PNG or PDF file to write.
    """
    from matplotlib.patches import Rectangle  # slow to import, and needed only where a figure is drawn

    source = errors[:, methods.index("source")] if "source" in methods else np.full(len(streams), np.nan)
    shades = np.log2(np.maximum(errors, LEAST) / np.maximum(source, LEAST)[:, None])
    with canvas(path, 3.0 + 0.62 * len(methods), 1.2 + 0.3 * len(streams)) as figure:
        axes = figure.axes[0]
        mesh = axes.pcolormesh(np.ma.masked_invalid(shades), cmap="PuOr_r", vmin=-DEEPEST, vmax=DEEPEST)
        mesh.set(edgecolor="white", linewidth=0.5)
        dark = mesh.to_rgba(np.nan_to_num(shades))[..., :3] @ LUMINANCE < 0.5
        axes.set_ylim(len(streams), 0)
        for (row, column), error in np.ndenumerate(errors):
            if np.isnan(error):
                continue
            first = error <= np.nanmin(errors[row])
            words = axes.text(column + 0.5, row + 0.5, f"{error:.1f}", ha="center", va="center_baseline", fontsize=8)
            words.set(color="white" if dark[row, column] else "black")
            if first:
                words.set_fontweight("bold")
                axes.add_patch(Rectangle((column + 0.04, row + 0.06), 0.92, 0.88, fill=False, linewidth=1.4))
        axes.set_xticks(np.arange(len(methods)) + 0.5, methods)
        axes.set_yticks(np.arange(len(streams)) + 0.5, streams)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        if np.isfinite(shades).any():
            bar = axes.figure.colorbar(mesh, ax=axes, extend="both", ticks=range(-3, 4), pad=0.02, fraction=0.04)
            bar.ax.set_yticklabels(["1/8", "1/4", "1/2", "1", "2", "4", "8"])
            bar.outline.set_visible(False)
            bar.ax.grid(visible=False)
            bar.ax.tick_params(length=0)
            bar.set_label("times Source's error")
