"""The canvas of a figure for paper: one style, fonts embedded, the same bytes for the same drawing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcotta.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["figure", "panels"]

STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for, rather than Type 3
}
# Neither the clock nor the version of matplotlib is written into the file.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def figure(path: str | os.PathLike[str], width: float, height: float) -> Iterator[Axes]:
    """Yield the axes of a new figure and save it; neither the user's nor the global matplotlib settings matter.

    Args:
        path: PNG or PDF file to write.
        width: In inches.
        height: In inches.
    """
    with panels(path, width, height) as axes:
        yield axes[0]


@contextmanager
def panels(
    path: str | os.PathLike[str], width: float, height: float, rows: int = 1, columns: int = 1, share: str = ""
) -> Iterator[list[Axes]]:
    """Yield the axes of a figure of several panels, row by row, and save it; see `figure`.

    Args:
        path: PNG or PDF file to write.
        width: Of the whole, in inches.
        height: Of the whole, in inches.
        rows: Panels from top to bottom.
        columns: Panels from left to right.
        share: ``"x"`` or ``"y"`` for one such axis of all panels.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in METADATA:
        raise ValueError(f"Expected `path` to end in .png or .pdf, but got {os.fspath(path)!r}.")
    import matplotlib.style  # slow to import, and needed only where a figure is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        drawing = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(drawing)
        yield list(drawing.subplots(rows, columns, squeeze=False, sharex=share == "x", sharey=share == "y").flat)
        with atomic_path(path) as aside:
            drawing.savefig(aside, format=kind, dpi=150 if kind == "png" else 72, metadata=METADATA[kind])
