"""Figures of an experiment, as PNG or PDF files: our results beside the paper's."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vcotta.report.canvas import canvas, square_root
from vcotta.report.method_styles import method_styles

__all__ = ["Series", "bar_panels", "curves", "dots", "stacked_bars"]

File = str | os.PathLike[str]
PAPER = {"marker": "D", "markersize": 6, "markerfacecolor": "white", "markeredgecolor": "black", "linestyle": "none"}
FAR_APART = 6  # largest by smallest error from which on the axis is a square root
WHISKER = {"elinewidth": 1, "capsize": 2.5, "ecolor": "0.25"}


@dataclass(frozen=True)
class Series:
    """Values to draw; not-a-number where there is none.

    Attributes:
        label: What they are.
        values: The values.
        widths: Half the width of the 95 % interval of each.
        paper: The paper's values.
    """

    label: str
    values: Sequence[float]
    widths: Sequence[float]
    paper: Sequence[float]


def bar_panels(rows: Sequence[str], methods: Sequence[str], series: Sequence[Series], path: File) -> None:
    """Draw a bar for each row, coloured by its method, in a panel for each series; diamonds are the paper's values."""
    known = list(dict.fromkeys(methods))
    styles = dict(zip(known, method_styles(known), strict=True))
    places = np.arange(len(rows))
    columns = min(2, len(series))
    lines = -(-len(series) // columns)
    height = lines * (1.1 + 0.36 * len(rows))
    with canvas(path, 2.0 + 3.4 * columns, height, rows=lines, columns=columns, share="y") as figure:
        for axes, one in zip(figure.axes, series, strict=False):
            colours = [styles[method].colour for method in methods]
            axes.barh(places, one.values, 0.66, color=colours, xerr=_whiskers(one.widths), error_kw=WHISKER)
            top = _highest(one)
            for place, value, width, paper in zip(places, one.values, one.widths, one.paper, strict=True):
                if math.isfinite(value):
                    end = np.nanmax([value, value + width, paper + 0.015 * top])
                    words = f"{_short(value)} (paper {_short(paper)})" if math.isfinite(paper) else _short(value)
                    axes.text(end + 0.015 * top, float(place), words, va="center", fontsize=9)
            if np.isfinite(one.paper).any():
                axes.plot(one.paper, places, label="paper", zorder=4, **PAPER)  # type: ignore[arg-type]
                axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
            axes.set_xlim(0, (1.5 if np.isfinite(one.paper).any() else 1.16) * top)
            axes.locator_params(axis="x", nbins=5)
            axes.set_xlabel(one.label)
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
        figure.axes[0].set_yticks(places, rows)
        figure.axes[0].invert_yaxis()


def curves(ticks: Sequence[str], series: Sequence[Series], x_label: str, path: File) -> None:
    """Draw the error of each method over evenly spaced values of a setting; dashed lines are the paper's values."""
    places = np.arange(len(ticks))
    with canvas(path, 6.4, 4.0, [one.label for one in series]) as figure:
        axes = figure.axes[0]
        for place, one in enumerate(series):
            style, shift = figure.style(place), 0.06 * (place - (len(series) - 1) / 2)
            known = np.isfinite(one.values)
            axes.errorbar(
                places[known] + shift,
                np.asarray(one.values)[known],
                yerr=_whiskers([w for w, k in zip(one.widths, known, strict=True) if k]),
                linewidth=1.4,
                elinewidth=0.9,
                ecolor=(style.colour, 0.45),
                label=one.label,
                **figure.marked(place),
            )
            if np.isfinite(one.paper).any():
                drawn = axes.plot(places, one.paper, "--", color=style.colour, linewidth=1, marker=style.marker)
                drawn[0].set(markerfacecolor="none", markersize=6, label=f"{one.label}, paper")
        every = [v for one in series for line in (one.values, one.paper) for v in line if math.isfinite(v)]
        if every and max(every) > FAR_APART * max(min(every), 0.5):
            square_root(axes, min(100.0, 1.1 * max(every)))
        axes.set_xlim(-0.4, len(ticks) - 0.6)
        axes.set_xticks(places, ticks)
        axes.set_xlabel(x_label)
        axes.set_ylabel("mean error (%)")
        figure.legend(axes)


def stacked_bars(rows: Sequence[str], parts: Mapping[str, Sequence[float]], x_label: str, path: File) -> None:
    """Draw a bar for each row, made of the row's value in each part; their sum is written at its end."""
    colours = ("#0072B2", "#56B4E9", "#E69F00", "#CC79A7", "#009E73")
    places, ends = np.arange(len(rows)), np.zeros(len(rows))
    with canvas(path, 7.2, 1.3 + 0.42 * len(rows)) as figure:
        axes = figure.axes[0]
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
    """Draw every value of each method as a dot, their mean as a bar, and the paper's mean, if any, as a diamond."""
    with canvas(path, 6.4, 1.3 + 0.5 * len(values), list(values)) as figure:
        axes = figure.axes[0]
        for place, (name, found) in enumerate(values.items()):
            spread = np.linspace(-0.22, 0.22, len(found)) if len(found) > 1 else np.zeros(1)
            axes.plot(found, place + spread, linestyle="none", alpha=0.8, **figure.marked(place))
            mean = float(np.mean(found))
            axes.plot([mean, mean], [place - 0.36, place + 0.36], color="black", linewidth=1.6)
            axes.annotate(f"{mean:.2f}", (mean, place - 0.38), ha="center", va="bottom", fontsize=9)
            if name in paper:
                first = "paper" if name == next(iter(paper)) else None
                axes.plot([paper[name]], [place], zorder=4, label=first, **PAPER)  # type: ignore[arg-type]
        if paper:
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)
        axes.set_yticks(range(len(values)), list(values))
        axes.set_ylim(len(values) - 0.45, -0.75)
        axes.margins(x=0.08)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(x_label)


def _whiskers(widths: Sequence[float]) -> list[float] | None:
    return [0.0 if math.isnan(width) else width for width in widths] if np.isfinite(widths).any() else None


def _highest(one: Series) -> float:
    ends = [v + (0.0 if math.isnan(w) else w) for v, w in zip(one.values, one.widths, strict=True) if math.isfinite(v)]
    return max([*ends, *(value for value in one.paper if math.isfinite(value)), 1e-9])


def _short(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"
