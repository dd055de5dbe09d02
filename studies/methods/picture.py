"""The picture of the methods' errors on CIFAR10-C beside their published ones."""

from __future__ import annotations

import statistics
from pathlib import Path

from studies.files import read_result
from studies.methods.table import RECIPE, RESULTS, errors_of, published_errors
from vcotta.report.canvas import canvas

PICTURE = RESULTS / "published.png"


def draw_published(path: Path = PICTURE) -> None:
    """Draw a line a method that has run, the lowest published error above: the published error or range, and ours."""
    published = {method: ends for method, ends in published_errors("cifar10c").items() if ends and method != "source"}
    published = {method: ends for method, ends in published.items() if method in {*errors_of("cifar10c"), "vcotta"}}
    methods = sorted(published, key=lambda method: -statistics.mean(published[method]))
    rows = read_result("headline", "cifar10c-headline.json")
    best = statistics.mean(row["error"] for row in rows if row["name"] == "vcotta-best")
    usual, recipe = errors_of("cifar10c") | {"vcotta": best}, errors_of(RECIPE)
    with canvas(path, 8.4, 1.2 + 0.28 * len(methods)) as figure:
        axes = figure.axes[0]
        for place, method in enumerate(methods):
            low, high = min(published[method]), max(published[method])
            axes.plot([low - 0.05, high + 0.05], [place] * 2, color="0.65", linewidth=11, solid_capstyle="butt")
        for errors, look, label in (
            (usual, {"marker": "s", "color": "#0072B2", "markerfacecolor": "white"}, "30 epochs, the default"),
            (recipe, {"marker": "o", "color": "#D55E00"}, "the published recipe"),
        ):
            places = [place for place, method in enumerate(methods) if method in errors]
            axes.plot([errors[methods[place]] for place in places], places, linestyle="", label=label, **look)
        axes.plot([], [], color="0.65", linewidth=11, label="as published")
        axes.set_yticks(range(len(methods)), methods)
        axes.set_xlabel("error on CIFAR10-C (%)")
        axes.grid(axis="y", visible=False)
        figure.legend(axes, "network")
