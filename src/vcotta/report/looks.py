"""How a method looks in every figure and chart: a colour, a marker and a dash, so that no line needs its colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["KNOWN", "MOST_BANDS", "SPARE", "Look", "looks"]

MOST_BANDS = 8
"""Methods whose ranges can be shaded in one chart; more would cover each other."""


class Look(NamedTuple):
    """The look of a method.

    Attributes:
        colour: On paper.
        marker: As matplotlib names it.
        dash: Lengths of strokes and gaps in points; none for a full line.
        light: The colour on a white screen, 3 to 1 in contrast or more.
        dark: The colour on a dark screen.
    """

    colour: str
    marker: str
    dash: tuple[float, ...]
    light: str
    dark: str


# Okabe and Ito's palette, told apart by colour-blind eyes; the markers help in print.
KNOWN = {
    "source": Look("#7f7f7f", "o", (1.5, 1.5), "#6e6e6e", "#a9a9a9"),
    "bn": Look("#E69F00", "s", (5, 2), "#b87a00", "#f0b43c"),
    "tent": Look("#56B4E9", "^", (4, 1.5, 1.5, 1.5), "#2a8bc4", "#6fc3f2"),
    "cotta": Look("#009E73", "v", (8, 2), "#008762", "#2cc79b"),
    "vcotta": Look("#D55E00", "D", (), "#c75300", "#ff8a3d"),
}
SPARE = [
    Look("#0072B2", "P", (6, 1.5, 1.5, 1.5), "#0072b2", "#5aa9e6"),
    Look("#CC79A7", "X", (3, 1.5), "#b85a8e", "#e29cc3"),
    Look("#000000", "<", (1.5, 3), "#1a1a1a", "#ececec"),
    Look("#8C6D1F", ">", (8, 2, 1.5, 2), "#8c6d1f", "#d0ac55"),
    Look("#5D3A9B", "h", (5, 1.5, 1.5, 1.5, 1.5, 1.5), "#5d3a9b", "#ab8ce0"),
]
MARKERS = "oPXhs^vD<>"


def looks(names: Sequence[str]) -> list[Look]:
    """Return a look for each method: fixed for the known ones, in order of appearance for others, no two the same.

    Past the ten, colours come again with another marker.

    Example:
        >>> [look.colour for look in looks(["mine", "vcotta"])]
        ['#0072B2', '#D55E00']
    """
    found: list[Look] = []
    for name in names:
        look = KNOWN.get(name.split(" ")[0])  # the method, without settings
        found.append(look if look is not None and look not in found else _next(found))
    return found


def _next(taken: list[Look]) -> Look:
    for turn in range(len(MARKERS)):
        for place, spare in enumerate(SPARE):
            look = spare if not turn else spare._replace(marker=MARKERS[(place + 2 * turn) % len(MARKERS)])
            if look not in taken:
                return look
    return SPARE[len(taken) % len(SPARE)]
