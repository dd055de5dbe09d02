"""The charts of the page, each with what it says in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from vcotta.report.curves import Curve, Span, along_stream, reliability_bins, risk_coverage, spans
from vcotta.report.groups import Group, Score
from vcotta.report.looks import MOST_BANDS, Look
from vcotta.report.markup import Html, tag
from vcotta.report.svg import Plot, Scale, marker, nice_ticks

__all__ = ["cost_chart", "name_places", "note_chart", "reliability_chart", "risk_chart", "stream_chart"]

T = TypeVar("T")
AWAY = (0, -13, 13, -26, 26, -39, 39, -52, 52, -65, 65, -78, 78)  # pixels up or down that a name may be from its point
LEAST_IN_BIN = 10  # fewer predictions are a dot without a line
PER_CENT = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0)


def stream_chart(groups: Sequence[Group], looks: Sequence[Look]) -> Html:
    """Return the error along the stream, on a square-root axis so that small errors can be told apart."""
    curves = [along_stream(group) for group in groups]
    high = max(1.0, *(float(np.nanmax(curve.high)) for curve in curves))
    y = Scale(0, min(100.0, 1.08 * high), tuple(tick for tick in PER_CENT if tick <= high), "sqrt")
    told = "; ".join(
        f"{group.label} from {np.nanmin(curve.mean):.1f} to {np.nanmax(curve.mean):.1f} per cent"
        for group, curve in zip(groups, curves, strict=True)
    )
    plot = _along("stream", "Error along the stream", f"Error of each batch: {told}.", groups, y, "error (%)", 360)
    _draw_curves(plot, groups, looks, curves, most_marks=15)
    return plot.svg()


def note_chart(groups: Sequence[Group], looks: Sequence[Look], key: str, place: int) -> Html:
    """Return a value the adapters noted, such as alpha, along the stream."""
    curves = [along_stream(group, key) for group in groups]
    known = [(g, c) for g, c in zip(groups, curves, strict=True) if np.isfinite(c.mean).any()]
    low = min(float(np.nanmin(curve.low)) for _, curve in known)
    high = max(float(np.nanmax(curve.high)) for _, curve in known)
    room = max(0.06 * (high - low), 1e-3 * abs(high), 1e-9)
    y = Scale(low - room, high + room, nice_ticks(low - room, high + room, 4))
    told = "; ".join(
        f"{group.label} from {np.nanmin(curve.mean):.3g} to {np.nanmax(curve.mean):.3g}" for group, curve in known
    )
    plot = _along(f"note-{place}", f"{key} along the stream", f"{told}.", groups, y, "", 230, width=460, named=False)
    _draw_curves(plot, groups, looks, curves, most_marks=8)
    return plot.svg()


def reliability_chart(group: Group, look: Look, place: int) -> Html:
    """Return accuracy against confidence of one method: the further from the diagonal, the worse calibrated."""
    bins = reliability_bins(group.runs)
    solid = [part for part in bins if part[2] >= LEAST_IN_BIN]
    total = sum(count for _, _, count in bins)
    told = "; ".join(f"{c:.0%} sure, {a:.0%} right, {n} predictions" for c, a, n in bins)
    unit = Scale(0, 1, (0.0, 0.5, 1.0))
    plot = Plot(
        f"reliability-{place}",
        f"Reliability of {group.label}",
        f"{told}.",
        unit,
        unit,
        "confidence",
        "accuracy",
        width=220,
        height=214,
        left=44,
    )
    plot.line([0, 1], [0, 1], class_="diagonal")

    def draw() -> None:
        for confidence, accuracy, _ in solid:
            (x, y), (_, due) = plot.at(confidence, accuracy), plot.at(confidence, confidence)
            plot.add(tag("line", class_="gap", x1=x, x2=x, y1=y, y2=due))
        plot.line([c for c, _, _ in solid], [a for _, a, _ in solid])
        for confidence, accuracy, count in bins:
            x, y = plot.at(confidence, accuracy)
            hint = f"{confidence:.1%} sure, {accuracy:.1%} right, {count} predictions"
            size = 2.0 + 7.0 * math.sqrt(count / total)
            plot.add(tag("circle", tag("title", hint), class_="k", cx=x, cy=y, r=size))

    plot.series(place, draw)
    return plot.svg()


def risk_chart(groups: Sequence[Group], looks: Sequence[Look]) -> Html:
    """Return the error among the most confident predictions against the share of them that is kept."""
    curves = [risk_coverage(group.runs) for group in groups]
    high = max(1.0, *(100 * float(risk.max()) for _, risk in curves))
    y = Scale(0, 1.05 * high, tuple(tick for tick in PER_CENT if tick <= high), "sqrt")
    told = "; ".join(
        f"{group.label} {100 * risk[len(risk) // 2]:.1f} per cent at half coverage, {100 * risk[-1]:.1f} at full"
        for group, (_, risk) in zip(groups, curves, strict=True)
    )
    x = Scale(0, 100, (0.0, 20.0, 40.0, 60.0, 80.0, 100.0))
    labels = ("coverage: share of predictions kept, the most confident first (%)", "error among them (%)")
    plot = Plot("risk", "Risk and coverage", f"{told}.", x, y, *labels, width=960, height=380)
    for place, (group, look, (coverage, risk)) in _worst_first(zip(groups, looks, curves, strict=True)):
        _draw_line(plot, place, look, [100 * c for c in coverage], [100 * r for r in risk], group.label, most_marks=8)
    return plot.svg()


def cost_chart(groups: Sequence[Group], looks: Sequence[Look], costs: Sequence[Score], what: str, name: str) -> Html:
    """Return mean error against a cost, one named point a method with its range over seeds."""
    errors = [group.score("error") for group in groups]
    known = [cost.mean for cost in costs if cost.mean > 0]
    low, high = (0.75 * min(known), 1.9 * max(known)) if known else (0.5, 2.0)
    ticks = tuple(m * 10.0**p for p in range(-6, 9) for m in (1, 2, 5) if low <= m * 10.0**p <= high)
    top = max(1.0, *(error.high for error in errors if math.isfinite(error.high)))
    y = Scale(0, 1.05 * top, tuple(tick for tick in PER_CENT if tick <= top), "sqrt")
    told = "; ".join(
        f"{g.label} {c.mean:.3g}, error {e.mean:.1f} per cent" for g, c, e in zip(groups, costs, errors, strict=True)
    )
    plot = Plot(
        name,
        f"Error against {what}",
        f"{told}.",
        Scale(low, high, ticks if len(ticks) < 8 else ticks[::2], "log"),
        y,
        f"{what} (logarithmic)",
        "mean error (%)",
        width=520,
        height=340 if len(groups) <= MOST_BANDS else 460,
    )
    shown = [
        (place, group.label, look, cost, error)
        for place, (group, look, cost, error) in enumerate(zip(groups, looks, costs, errors, strict=True))
        if math.isfinite(cost.mean) and math.isfinite(error.mean)
    ]
    names = name_places(plot, [(label, *plot.at(cost.mean, error.mean)) for _, label, _, cost, error in shown])
    for start, point in zip(names, shown, strict=True):
        _draw_point(plot, *point, start)
    return plot.svg()


def name_places(plot: Plot, points: Sequence[tuple[str, float, float]]) -> list[tuple[float, float]]:
    """Return where the names of points start: beside them, or as near as no other point or name stands.

    Args:
        plot: The chart they are on.
        points: Of each its name and place in pixels.
    """
    taken = [(x - 6, x + 6, y - 6, y + 6) for _, x, y in points]
    found = []
    for label, x, y in points:
        wide = 6.9 * len(label)
        places = [(side, y + offset) for offset in AWAY for side in (x + 9, x - 9 - wide)]
        inside = [
            (side, middle)
            for side, middle in places
            if plot.left < side < plot.width - wide and plot.top + 6 < middle < plot.height - plot.bottom - 6
        ]
        free = [
            (side, middle)
            for side, middle in inside
            if not any(a < side + wide and side < b and c < middle + 6 and middle - 6 < d for a, b, c, d in taken)
        ]
        side, middle = (free or inside or places)[0]
        taken.append((side, side + wide, middle - 6, middle + 6))
        found.append((side, middle))
    return found


def _draw_point(
    plot: Plot, place: int, label: str, look: Look, cost: Score, error: Score, name: tuple[float, float]
) -> None:
    """Draw a point and its name, with a line between them where they are apart."""
    x, y = plot.at(cost.mean, error.mean)
    start, middle = name

    def draw() -> None:
        if abs(middle - y) > AWAY[2]:
            end = start - 2 if start > x else start + 6.9 * len(label) + 2
            plot.add(tag("line", class_="lead", x1=x, x2=end, y1=y, y2=middle))
        if error.several:
            ends = plot.at(cost.mean, error.low)[1], plot.at(cost.mean, error.high)[1]
            plot.add(tag("line", class_="l", x1=x, x2=x, y1=ends[0], y2=ends[1]))
        plot.add(marker(look.marker, x, y, f"{label}: {cost.text('.3g')}, error {error.text('.1f')} %"))
        plot.add(tag("text", label, class_="tag", x=start, y=middle + 4))

    plot.series(place, draw)


def _along(
    name: str,
    title: str,
    told: str,
    groups: Sequence[Group],
    y: Scale,
    y_label: str,
    height: int,
    width: int = 960,
    named: bool = True,
) -> Plot:
    """Return an empty chart along the stream, its domains marked and named."""
    domains = spans(groups[0])
    end = domains[-1].end
    x = Scale(-0.5, max(end - 0.5, 0.5), tuple(t for t in nice_ticks(0, end - 1, 6) if t == int(t)))
    crowded = not named or len(domains) > 40
    top, right = (10, 12) if crowded else (92, 56)
    plot = Plot(name, title, told, x, y, "batch", y_label, width, height, top=top, right=right)
    for before, after in pairwise(domains):
        across, _ = plot.at((before.end + after.start - 1) / 2, y.low)
        plot.add(tag("line", class_="grid", x1=across, x2=across, y1=plot.top, y2=height - plot.bottom))
    for span in [] if crowded else domains:
        _name_above(plot, span)
    return plot


def _name_above(plot: Plot, span: Span) -> None:
    across, _ = plot.at((span.start + span.end - 1) / 2, 0)
    turned = f"translate({across + 4:.1f} {plot.top - 6}) rotate(-52)"
    plot.add(tag("text", span.label, transform=turned))


def _worst_first(series: Iterable[T]) -> list[tuple[int, T]]:
    """Number the series of methods, which come best first, and turn them round: the best is drawn on top."""
    return list(enumerate(series))[::-1]


def _draw_curves(
    plot: Plot, groups: Sequence[Group], looks: Sequence[Look], curves: Sequence[Curve], most_marks: int
) -> None:
    known = [bool(np.isfinite(curve.mean).any()) for curve in curves]
    for place, (group, look, curve) in _worst_first(zip(groups, looks, curves, strict=True)):
        if not known[place]:
            continue
        if len(group.runs) > 1 and sum(known) <= MOST_BANDS:
            lines = curve.batches.tolist(), curve.low.tolist(), curve.high.tolist()
            plot.series(place, lambda lines=lines: plot.band(*lines))  # type: ignore[misc]
        _draw_line(plot, place, look, curve.batches.tolist(), curve.mean.tolist(), group.label, most_marks)


def _draw_line(
    plot: Plot, place: int, look: Look, xs: Sequence[float], ys: Sequence[float], label: str, most_marks: int
) -> None:
    step = max(1, len(xs) // most_marks)

    def draw() -> None:
        plot.line(xs, ys, look)
        for x, y in list(zip(xs, ys, strict=True))[place % step :: step]:
            if math.isfinite(y):
                plot.add(marker(look.marker, *plot.at(x, y), title=f"{label}: {y:.3g}"))

    plot.series(place, draw)
