"""Figures of runs, as PNG files that are the same bytes for the same runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vcotta.files import atomic_path
from vcotta.report.domains import domain_labels, same_domains
from vcotta.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["alpha_along_stream", "error_by_corruption", "reliability"]

# Okabe and Ito's palette, told apart by colour-blind eyes; the markers help in print.
LOOK = {
    "source": ("#7f7f7f", "o"),
    "bn": ("#E69F00", "s"),
    "tent": ("#56B4E9", "^"),
    "cotta": ("#009E73", "v"),
    "vcotta": ("#D55E00", "D"),
}
SPARE = [("#0072B2", "P"), ("#CC79A7", "X"), ("#000000", "<"), ("#8C6D1F", ">"), ("#5D3A9B", "h")]
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
LEAST_IN_BIN = 10


def error_by_corruption(runs: Sequence[Run], path: str | os.PathLike[str]) -> None:
    """Draw the error of each run on each domain in order of the stream, and the means beside them.

    Args:
        runs: Runs of one stream, one line each; the mean error stands in the legend.
        path: PNG file to write.
    """
    from matplotlib.ticker import NullLocator  # slow to import, and needed only where a figure is drawn

    summaries, labels = same_domains(runs)
    with _figure(path, width=max(5.0, 3.5 + 0.4 * len(labels)), height=4.2) as axes:
        places = np.arange(len(labels))
        at_mean = len(labels) + 0.4 + (np.linspace(-0.3, 0.3, len(runs)) if len(runs) > 1 else np.zeros(1))
        for (colour, marker), run, summary, beside in zip(_looks(runs), runs, summaries, at_mean, strict=True):
            mean = 100 * summary["mean"]["error"]
            errors = [100 * domain["error"] for domain in summary["domains"]]
            look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5.5, "markeredgecolor": "white"}
            axes.plot(places, errors, linewidth=1.2, label=f"{run.method}  {mean:.1f} %", **look)
            axes.plot(beside, mean, **look)
        axes.axvline(len(labels) - 0.35, color="0.6", linewidth=0.8)
        axes.set_xlim(-0.5, len(labels) + 1)
        # Errors of 1 and of 90 per cent in one picture: logarithmic, but for the lowest per cent, which may be zero.
        axes.set_yscale("symlog", linthresh=1, linscale=0.3)
        ticks = [0, 1, 2, 5, 10, 20, 50, 100]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0, 1.15 * max(10.0, *(100 * part["error"] for one in summaries for part in one["domains"])))
        axes.set_xticks(
            [*places, len(labels) + 0.4], [*labels, "mean"], rotation=40, ha="right", rotation_mode="anchor"
        )
        axes.grid(axis="x", visible=False)
        axes.set_ylabel("error (%)")
        axes.legend(title="mean error", alignment="left", loc="upper left", bbox_to_anchor=(1.01, 1))


def alpha_along_stream(run: Run, path: str | os.PathLike[str]) -> None:
    """Draw the weight alpha of the source prior at each batch, with the domains named above.

    Args:
        run: A run whose adapter notes ``alpha``, such as VCoTTA's.
        path: PNG file to write.

    Raises:
        ValueError: The run has no alpha.
    """
    alphas = np.array([_number(record["last"].get("alpha")) for record in run.records])
    if not np.isfinite(alphas).any():
        raise ValueError(f"Expected a run that notes `alpha`, but `{run.method}` does not. Give a run of vcotta.")
    labels = domain_labels(run.summary())
    lengths = [len(list(part)) for _, part in groupby(run.records, key=lambda r: (r["domain"], r["severity"]))]
    ends = np.cumsum(lengths)
    with _figure(path, width=9.0, height=3.6) as axes:
        colour, _ = _looks([run])[0]
        # One short line a domain: nothing was measured between the last batch of one and the first of the next.
        for start, end in zip(ends - lengths, ends, strict=True):
            axes.plot(np.arange(start, end), alphas[start:end], color=colour, linewidth=1.4, marker=".", markersize=3)
        for end in ends[:-1]:
            axes.axvline(end - 0.5, color="0.6", linewidth=0.8)
        axes.set_xlim(-0.5, len(alphas) - 0.5)
        low, high = float(np.nanmin(alphas)), float(np.nanmax(alphas))
        room = max(0.02, 0.05 * (high - low))  # keeps a constant alpha from being drawn as rounding noise
        axes.set_ylim(max(low - room, -0.02), min(high + room, 1.02))
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("batch")
        axes.set_ylabel(r"$\alpha$, weight of the source prior")
        top = axes.secondary_xaxis("top")
        top.set_xticks(ends - np.array(lengths) / 2 - 0.5, labels, rotation=40, ha="left", rotation_mode="anchor")
        top.tick_params(length=0)
        top.spines["top"].set_visible(False)


def reliability(runs: Sequence[Run], path: str | os.PathLike[str]) -> None:
    """Draw accuracy against confidence over the whole stream, in 15 bins of equal width.

    Bins with fewer than ten predictions are left out. The ECE in the legend is the mean over domains, as in tables.

    Args:
        runs: Runs to compare, one line each.
        path: PNG file to write.
    """
    if not runs:
        raise ValueError("Expected at least one run, but got none.")
    edges = np.arange(1, 15) / 15
    with _figure(path, width=6.4, height=4.2) as axes:
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
        for (colour, marker), run in zip(_looks(runs), runs, strict=True):
            confidence = np.concatenate([record["confidences"] for record in run.records])
            correct = np.concatenate([np.equal(record["labels"], record["predictions"]) for record in run.records])
            bins = np.digitize(confidence, edges, right=True)
            kept = [chosen for b in range(15) if (chosen := bins == b).sum() >= LEAST_IN_BIN]
            axes.plot(
                [confidence[chosen].mean() for chosen in kept],
                [correct[chosen].mean() for chosen in kept],
                color=colour,
                marker=marker,
                markersize=5.5,
                markeredgecolor="white",
                linewidth=1.2,
                label=f"{run.method}  {run.summary()['mean']['ece']:.3f}",
            )
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence")
        axes.set_ylabel("accuracy")
        axes.legend(title="mean ECE", alignment="left", loc="upper left", bbox_to_anchor=(1.01, 1))


def _looks(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return a colour and a marker for each run: fixed for the known methods, in order of appearance for others."""
    looks: list[tuple[str, str]] = []
    spare = iter(SPARE * len(runs))
    for run in runs:
        look = LOOK.get(run.method)
        looks.append(look if look is not None and look not in looks else next(spare))
    return looks


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


@contextmanager
def _figure(path: str | os.PathLike[str], width: float, height: float) -> Iterator[Axes]:
    """Yield the axes of a new figure and save it; neither the user's nor the global matplotlib settings matter."""
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"Expected `path` to end in .png, but got {os.fspath(path)!r}.")
    import matplotlib.style  # slow to import, and needed only where a figure is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.add_subplot()
        with atomic_path(path) as aside:
            figure.savefig(aside, format="png", dpi=150, metadata={"Software": None})
