"""More figures for paper: the heat map, the stream, risk and coverage, and what a method costs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np

from vcotta.report.axes import legend_beside, name_domains, square_root
from vcotta.report.canvas import figure
from vcotta.report.curves import along_stream, risk_coverage, spans
from vcotta.report.groups import Group, as_groups
from vcotta.report.looks import looks
from vcotta.runs import Run

__all__ = ["cost_against_error", "error_along_stream", "error_heat_map", "risk_against_coverage"]


def error_heat_map(runs: Sequence[Run] | Sequence[Group], path: str | os.PathLike[str]) -> None:
    """Draw the error of each method on each domain as a table of shades, with the numbers in it.

    Args:
        runs: Runs of one stream; one line a method and setting, lowest mean error first.
        path: PNG or PDF file to write.
    """
    groups = sorted(as_groups(runs), key=lambda group: group.score("error").mean)
    names = [*groups[0].domains, "mean"]
    table = np.array(
        [[*(g.domain_score(k).mean for k in range(len(names) - 1)), g.score("error").mean] for g in groups]
    )
    with figure(path, width=2.2 + 0.45 * len(names), height=1.4 + 0.32 * len(groups)) as axes:
        # The square root keeps errors of 1 and of 5 per cent apart where another is 90.
        shades = np.sqrt(table)
        deepest = 1.25 * max(1.0, float(np.nanmax(shades)))
        axes.pcolormesh(shades, cmap="Greys", vmin=0, vmax=deepest, edgecolors="white", linewidth=0.5)
        axes.invert_yaxis()
        for row, line in enumerate(table):
            for column, value in enumerate(line):
                dark = shades[row, column] > 0.75 * np.nanmax(shades)
                colour, weight = "white" if dark else "black", "bold" if value <= np.nanmin(table[:, column]) else None
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    f"{value:.1f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=colour,
                    weight=weight,
                )
        axes.axvline(len(names) - 1, color="white", linewidth=3)
        axes.set_xticks(np.arange(len(names)) + 0.5, names, rotation=40, ha="right", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(groups)) + 0.5, [group.label for group in groups])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)


def error_along_stream(runs: Sequence[Run] | Sequence[Group], path: str | os.PathLike[str]) -> None:
    """Draw the error batch by batch, with the domains named above; a long stream is averaged to 160 points.

    Args:
        runs: Runs of one stream; one line a method and setting, the mean over its seeds.
        path: PNG or PDF file to write.
    """
    groups = as_groups(runs)
    domains = spans(groups[0])
    with figure(path, width=9.0, height=4.2) as axes:
        for how, group in zip(looks([group.label for group in groups]), groups, strict=True):
            curve, dashes = along_stream(group), (0, how.dash) if how.dash else "-"
            axes.plot(
                curve.batches,
                curve.mean,
                color=how.colour,
                linestyle=dashes,
                linewidth=1.3,
                marker=how.marker,
                markevery=max(1, len(curve.batches) // 15),
                markersize=4.5,
                markeredgecolor="white",
                label=group.label,
            )
        square_root(axes)
        axes.set_xlabel("batch")
        axes.set_ylabel("error (%)")
        name_domains(axes, domains)
        legend_beside(axes)


def risk_against_coverage(runs: Sequence[Run] | Sequence[Group], path: str | os.PathLike[str]) -> None:
    """Draw the error among the most confident predictions against the share of them that is kept.

    Args:
        runs: Runs of one stream; one line a method and setting, its seeds pooled. The legend tells the mean AURC.
        path: PNG or PDF file to write.
    """
    groups = as_groups(runs)
    with figure(path, width=6.4, height=4.2) as axes:
        for how, group in zip(looks([group.label for group in groups]), groups, strict=True):
            coverage, risk = risk_coverage(group.runs)
            axes.plot(
                100 * coverage,
                100 * risk,
                color=how.colour,
                linestyle=(0, how.dash) if how.dash else "-",
                linewidth=1.4,
                marker=how.marker,
                markevery=(4, 10),
                markersize=5,
                markeredgecolor="white",
                label=f"{group.label}  {group.score('aurc').mean:.3f}",
            )
        axes.set_xlim(0, 101)
        square_root(axes)
        axes.set_xlabel("coverage (%)")
        axes.set_ylabel("error among those kept (%)")
        legend_beside(axes, "mean AURC")


def cost_against_error(
    runs: Sequence[Run] | Sequence[Group],
    path: str | os.PathLike[str],
    by: Literal["passes", "seconds"] = "passes",
) -> None:
    """Draw the mean error against what it costs, with the range over seeds.

    Args:
        runs: Runs of one stream; one point a method and setting.
        path: PNG or PDF file to write.
        by: Forward and backward passes of a batch, which no machine changes, or seconds a domain.
    """
    groups = as_groups(runs)
    costs = [g.passes().mean if by == "passes" else g.score("seconds").mean / len(g.domains) for g in groups]
    with figure(path, width=6.4, height=4.2) as axes:
        for how, group, cost in zip(looks([group.label for group in groups]), groups, costs, strict=True):
            error = group.score("error")
            axes.errorbar(
                cost,
                error.mean,
                yerr=[[error.mean - error.low], [error.high - error.mean]] if error.several else None,
                color=how.colour,
                marker=how.marker,
                markersize=7,
                markeredgecolor="white",
                linestyle="none",
                label=group.label,
            )
        low, high = 0.7 * min(costs), 1.5 * max(costs)
        ticks = [m * 10.0**p for p in range(-6, 9) for m in (1, 2, 5) if low <= m * 10.0**p <= high]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(low, high)
        square_root(axes)
        axes.set_xlabel("forward and backward passes a batch" if by == "passes" else "seconds a corruption")
        axes.set_ylabel("mean error (%)")
        legend_beside(axes)
