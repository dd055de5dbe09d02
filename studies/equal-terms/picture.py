"""The picture of each method's error from the plain and from the warmed network."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

from studies.files import results_of
from vcotta.report.canvas import canvas

RESULTS = results_of("equal-terms")
COLOURS = {"plain": "#0072B2", "warmed": "#D55E00"}


def draw_starts(folder: Path = RESULTS) -> None:
    """Draw a picture of each part that was measured."""
    table = importlib.import_module("studies.equal-terms.table")
    for part in table.TITLES:
        if kinds := table.kinds_of(part, folder):
            _draw(table.means_of(next(iter(kinds.values()))), folder / f"{part}.png")


def _draw(means: dict[tuple[str, str], float], path: Path) -> None:
    """Draw a line a method, the lowest error above; one that is worse than no adaptation is in the table only."""
    worst = max((error for (name, _), error in means.items() if name == "source"), default=math.inf)
    errors: dict[str, dict[str, float]] = {}
    for (name, start), error in means.items():
        if error <= worst:
            errors.setdefault(name, {})[start] = error
    methods = sorted((name for name in errors if name != "source"), key=lambda name: -min(errors[name].values()))
    with canvas(path, 8.4, 1.2 + 0.28 * len(methods)) as figure:
        axes = figure.axes[0]
        for place, name in enumerate(methods):
            axes.plot(list(errors[name].values()), [place] * len(errors[name]), color="0.65", linewidth=3)
        for start, colour in COLOURS.items():
            places = [place for place, name in enumerate(methods) if start in errors[name]]
            values = [errors[methods[place]][start] for place in places]
            axes.plot(values, places, linestyle="", marker="o", color=colour, label=start)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_xlabel("error (%)")
        axes.grid(axis="y", visible=False)
        figure.legend(axes, "network")
