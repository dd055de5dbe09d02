"""The report: a self-contained HTML page, its tables as Markdown and CSV, and figures as PNG and PDF."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from vcotta._util.errors import counted
from vcotta._util.files import write_text
from vcotta._version import __version__
from vcotta.report.canvas import Svg, canvas
from vcotta.report.figures import (
    cost_against_error,
    error_along_stream,
    error_by_corruption,
    error_heat_map,
    notes_along_stream,
    priors_along_stream,
    reliability,
    risk_against_coverage,
)
from vcotta.report.groups import Group, best_first, check_same_stream, group_runs
from vcotta.report.html import render
from vcotta.report.method_styles import method_styles
from vcotta.report.narrative import ranking, remarks, stream_sentence
from vcotta.report.samples import samples
from vcotta.report.stats import along_stream, noted, reliability_bins, risk_coverage, varies
from vcotta.report.tables import ALL_COLUMNS, by_corruption, comparison, csv_text, escaped, footnote
from vcotta.runs.run import Run

__all__ = ["html_page", "write_report"]

NOTES = {  # values of `Adapter.last`, the most informative first
    "alpha": "weight of the source prior against the teacher's",
    "effective_classes": "number of classes that a batch seems to hold",
    "class_diversity": "the same, as a share of what a batch in random order would hold",
    "random_order": "probability that labels come in random order",
    "batch_share": "share of this and recent batches in BatchNorm's statistics; the rest is the source's",
    "drift": "divergence of the student from the source network, in nats per weight",
    "kl": "divergence of the student from its prior, as weighted in the loss",
    "entropy": "uncertainty of the prediction, in nats",
    "confidence": "mean confidence of the source network",
    "kept": "share of the images that were learned from; surgeon's is of the activations",
    "entropy_source": "uncertainty of the source network, in nats",
    "entropy_teacher": "uncertainty of the teacher, in nats",
    "fit": "distance of the student from its target, a part of the loss",
    "prior": "distance from the source posterior, as weighted in the loss",
    "anchoring": "distance from the source network's prediction",
    "topology": "spread of the class centres, a part of the loss",
    "alignment": "distance between the features of two views",
    "beta": "weight of the old hidden network in the filter",
    "selected": "share of the parameters' tensors that were chosen",
    "ratio": "mean step size, as a multiple of the usual",
    "replayed": "images that were replayed from memory",
    "loss": "each method's own loss, so not on one scale",
}
CLASS_MIX = {"effective_classes": "effective classes", "batch_share": "share of the batch"}
SHARES = (10, 25, 50, 75, 90, 100)  # per cent of the predictions that are kept
Draw = Callable[[Sequence[Group], Path], None]
FIGURES: dict[str, Draw] = {
    "error": error_by_corruption,
    "heat-map": error_heat_map,
    "stream": error_along_stream,
    "reliability": reliability,
    "risk-coverage": risk_against_coverage,
    "cost": cost_against_error,
}


def write_report(
    runs: Mapping[str, Run], out: str | os.PathLike[str], *, figures: Mapping[str, Draw] = FIGURES
) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``report.csv`` and the figures, as PNG and PDF, into a folder.

    Args:
        runs: Runs of one stream by the name of their folder, as from `find_runs`.
        out: Folder to write to; an earlier report there is replaced.
        figures: Figures to draw, by name; alpha, the priors and the classes of a batch are added if a run has them.

    Returns:
        The files.

    Raises:
        ValueError: There is no run, or the runs followed different streams.
    """
    if not runs:
        raise ValueError("Expected at least one run, but got none.")
    check_same_stream(runs)
    folder, groups = Path(out), best_first(group_runs(list(runs.values())))
    texts = {"report.html": html_page(runs), "report.md": _markdown(groups), "report.csv": csv_text(runs)}
    for name, text in texts.items():
        write_text(folder / name, text)
    drawings = dict(figures)
    if found := next((group for group in groups if "entropy_source" in noted(group.runs[:1])), None):
        drawings["priors"] = lambda _, path, run=found.runs[0]: priors_along_stream(run, path)  # type: ignore[misc]
    if found := next((group for group in groups if varies(group.runs, "alpha")), None):
        notes = {"alpha": "α, weight of the source prior"}
        drawings["alpha"] = lambda _, path, one=found: notes_along_stream([one], notes, path)  # type: ignore[misc]
    if mixes := {key: label for key, label in CLASS_MIX.items() if key in noted(list(runs.values()))}:
        drawings["classes"] = lambda groups, path: notes_along_stream(groups, mixes, path)
    files = {folder / "figures" / f"{name}.{kind}": draw for name, draw in drawings.items() for kind in ("png", "pdf")}
    for path, draw in files.items():
        draw(groups, path)
    return [*(folder / name for name in texts), *files]


def html_page(runs: Mapping[str, Run]) -> str:
    """Return the report on runs of one stream, given by the name of their folder, as one self-contained HTML page."""
    groups = best_first(group_runs(list(runs.values())))
    labels, ordered = [group.label for group in groups], [run for group in groups for run in group.runs]
    notes = sorted(noted([group.runs[0] for group in groups]), key=_importance)
    return render(
        "report.html.j2",
        script="report.js",
        stream=stream_sentence(groups[0]),
        labels=labels,
        footnote=footnote(labels),
        styles=method_styles(labels),
        legends={name: _swatches(name, labels) for name in ("stream", "adaptation", "risk")},
        groups=groups,
        tiles=_tiles(groups),
        ranking=ranking(groups),
        remarks=remarks(groups),
        columns=ALL_COLUMNS,
        best_scores=comparison(ordered, ALL_COLUMNS).best,
        best_errors=by_corruption(ordered).best,
        domains=[*groups[0].domains, "mean"],
        worst=max(score.mean for group in groups for score in group.domain_errors()) or 1.0,
        shown=_shown,
        stream_chart=_stream_chart(groups),
        stream_rows=_stream_rows(groups),
        note_charts=_note_charts(groups, notes),
        note_rows=_note_rows(groups, notes),
        reliability_charts=[_reliability_chart(groups, place) for place in range(len(groups))],
        reliability_rows=[
            (group.label, f"{confidence:.3f}", f"{accuracy:.3f}", count)
            for group in groups
            for confidence, accuracy, count in reliability_bins(group.runs)
        ],
        risk_chart=_risk_chart(groups),
        risk_header=("Method", *(f"{share} % kept" for share in SHARES), "AURC"),
        risk_rows=_risk_rows(groups),
        cost_charts=[_cost_chart(groups, "passes"), _cost_chart(groups, "seconds")],
        cost_rows=[
            (group.label, group.error.text(".1f"), group.score("seconds").text(".2f"), group.passes().text(".3g"))
            for group in groups
        ],
        samples=samples(groups[0].runs[0]),
        manifests=[
            (name, run.method, run.manifest.get("seed"), json.dumps(run.manifest, indent=2, ensure_ascii=False))
            for name, run in runs.items()
        ],
        source=f"{counted(len(runs), 'run')} by vcotta {__version__}",
    )


def _markdown(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    lines = "\n".join(f"- {escaped(line)}" for line in [*ranking(groups), *remarks(groups)])
    return (
        f"# Report\n\n{escaped(stream_sentence(groups[0]))}\n\n{lines}\n\n## Means over domains\n\n"
        f"{comparison(runs, ALL_COLUMNS).markdown()}\n## Error in per cent\n\n{by_corruption(runs).markdown()}"
    )


def _tiles(groups: Sequence[Group]) -> list[tuple[str, str]]:
    best, count = groups[0], sum(len(group.runs) for group in groups)
    tiles = [(f"{best.error.mean:.1f} %", f"lowest mean error: {best.label}")]
    source = next((group for group in groups if group.method == "source"), None)
    if source is not None and source is not best:
        tiles.append((f"{source.error.mean:.1f} %", "without adaptation"))
    images = sum(record["n"] for record in best.runs[0].records)
    tiles.append((f"{images:,}".replace(",", " "), f"images in {counted(len(best.domains), 'domain')}"))
    return [*tiles, (str(count), f"run{'s' * (count > 1)} of {counted(len(groups), 'method')}")]


def _stream_chart(groups: Sequence[Group]) -> Markup:
    numbers = _from_to(groups, None, ".1f", " per cent")
    margins = (50, 60, 92, 42) if len(groups[0].domains) <= 40 else (50, 12, 10, 42)
    chart = Svg("stream-chart", "Error along the stream", f"Error of each batch: {numbers}.", 960, 360, margins)
    error_along_stream(groups, chart)
    return chart.markup


def _stream_rows(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    rows = []
    for group in groups:
        line = along_stream(group.runs).mean
        quarter = max(1, len(line) // 4)
        values = line[:quarter].mean(), line[-quarter:].mean(), line.min(), line.max()
        rows.append((group.label, *(f"{value:.1f}" for value in values)))
    return rows


def _note_charts(groups: Sequence[Group], notes: Sequence[str]) -> list[tuple[str, str, Markup]]:
    """Name, meaning and chart of each value that changes; a constant is only in the table."""
    charts = []
    for place, key in enumerate(notes):
        if any(varies(group.runs, key) for group in groups):
            chart = Svg(
                f"note-{place}", f"{key} along the stream", f"{_from_to(groups, key, '.3g')}.", 460, 230, (54, 8, 8, 42)
            )
            notes_along_stream(groups, {key: ""}, chart)
            charts.append((key, NOTES.get(key, ""), chart.markup))
    return charts


def _note_rows(groups: Sequence[Group], notes: Sequence[str]) -> list[tuple[str, ...]]:
    rows = []
    for key in notes:
        for group in groups:
            line = along_stream(group.runs, key).mean
            known = line[np.isfinite(line)]
            if len(known):
                rows.append((key, group.label, *(f"{v:.4g}" for v in (known[0], known.mean(), known[-1]))))
    return rows


def _reliability_chart(groups: Sequence[Group], place: int) -> tuple[str, str, Markup]:
    group = groups[place]
    bins = "; ".join(f"{c:.0%} confident, {a:.0%} right, {n} predictions" for c, a, n in reliability_bins(group.runs))
    margins = (44, 14, 14, 42)
    chart = Svg(f"reliability-{place}", f"Reliability of {group.label}", f"{bins}.", 220, 214, margins)
    reliability(groups, chart, only=place)
    return group.label, group.score("ece").text(".3f"), chart.markup


def _risk_chart(groups: Sequence[Group]) -> Markup:
    curves = [(group.label, risk_coverage(group.runs)[1]) for group in groups]
    numbers = "; ".join(
        f"{label} {100 * risk[len(risk) // 2]:.1f} per cent at half coverage, {100 * risk[-1]:.1f} at full"
        for label, risk in curves
    )
    chart = Svg("risk-chart", "Risk and coverage", f"{numbers}.", 960, 380)
    risk_against_coverage(groups, chart)
    return chart.markup


def _risk_rows(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    rows = []
    for group in groups:
        coverage, risk = risk_coverage(group.runs)
        errors = [f"{100 * float(np.interp(share / 100, coverage, risk)):.2f}" for share in SHARES]
        rows.append((group.label, *errors, f"{group.score('aurc').mean:.4f}"))
    return rows


def _cost_chart(groups: Sequence[Group], by: Any) -> Markup:
    numbers = "; ".join(
        f"{group.label} {(group.passes() if by == 'passes' else group.score('seconds')).mean:.3g} {by}, error "
        f"{group.error.mean:.1f} per cent"
        for group in groups
    )
    chart = Svg(f"cost-{by}", f"Error against {by}", f"{numbers}.", 520, 340 if len(groups) <= 8 else 460)
    cost_against_error(groups, chart, by=by)
    return chart.markup


def _swatches(name: str, labels: Sequence[str]) -> list[Markup]:
    """A short piece of each method's line, for a legend; ``name`` makes its ids unique."""
    swatches = []
    for place in range(len(labels)):
        piece = Svg(f"{name}-{place}", "", "", 30, 12, (0, 0, 0, 0))
        with canvas(piece, 0, 0, labels) as figure:
            axes = figure.axes[0]
            axes.set_axis_off()
            axes.set_xlim(0, 2)
            figure.line(axes, place, [0, 1, 2], [0, 0, 0], markevery=[1], clip_on=False)
        swatches.append(piece.markup)
    return swatches


def _from_to(groups: Sequence[Group], key: str | None, form: str, unit: str = "") -> str:
    curves = [(group.label, along_stream(group.runs, key)) for group in groups]
    return "; ".join(
        f"{label} from {np.nanmin(curve.mean):{form}} to {np.nanmax(curve.mean):{form}}{unit}"
        for label, curve in curves
        if curve.known
    )


def _importance(key: str) -> int:
    order = list(NOTES)
    return order.index(key) if key in NOTES and key != "loss" else len(order) + (key == "loss")


def _shown(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:{form}}"
