"""Figures of runs, as PNG or PDF files that are the same bytes for the same runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vcotta.report.axes import legend_beside, name_domains
from vcotta.report.canvas import figure
from vcotta.report.curves import along_stream, noted, reliability_bins, spans
from vcotta.report.groups import Group, as_groups, group_runs
from vcotta.report.looks import MOST_BANDS, looks
from vcotta.runs import Run

__all__ = ["alpha_along_stream", "error_by_corruption", "priors_along_stream", "reliability"]

LEAST_IN_BIN = 10


def error_by_corruption(runs: Sequence[Run] | Sequence[Group], path: str | os.PathLike[str]) -> None:
    """Draw the error of each method on each domain in order of the stream, and the means beside them.

    Args:
        runs: Runs of one stream; one line a method and setting, the mean over its seeds with their range as a band
            unless there are many. The mean error stands in the legend.
        path: PNG or PDF file to write.
    """
    from matplotlib.ticker import NullLocator  # slow to import, and needed only where a figure is drawn

    groups = as_groups(runs)
    labels = groups[0].domains
    table = [[group.domain_score(place) for place in range(len(labels))] for group in groups]
    with figure(path, width=max(5.0, 3.5 + 0.4 * len(labels)), height=4.2) as axes:
        places = np.arange(len(labels))
        at_mean = len(labels) + 0.4 + (np.linspace(-0.3, 0.3, len(groups)) if len(groups) > 1 else np.zeros(1))
        all_looks = looks([group.label for group in groups])
        for how, group, errors, beside in zip(all_looks, groups, table, at_mean, strict=True):
            mean = group.score("error").mean
            look: dict[str, Any] = {"color": how.colour, "marker": how.marker, "markersize": 5.5}
            look["markeredgecolor"] = "white"
            axes.plot(places, [e.mean for e in errors], linewidth=1.2, label=f"{group.label}  {mean:.1f} %", **look)
            axes.plot(beside, mean, **look)
            if len(group.runs) > 1 and len(groups) <= MOST_BANDS:
                low, high = [e.low for e in errors], [e.high for e in errors]
                axes.fill_between(places, low, high, color=how.colour, alpha=0.15, linewidth=0)
        axes.axvline(len(labels) - 0.35, color="0.6", linewidth=0.8)
        axes.set_xlim(-0.5, len(labels) + 1)
        # Errors of 1 and of 90 per cent in one picture: logarithmic, but for the lowest per cent, which may be zero.
        axes.set_yscale("symlog", linthresh=1, linscale=0.3)
        ticks = [0, 1, 2, 5, 10, 20, 50, 100]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        scores = [error for line in table for error in line]
        bottom = max(tick for tick in ticks if tick <= 0.8 * min(error.low for error in scores))
        axes.set_ylim(bottom, 1.15 * max(10.0, *(error.high for error in scores)))
        axes.set_xticks(
            [*places, len(labels) + 0.4], [*labels, "mean"], rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("error (%)")
        legend_beside(axes, "mean error")


def alpha_along_stream(run: Run, path: str | os.PathLike[str]) -> None:
    """Draw the weight alpha of the source prior at each batch, with the domains named above.

    Args:
        run: A run whose adapter notes ``alpha``, such as VCoTTA's.
        path: PNG or PDF file to write.

    Raises:
        ValueError: The run has no alpha.
    """
    _draw_notes(run, {"alpha": run.method}, r"$\alpha$, weight of the source prior", path)


def priors_along_stream(run: Run, path: str | os.PathLike[str]) -> None:
    """Draw how unsure both priors are at each batch, their mean entropies, with the domains named above.

    Args:
        run: A run whose adapter notes ``entropy_source`` and ``entropy_teacher``, such as VCoTTA's.
        path: PNG or PDF file to write.

    Raises:
        ValueError: The run has no such notes.
    """
    _draw_notes(run, {"entropy_source": "source", "entropy_teacher": "teacher"}, "mean entropy (nats)", path)


def _draw_notes(run: Run, notes: dict[str, str], measure: str, path: str | os.PathLike[str]) -> None:
    """Draw what an adapter noted at each batch, one line a note under the name given to it."""
    group = group_runs([run])[0]
    if missing := [note for note in notes if note not in noted([group])]:
        raise ValueError(
            f"Expected a run that notes `{missing[0]}`, but `{run.method}` does not. Give a run of vcotta."
        )
    domains, names = spans(group), list(notes.values())
    values = np.stack([along_stream(group, note, most=len(run.records)).mean for note in notes])
    with figure(path, width=9.0, height=3.6) as axes:
        for name, how, line in zip(names, looks(names), values, strict=True):
            # One short line a domain: nothing was measured between the last batch of one and the first of the next.
            for span in domains:
                part, label = slice(span.start, span.end), name if span is domains[0] else None
                axes.plot(
                    np.arange(span.start, span.end), line[part], color=how.colour, marker=".", ms=3, lw=1.4, label=label
                )
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        room = max(0.02, 0.05 * (high - low))  # keeps a constant from being drawn as rounding noise
        axes.set_ylim(max(low - room, -0.02), high + room)
        axes.set_xlabel("batch")
        axes.set_ylabel(measure)
        name_domains(axes, domains)
        legend_beside(axes)


def reliability(runs: Sequence[Run] | Sequence[Group], path: str | os.PathLike[str]) -> None:
    """Draw accuracy against confidence over the whole stream, in 15 bins of equal width.

    Bins with fewer than ten predictions are left out. The ECE in the legend is the mean over domains, as in tables.

    Args:
        runs: Runs of one stream; one line a method and setting, its seeds pooled.
        path: PNG or PDF file to write.
    """
    groups = as_groups(runs)
    with figure(path, width=6.4, height=4.2) as axes:
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
        for how, group in zip(looks([group.label for group in groups]), groups, strict=True):
            kept = [line for line in reliability_bins(group.runs) if line[2] >= LEAST_IN_BIN]
            axes.plot(
                [confidence for confidence, _, _ in kept],
                [accuracy for _, accuracy, _ in kept],
                color=how.colour,
                marker=how.marker,
                markersize=5.5,
                markeredgecolor="white",
                linewidth=1.2,
                label=f"{group.label}  {group.score('ece').mean:.3f}",
            )
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        legend_beside(axes, "mean ECE")
