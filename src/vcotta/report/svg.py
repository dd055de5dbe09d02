"""Small charts as inline SVG: scales, axes, lines, bands and markers, coloured by the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vcotta.report.looks import Look
from vcotta.report.markup import Html, join, tag

__all__ = ["Plot", "Scale", "marker", "nice_ticks", "swatch"]

_TURNS: dict[str, Callable[[float], float]] = {
    "linear": float,
    "sqrt": lambda value: math.sqrt(max(value, 0.0)),
    "log": lambda value: math.log10(max(value, 1e-12)),
}
SHAPES = {  # around (0, 0), about 8 wide
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "s": "M-3.6-3.6H3.6V3.6H-3.6Z",
    "^": "M0-4.6L4.4 3.4H-4.4Z",
    "v": "M0 4.6L4.4-3.4H-4.4Z",
    "<": "M-4.6 0L3.4-4.4V4.4Z",
    ">": "M4.6 0L-3.4-4.4V4.4Z",
    "D": "M0-4.8L4.8 0L0 4.8L-4.8 0Z",
    "P": "M-1.6-4.6H1.6V-1.6H4.6V1.6H1.6V4.6H-1.6V1.6H-4.6V-1.6H-1.6Z",
    "X": "M-4.4-2.2L-2.2-4.4L0-2.2L2.2-4.4L4.4-2.2L2.2 0L4.4 2.2L2.2 4.4L0 2.2L-2.2 4.4L-4.4 2.2L-2.2 0Z",
    "h": "M0-4.6L4-2.3V2.3L0 4.6L-4 2.3V-2.3Z",
}


@dataclass(frozen=True)
class Scale:
    """From values to places between 0 and 1.

    Attributes:
        low: Value at 0.
        high: Value at 1.
        ticks: Values to name.
        kind: ``linear``, ``sqrt`` or ``log``.
        form: How ticks are written.

    Example:
        >>> Scale(0, 100, (0, 25, 100), "sqrt").place(25)
        0.5
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    kind: str = "linear"
    form: str = "g"

    def place(self, value: float) -> float:
        """Return where a value stands; one outside the scale stands at its end."""
        turn = _TURNS[self.kind]
        room = turn(self.high) - turn(self.low)
        return min(1.0, max(0.0, (turn(value) - turn(self.low)) / room)) if room else 0.5


def nice_ticks(low: float, high: float, about: int = 5) -> tuple[float, ...]:
    """Return round numbers between two values.

    Example:
        >>> nice_ticks(0, 43)
        (0.0, 10.0, 20.0, 30.0, 40.0)
    """
    room = (high - low) / about
    if not math.isfinite(room) or room <= 0:
        return (low,)
    power = 10.0 ** math.floor(math.log10(room))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= room * 0.999)
    first = math.ceil(low / step - 1e-9)
    return tuple(round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1))


def marker(shape: str, x: float = 0.0, y: float = 0.0, title: str | None = None) -> Html:
    """Return a marker as matplotlib names it, in the colour around it."""
    path = SHAPES.get(shape, SHAPES["o"])
    return tag(
        "path", tag("title", title) if title else None, class_="k", d=path, transform=f"translate({x:.1f} {y:.1f})"
    )


def swatch(look: Look) -> Html:
    """Return a piece of a line with its marker, for a legend."""
    line = tag("line", class_="l", x1=0, y1=6, x2=30, y2=6, stroke_dasharray=_dash(look))
    return tag("svg", line, marker(look.marker, 15, 6), width=30, height=12, aria_hidden="true")


@dataclass
class Plot:
    """A chart in the making; `svg` returns it.

    Attributes:
        name: Unique on the page.
        title: What it shows.
        description: What it says, for those who do not see it.
        x: Horizontal scale.
        y: Vertical scale.
        x_label: What the horizontal axis means.
        y_label: What the vertical axis means.
        width: In pixels; the page may shrink the chart.
        height: In pixels.
        top: Room above the axes.
    """

    name: str
    title: str
    description: str
    x: Scale
    y: Scale
    x_label: str = ""
    y_label: str = ""
    width: int = 720
    height: int = 330
    top: int = 12
    left: int = 50
    right: int = 12
    bottom: int = 42
    parts: list[Html] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point in pixels."""
        across, up = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + across * self.x.place(x), self.top + up * (1 - self.y.place(y))

    def add(self, part: Html) -> None:
        """Put something on the chart."""
        self.parts.append(part)

    def line(self, xs: Sequence[float], ys: Sequence[float], look: Look | None = None, class_: str = "l") -> None:
        """Draw a line, broken where a value is not a number."""
        steps, pen = [], "M"
        for x, y in zip(xs, ys, strict=True):
            if not (math.isfinite(x) and math.isfinite(y)):
                pen = "M"
                continue
            across, down = self.at(x, y)
            steps.append(f"{pen}{across:.1f} {down:.1f}")
            pen = "L"
        self.add(tag("path", class_=class_, d="".join(steps), stroke_dasharray=_dash(look) if look else None))

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
        """Shade the range between two lines."""
        known = [point for point in zip(xs, low, high, strict=True) if all(map(math.isfinite, point))]
        edge = [self.at(x, top) for x, _, top in known] + [self.at(x, bottom) for x, bottom, _ in reversed(known)]
        if edge:
            self.add(tag("path", class_="band", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in edge) + "Z"))

    def series(self, place: int, draw: Callable[[], None]) -> None:
        """Gather what ``draw`` puts on the chart as the series of one method, which the legend can hide."""
        before, self.parts = self.parts, []
        draw()
        self.parts = [*before, tag("g", *self.parts, class_=f"s m{place}")]

    def svg(self) -> Html:
        """Return the chart."""
        ids = {"title": f"{self.name}-title", "desc": f"{self.name}-desc"}
        return tag(
            "svg",
            tag("title", self.title, id=ids["title"]),
            tag("desc", self.description, id=ids["desc"]),
            self._axes(),
            *self.parts,
            class_="chart",
            viewBox=f"0 0 {self.width} {self.height}",
            role="img",
            aria_labelledby=" ".join(ids.values()),
        )

    def _axes(self) -> Html:
        end, base = self.width - self.right, self.height - self.bottom
        marks = []
        for tick in self.y.ticks:
            _, down = self.at(self.x.low, tick)
            marks.append(tag("line", class_="grid", x1=self.left, x2=end, y1=down, y2=down))
            marks.append(tag("text", _tick(tick, self.y.form), x=self.left - 7, y=down + 4, text_anchor="end"))
        for tick in self.x.ticks:
            across, _ = self.at(tick, self.y.low)
            marks.append(tag("line", class_="axis", x1=across, x2=across, y1=base, y2=base + 4))
            marks.append(tag("text", _tick(tick, self.x.form), x=across, y=base + 17, text_anchor="middle"))
        marks.append(tag("line", class_="axis", x1=self.left, x2=end, y1=base, y2=base))
        middle = (self.left + end) / 2
        marks.append(tag("text", self.x_label, class_="name", x=middle, y=self.height - 6, text_anchor="middle"))
        turned = f"translate(13 {(self.top + base) / 2:.0f}) rotate(-90)"
        marks.append(tag("text", self.y_label, class_="name", transform=turned, text_anchor="middle"))
        return join(*marks)


def _dash(look: Look) -> str | None:
    return " ".join(f"{length:g}" for length in look.dash) or None


def _tick(value: float, form: str) -> str:
    return f"{value:{form}}".replace("-", "−")
