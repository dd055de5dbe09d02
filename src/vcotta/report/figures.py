"""Figures that compare runs of one stream, as PNG and PDF files or charts of the page.

Each method and setting is a line or a point, the mean over its seeds. Bands and bars are 95 % intervals of that mean;
bands need three runs of a method. The same runs give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from vcotta.report.canvas import FEWEST_RUNS, MOST_BANDS, Canvas, Target, canvas, square_root
from vcotta.report.groups import Group, as_groups, best_first
from vcotta.report.stats import Score, along_stream, noted, reliability_bins, risk_coverage, spans
from vcotta.runs.run import Run

__all__ = [
    "cost_against_error",
    "error_along_stream",
    "error_by_corruption",
    "error_heat_map",
    "named_points",
    "notes_along_stream",
    "priors_along_stream",
    "reliability",
    "risk_against_coverage",
]

Runs = Sequence[Run] | Sequence[Group]
FEWEST_IN_BIN = 10
COSTS = {"passes": "forward and backward passes a batch", "seconds": "seconds a corruption"}
LETTER = 0.6  # width of a letter, as a share of the font's size
OFFSETS = (0, -10, 10, -20, 20, -30, 30, -40, 40, -50, 50, -60, 60)  # points between a name and the height of its point


def error_by_corruption(runs: Runs, target: Target) -> None:
    """Draw the error of each method on each domain in the order of the stream, and the means beside them."""
    from matplotlib.ticker import NullLocator  # slow to import, and needed only where a figure is drawn

    groups = as_groups(runs)
    domains = groups[0].domains
    table = [group.domain_errors() for group in groups]
    with canvas(target, max(5.0, 3.5 + 0.4 * len(domains)), 4.2, [group.label for group in groups]) as figure:
        axes, places = figure.axes[0], np.arange(len(domains))
        beside = len(domains) + 0.4 + (np.linspace(-0.3, 0.3, len(groups)) if len(groups) > 1 else np.zeros(1))
        for place, (group, errors) in enumerate(zip(groups, table, strict=True)):
            label = f"{group.label}  {group.error.mean:.1f} %"
            figure.line(axes, place, places, [e.mean for e in errors], label=label, linestyle="-", markevery=1)
            axes.plot(beside[place], group.error.mean, **figure.marked(place))
            if len(group.runs) >= FEWEST_RUNS and len(groups) <= MOST_BANDS:
                figure.band(axes, place, places, [e.low for e in errors], [e.high for e in errors])
        axes.axvline(len(domains) - 0.35, color="0.6", linewidth=0.8)
        axes.set_xlim(-0.5, len(domains) + 1)
        # Shows errors of 1 and of 90 per cent: logarithmic, but linear below 1 per cent, for zero.
        axes.set_yscale("symlog", linthresh=1, linscale=0.3)
        ticks = [0, 1, 2, 5, 10, 20, 50, 100]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        means = [error.mean for errors in table for error in errors]
        axes.set_ylim(max(tick for tick in ticks if tick <= 0.8 * min(means)), 1.15 * max(10.0, *means))
        names = [*domains, "mean"]
        axes.set_xticks([*places, len(domains) + 0.4], names, rotation=40, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("error (%)")
        figure.legend(axes, "mean error")


def error_heat_map(runs: Runs, target: Target) -> None:
    """Draw the error of each method on each domain as a table of shades and numbers, best method first."""
    groups = best_first(as_groups(runs))
    names = [*groups[0].domains, "mean"]
    table = np.array([[*(score.mean for score in group.domain_errors()), group.error.mean] for group in groups])
    with canvas(target, 2.2 + 0.45 * len(names), 1.4 + 0.32 * len(groups)) as figure:
        axes = figure.axes[0]
        shades = np.sqrt(table)  # keeps errors of 1 and of 5 per cent distinct beside one of 90
        deepest = 1.25 * max(1.0, float(np.nanmax(shades)))
        axes.pcolormesh(shades, cmap="Greys", vmin=0, vmax=deepest, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        lowest = np.nanmin(table, axis=0)
        for (row, column), value in np.ndenumerate(table):
            dark = shades[row, column] > 0.75 * np.nanmax(shades)
            colour, weight = "white" if dark else "black", "bold" if value <= lowest[column] else None
            words = axes.text(column + 0.5, row + 0.5, f"{value:.1f}", ha="center", va="center", fontsize=7)
            words.set(color=colour, weight=weight)
        axes.axvline(len(names) - 1, color="white", linewidth=3)
        axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(groups)) + 0.5, [group.label for group in groups])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)


def error_along_stream(runs: Runs, target: Target) -> None:
    """Draw the error batch by batch, with the domains named above; a long stream is averaged to about 160 points."""
    groups = as_groups(runs)
    curves = [along_stream(group.runs) for group in groups]
    with canvas(target, 9.0, 4.2, [group.label for group in groups]) as figure:
        axes = figure.axes[0]
        figure.curves(axes, curves, [len(group.runs) for group in groups])
        square_root(axes, _top(float(np.nanmax(curve.mean)) for curve in curves))
        figure.domains(axes, spans(groups[0].runs[0]))
        axes.set_xlabel("batch")
        axes.set_ylabel("error (%)")
        figure.legend(axes)


def notes_along_stream(groups: Sequence[Group], notes: Mapping[str, str], target: Target) -> None:
    """Draw values of ``Adapter.last`` along the stream, a panel for each; ``notes`` are keys and axis labels."""
    count, labels = len(notes), [group.label for group in groups]
    with canvas(target, 9.6, 1.4 + 2.2 * count, labels, rows=count, share="x") as figure:
        for axes, (key, label) in zip(figure.axes, notes.items(), strict=True):
            curves = [along_stream(group.runs, key) for group in groups]
            figure.curves(axes, curves, [len(group.runs) for group in groups], marks=8 if figure.page else 12)
            values = [value for curve in curves for value in curve.mean[np.isfinite(curve.mean)]]
            if values:
                room = max(0.06 * (max(values) - min(values)), 1e-3 * abs(max(values)), 1e-9)
                axes.set_ylim(min(values) - room, max(values) + room)
            axes.locator_params(axis="y", nbins=5)
            axes.set_ylabel(label)
            figure.domains(axes, spans(groups[0].runs[0]), named=not figure.page and axes is figure.axes[0])
        figure.legend(figure.axes[0])
        figure.axes[-1].set_xlabel("batch")


def priors_along_stream(run: Run, target: Target) -> None:
    """Draw the mean entropy of VCoTTA's source and teacher prior at each batch, with the domains named above.

    Raises:
        ValueError: The run has no ``entropy_source`` and ``entropy_teacher``.
    """
    notes = {"entropy_source": "source", "entropy_teacher": "teacher"}
    if missing := [note for note in notes if note not in noted([run])]:
        raise ValueError(
            f"Expected a run that notes `{missing[0]}`, but `{run.method}` does not. Give a run of vcotta."
        )
    with canvas(target, 9.0, 3.6, list(notes.values())) as figure:
        axes = figure.axes[0]
        figure.curves(axes, [along_stream([run], note) for note in notes], [1, 1])
        figure.domains(axes, spans(run))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch")
        axes.set_ylabel("mean entropy (nats)")
        figure.legend(axes)


def reliability(runs: Runs, target: Target, *, only: int | None = None) -> None:
    """Draw accuracy against confidence over the whole stream, in 15 bins of equal width, the seeds pooled.

    Lines leave out bins with fewer than ten predictions. The ECE in the legend is the mean over domains, as in tables.
    With ``only``, the place of one method, its gaps to the diagonal are drawn, and dots that grow with their
    predictions.
    """
    groups = as_groups(runs)
    with canvas(target, 6.4, 4.2, [group.label for group in groups]) as figure:
        axes = figure.axes[0]
        axes.plot([0, 1], [0, 1], color=figure.ink, linewidth=0.8, linestyle="--", zorder=1)
        for place, group in enumerate(groups):
            if only not in (None, place):
                continue
            bins = reliability_bins(group.runs)
            solid = [part for part in bins if part[2] >= FEWEST_IN_BIN]
            confidences, accuracies = [c for c, _, _ in solid], [a for _, a, _ in solid]
            label = f"{group.label}  {group.score('ece').mean:.3f}"
            marker = figure.style(place).marker if only is None else None
            figure.line(axes, place, confidences, accuracies, label=label, linestyle="-", marker=marker, markevery=1)
            if only is not None:
                _draw_bins(figure, place, bins)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        if only is not None:
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        figure.legend(axes, "mean ECE")


def _draw_bins(figure: Canvas, place: int, bins: Sequence[tuple[float, float, int]]) -> None:
    axes, style, total = figure.axes[0], figure.marked(place), sum(count for _, _, count in bins)
    for confidence, accuracy, count in bins:
        hint = f"{confidence:.1%} confident, {accuracy:.1%} right, {count} predictions"
        size = 3.0 + 10.0 * math.sqrt(count / total)
        dot = style | {"marker": "o", "markersize": size, "clip_on": False}
        gap = {"color": style["color"], "linewidth": 4, "alpha": 0.25, "zorder": 2}
        figure.own(place, hint, *axes.plot([confidence], [accuracy], **dot))
        if count >= FEWEST_IN_BIN:
            figure.own(place, hint, *axes.plot([confidence] * 2, [accuracy, confidence], **gap))


def risk_against_coverage(runs: Runs, target: Target) -> None:
    """Draw the error among the most confident predictions against the share kept, the seeds pooled."""
    groups = as_groups(runs)
    curves = [risk_coverage(group.runs) for group in groups]
    with canvas(target, 6.4, 4.2, [group.label for group in groups]) as figure:
        axes = figure.axes[0]
        for place, (group, (coverage, risk)) in enumerate(zip(groups, curves, strict=True)):
            label = group.label if figure.page else f"{group.label}  {group.score('aurc').mean:.3f}"
            figure.line(axes, place, 100 * coverage, 100 * risk, marks=8, label=label)
        axes.set_xlim(0, 101)
        square_root(axes, _top(100 * float(risk.max()) for _, risk in curves))
        axes.set_xlabel("coverage: share of predictions kept, the most confident first (%)")
        axes.set_ylabel("error among those kept (%)")
        figure.legend(axes, "mean AURC")


def cost_against_error(runs: Runs, target: Target, *, by: Literal["passes", "seconds"] = "passes") -> None:
    """Draw the mean error against passes of a batch, or seconds of a domain, which depend on the machine."""
    groups = as_groups(runs)
    costs = [group.passes() if by == "passes" else group.domain_seconds() for group in groups]
    named_points([group.label for group in groups], costs, [group.error for group in groups], COSTS[by], target)


def named_points(
    labels: Sequence[str], costs: Sequence[Score], errors: Sequence[Score], x_label: str, target: Target
) -> None:
    """Draw errors in per cent against costs on a logarithmic axis, each point with its name and 95 % interval.

    Points without a finite error or a cost above 0 are left out.
    """
    shown = [k for k in range(len(labels)) if 0 < costs[k].mean < math.inf and math.isfinite(errors[k].mean)]
    means = [costs[place].mean for place in shown] or [1.0]
    low, high = 0.7 * min(means), 2 * max(means)
    ticks = [m * 10.0**p for p in range(-6, 9) for m in (1, 2, 5) if low <= m * 10.0**p <= high]
    ticks = ticks if len(ticks) < 8 else ticks[::2]
    with canvas(target, 6.4, 4.6 if len(labels) <= MOST_BANDS else 6.0, labels) as figure:
        axes = figure.axes[0]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(low, high)
        square_root(axes, _top(errors[place].mean for place in shown))
        axes.set_xlabel(f"{x_label} (logarithmic)")
        axes.set_ylabel("mean error (%)")
        figure.settle()
        points = [tuple(axes.transData.transform((costs[place].mean, errors[place].mean))) for place in shown]
        box, size = (axes.bbox.x0, axes.bbox.x1, axes.bbox.y0, axes.bbox.y1), 9.0 if figure.page else 10.0
        starts = place_names([labels[place] for place in shown], points, box, size)
        for place, (x, y), (start, middle) in zip(shown, points, starts, strict=True):
            cost, error, label = costs[place], errors[place], labels[place]
            look = figure.marked(place) | {"markersize": 6.5, "linestyle": "none"}
            width = error.width if error.has_interval else None
            drawn = axes.errorbar(cost.mean, error.mean, yerr=width, elinewidth=1.2, **look)
            name = axes.annotate(
                label,
                (cost.mean, error.mean),
                (start - x, middle - y),
                textcoords="offset points",
                va="center",
                color=look["color"],
                arrowprops={"arrowstyle": "-", "linewidth": 0.7, "alpha": 0.5, "color": look["color"], "shrinkA": 0}
                if abs(middle - y) > OFFSETS[2]
                else None,
            )
            hint = f"{label}: {cost.text('.3g')}, error {error.text('.1f')} %"
            figure.own(place, hint, *drawn.get_children(), name.arrow_patch, name)


def place_names(
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    box: tuple[float, float, float, float],
    size: float,
) -> list[tuple[float, float]]:
    """Return where the names of points start: inside the box, beside their point, or as near as there is room.

    All lengths are in 1/72 inch; ``box`` is the left, right, lower and upper end of the axes, ``size`` the font's.
    """
    half, left, right, low, high = size / 2, *box
    taken = [(x - half, x + half, y - half, y + half) for x, y in points]
    found = []
    for name, (x, y) in zip(names, points, strict=True):
        width = LETTER * size * len(name)
        places = [(side, y + offset) for offset in OFFSETS for side in (x + 7, x - 7 - width)]
        inside = [(s, m) for s, m in places if left < s < right - width and low + half < m < high - half]
        free = [
            (s, m)
            for s, m in inside
            if not any(a < s + width and s < b and c < m + half and m - half < d for a, b, c, d in taken)
        ]
        start, middle = (free or inside or places)[0]
        taken.append((start, start + width, middle - half, middle + half))
        found.append((start, middle))
    return found


def _top(errors: Iterable[float]) -> float:
    return min(100.0, 1.08 * max([1.0, *filter(math.isfinite, errors)]))
