"""Colour, marker and dash of each method in all figures, so that no line depends on its colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["KNOWN", "SPARE", "MethodStyle", "method_styles"]


class MethodStyle(NamedTuple):
    """How a method is drawn.

    Attributes:
        colour: Colour on paper.
        marker: Matplotlib's name of the marker.
        dash: Lengths of strokes and gaps in points; empty for a solid line.
        light: Colour on a white screen; its contrast is at least 3 to 1.
        dark: Colour on a dark screen.
    """

    colour: str
    marker: str
    dash: tuple[float, ...]
    light: str
    dark: str


# Okabe and Ito's palette, which colour-blind readers can distinguish; the markers help in print.
KNOWN = {
    "source": MethodStyle("#7f7f7f", "o", (1.5, 1.5), "#6e6e6e", "#a9a9a9"),
    "bn": MethodStyle("#E69F00", "s", (5, 2), "#b87a00", "#f0b43c"),
    "tent": MethodStyle("#56B4E9", "^", (4, 1.5, 1.5, 1.5), "#2a8bc4", "#6fc3f2"),
    "cotta": MethodStyle("#009E73", "v", (8, 2), "#008762", "#2cc79b"),
    "vcotta": MethodStyle("#D55E00", "D", (), "#c75300", "#ff8a3d"),
}
SPARE = [
    MethodStyle("#0072B2", "P", (6, 1.5, 1.5, 1.5), "#0072b2", "#5aa9e6"),
    MethodStyle("#CC79A7", "X", (3, 1.5), "#b85a8e", "#e29cc3"),
    MethodStyle("#000000", "<", (1.5, 3), "#1a1a1a", "#ececec"),
    MethodStyle("#8C6D1F", ">", (8, 2, 1.5, 2), "#8c6d1f", "#d0ac55"),
    MethodStyle("#5D3A9B", "h", (5, 1.5, 1.5, 1.5, 1.5, 1.5), "#5d3a9b", "#ab8ce0"),
]
MARKERS = "oPXhs^vD<>"


def method_styles(names: Sequence[str]) -> list[MethodStyle]:
    """Return a style for each name: fixed for known methods, in order of appearance for others, no two the same.

    Example:
        >>> [style.colour for style in method_styles(["mine", "vcotta"])]
        ['#0072B2', '#D55E00']
    """
    found: list[MethodStyle] = []
    for name in names:
        style = KNOWN.get(name.split(" ")[0])  # the method, without its settings
        found.append(style if style is not None and style not in found else _next(found))
    return found


def _next(taken: list[MethodStyle]) -> MethodStyle:
    for turn in range(len(MARKERS)):
        for place, spare in enumerate(SPARE):
            style = spare if not turn else spare._replace(marker=MARKERS[(place + 2 * turn) % len(MARKERS)])
            if style not in taken:
                return style
    return SPARE[len(taken) % len(SPARE)]
