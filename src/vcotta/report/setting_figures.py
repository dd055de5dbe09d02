"""Figures of an experiment: what came out beside what the paper prints, over settings, groups, orders or the stream."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vcotta.report.axes import legend_beside, name_domains, square_root
from vcotta.report.canvas import figure, panels
from vcotta.report.curves import along_stream, spans
from vcotta.report.groups import Group
from vcotta.report.looks import Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Series", "bar_panels", "curves", "dots", "notes_along_stream", "stacked_bars"]

File = str | os.PathLike[str]
PAPER = {"marker": "D", "markersize": 6, "markerfacecolor": "white", "markeredgecolor": "black", "linestyle": "none"}
FAR_APART = 6
"""Errors whose largest is so many times the smallest are drawn on a square-root axis."""


@dataclass(frozen=True)
class Series:
    """Values to draw, with what stands beside them; not-a-number where there is none.

    Attributes:
        label: Name of the whole.
        values: The values.
        widths: Half the width of the interval of each.
        paper: The paper's values.
    """

    label: str
    values: Sequence[float]
    widths: Sequence[float]
    paper: Sequence[float]


def bar_panels(rows: Sequence[str], methods: Sequence[str], series: Sequence[Series], path: File) -> None:
    """Draw bars from zero, one a row, in a panel for each score; whiskers are intervals, diamonds the paper.

    Args:
        rows: Names of the rows.
        methods: Method of each row, for its colour.
        series: One a panel; its label is the heading.
        path: PNG or PDF file to write.
    """
    look = dict(zip(dict.fromkeys(methods), looks(list(dict.fromkeys(methods))), strict=True))
    places = np.arange(len(rows))
    columns = min(2, len(series))
    lines = -(-len(series) // columns)
    height = lines * (1.1 + 0.36 * len(rows))
    with panels(path, 2.0 + 3.4 * columns, height, lines, columns, share="y") as all_axes:
        for axes, one in zip(all_axes, series, strict=False):
            colours = [look[method].colour for method in methods]
            axes.barh(places, one.values, 0.66, color=colours, xerr=_whiskers(one.widths), error_kw=WHISKER)
            top = _highest(one)
            for place, value, width, paper in zip(places, one.values, one.widths, one.paper, strict=True):
                if math.isfinite(value):
                    end = np.nanmax([value, value + width, paper + 0.015 * top])
                    words = f"{_short(value)} (paper {_short(paper)})" if math.isfinite(paper) else _short(value)
                    axes.text(end + 0.015 * top, float(place), words, va="center", fontsize=9)
            if np.isfinite(one.paper).any():
                axes.plot(one.paper, places, label="paper", zorder=3, **PAPER)  # type: ignore[arg-type]
                axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
            axes.set_xlim(0, (1.5 if np.isfinite(one.paper).any() else 1.16) * top)
            axes.locator_params(axis="x", nbins=5)
            axes.set_xlabel(one.label)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
        all_axes[0].set_yticks(places, rows)
        all_axes[0].invert_yaxis()


def curves(
    ticks: Sequence[str],
    series: Sequence[Series],
    x_label: str,
    path: File,
    y_label: str = "mean error (%)",
) -> None:
    """Draw a line a method over the values of a setting, evenly spaced; bars are intervals, hollow dashes the paper.

    Args:
        ticks: The values of the setting, written.
        series: The lines; their labels are methods.
        x_label: What the setting is.
        path: PNG or PDF file to write.
        y_label: What is drawn.
    """
    places = np.arange(len(ticks))
    with figure(path, 6.4, 4.0) as axes:
        shifts = 0.06 * (np.arange(len(series)) - (len(series) - 1) / 2)
        for how, shift, one in zip(looks([one.label for one in series]), shifts, series, strict=True):
            known = np.isfinite(one.values)
            axes.errorbar(
                places[known] + shift,
                np.asarray(one.values)[known],
                yerr=_whiskers([w for w, k in zip(one.widths, known, strict=True) if k]),
                linewidth=1.4,
                elinewidth=0.9,
                ecolor=(how.colour, 0.45),
                label=one.label,
                **_marked(how),
            )
            if np.isfinite(one.paper).any():
                drawn = axes.plot(places, one.paper, "--", color=how.colour, linewidth=1, marker=how.marker)
                drawn[0].set(markerfacecolor="none", markersize=6, label=f"{one.label}, paper")
        every = [v for one in series for line in (one.values, one.paper) for v in line if math.isfinite(v)]
        _set_error_axis(axes, every)
        axes.set_xlim(-0.4, len(ticks) - 0.6)
        axes.set_xticks(places, ticks)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        legend_beside(axes)


def stacked_bars(rows: Sequence[str], parts: Mapping[str, Sequence[float]], x_label: str, path: File) -> None:
    """Draw one bar a row, made of parts whose sum is its length and stands at its end.

    Args:
        rows: Names of the rows.
        parts: For each part its share in every row; not-a-number counts as nothing.
        x_label: What the length is.
        path: PNG or PDF file to write.
    """
    colours = ("#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#009E73")
    places, ends = np.arange(len(rows)), np.zeros(len(rows))
    with figure(path, 7.2, 1.3 + 0.42 * len(rows)) as axes:
        for colour, (name, shares) in zip(colours, parts.items(), strict=False):
            lengths = np.nan_to_num(shares)
            axes.barh(places, lengths, 0.66, left=ends, color=colour, edgecolor="white", linewidth=0.8, label=name)
            ends = ends + lengths
        for place, end in zip(places, ends, strict=True):
            axes.text(end + 0.012 * ends.max(), float(place), _short(end), va="center", fontsize=9)
        axes.set_xlim(0, 1.1 * max(ends.max(), 1e-9))
        axes.set_yticks(places, rows)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x_label)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(parts), borderaxespad=0.2, handlelength=1)


def dots(values: Mapping[str, Sequence[float]], paper: Mapping[str, float], x_label: str, path: File) -> None:
    """Draw every value of each row as a dot and their mean as a bar, the paper's mean as a diamond.

    Args:
        values: For each method its values, one an order, say.
        paper: The paper's means of some of them.
        x_label: What the values are.
        path: PNG or PDF file to write.
    """
    with figure(path, 6.4, 1.3 + 0.5 * len(values)) as axes:
        for place, (how, (name, found)) in enumerate(zip(looks(list(values)), values.items(), strict=True)):
            spread = np.linspace(-0.22, 0.22, len(found)) if len(found) > 1 else np.zeros(1)
            axes.plot(found, place + spread, linestyle="none", alpha=0.8, **_marked(how))
            mean = float(np.mean(found))
            axes.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=1.6)
            axes.annotate(f"{mean:.2f}", (mean, place - 0.38), ha="center", va="bottom", fontsize=9)
            if name in paper:
                first = "paper" if name == next(iter(paper)) else None
                axes.plot([paper[name]], [place], zorder=3, label=first, **PAPER)  # type: ignore[arg-type]
        if paper:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        axes.set_yticks(range(len(values)), list(values))
        axes.set_ylim(len(values) - 0.45, -0.75)
        axes.margins(x=0.08)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x_label)


def notes_along_stream(groups: Sequence[Group], notes: Mapping[str, str], path: File) -> None:
    """Draw what adapters noted of themselves along the stream, one panel a note, the domains named above.

    Args:
        groups: Runs of one stream; one line each, the mean over its runs.
        notes: For each key of ``last`` the label of its axis.
        path: PNG or PDF file to write.
    """
    domains = spans(groups[0])
    with panels(path, 9.6, 1.4 + 2.2 * len(notes), len(notes), share="x") as all_axes:
        for axes, (key, label) in zip(all_axes, notes.items(), strict=True):
            for how, group in zip(looks([group.label for group in groups]), groups, strict=True):
                curve = along_stream(group, key)
                step = max(1, len(curve.batches) // 12)
                dashes = (0, how.dash) if how.dash else "-"
                axes.plot(
                    curve.batches,
                    curve.mean,
                    linestyle=dashes,
                    linewidth=1.4,
                    markevery=step,
                    label=group.label,
                    **_marked(how),
                )
            axes.set_ylabel(label)
            name_domains(axes, domains, named=axes is all_axes[0])
        legend_beside(all_axes[0])
        all_axes[-1].set_xlabel("batch")


WHISKER = {"elinewidth": 1, "capsize": 2.5, "ecolor": "0.25"}


def _marked(how: Look) -> dict[str, Any]:
    return {"color": how.colour, "marker": how.marker, "markersize": 5.5, "markeredgecolor": "white"}


def _whiskers(widths: Sequence[float]) -> list[float] | None:
    return [0.0 if math.isnan(width) else width for width in widths] if np.isfinite(widths).any() else None


def _highest(one: Series) -> float:
    ends = [v + (0.0 if math.isnan(w) else w) for v, w in zip(one.values, one.widths, strict=True) if math.isfinite(v)]
    return max([*ends, *(value for value in one.paper if math.isfinite(value)), 1e-9])


def _set_error_axis(axes: Axes, errors: Sequence[float]) -> None:
    """From near the smallest error to the largest; on a square root where they are far apart."""
    if errors and max(errors) > FAR_APART * max(min(errors), 0.5):
        axes.set_ylim(0, min(100.0, 1.1 * max(errors)))
        square_root(axes)


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
