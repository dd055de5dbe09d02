"""Canvas of all figures: saved as a PNG or PDF file, or as inline SVG with the colours of a page's style sheet."""

from __future__ import annotations

import io
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from vcotta._util.files import atomic_path
from vcotta.report.method_styles import MethodStyle, method_styles
from vcotta.report.stats import Curve, Span

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FEWEST_RUNS", "MOST_BANDS", "Canvas", "Svg", "Target", "canvas", "square_root"]

MOST_BANDS = 8  # methods whose intervals are shaded in one chart; more would cover each other
FEWEST_RUNS = 3  # that a shaded interval needs; that of two runs is nine times their standard deviation
MOST_NAMES = 40  # domains that are named above a chart
LEGEND_LINES = 12  # in one column; a longer legend would be higher than the figure
LEGEND_INCHES = 1.7  # width of every further column
POINTS = 0.75  # in a pixel of the page

# Placeholders in a page's SVG, which become variables of the style sheet.
OWN, INK, SOFT, LINE, CARD = "#010101", "#020202", "#030303", "#040404", "#050505"
CSS_COLOURS = {OWN: "currentColor"} | {
    colour: f"var(--{name})" for colour, name in ((INK, "ink"), (SOFT, "soft"), (LINE, "line"), (CARD, "card"))
}
FILE_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType, as publishers ask for
    "text.parse_math": False,  # labels come from files
}
PAGE_STYLE = FILE_STYLE | {
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.spines.left": False,
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.alpha": 1,
    "grid.color": LINE,
    "lines.scale_dashes": False,
    "svg.fonttype": "none",
    "text.color": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "ytick.major.size": 0,
}
# No file holds the time or the version of matplotlib.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


@dataclass
class Svg:
    """A chart of a page.

    Attributes:
        name: Unique on the page.
        title: What it shows; "" hides it from screen readers.
        description: Its main numbers, for screen readers.
        width: In pixels; the page may shrink it.
        height: In pixels.
        margins: Pixels left, right, above and below the axes.
        markup: The chart, once it is drawn.
    """

    name: str
    title: str
    description: str
    width: int
    height: int
    margins: tuple[int, int, int, int] = (50, 12, 10, 42)
    markup: Markup = field(default=Markup(), init=False)


Target = str | os.PathLike[str] | Svg
"""A PNG or PDF file, or a chart of a page."""


class Canvas:
    """Axes to draw on, and the parts that every figure shares.

    Attributes:
        axes: The axes, row by row.
        page: Whether this is a chart of a page.
        ink: Colour of lines that belong to no method.
    """

    def __init__(self, drawing: Figure, axes: list[Axes], labels: Sequence[str], page: bool) -> None:
        self.axes, self.page = axes, page
        self.ink = SOFT if page else "0.6"
        self._drawing, self._labels, self._styles = drawing, labels, method_styles(labels)
        self._series: dict[str, tuple[int, str, Axes | None]] = {}

    def style(self, place: int) -> MethodStyle:
        """Return the style of a method by its place among the labels; on a page the style sheet sets the colour."""
        style = self._styles[place]
        return style._replace(colour=OWN) if self.page else style

    def marked(self, place: int) -> dict[str, Any]:
        """Return matplotlib's arguments for the colour and the marker of a method."""
        style = self.style(place)
        return {
            "color": style.colour,
            "marker": style.marker,
            "markersize": 6,
            "markeredgecolor": CARD if self.page else "white",
            "markeredgewidth": 0.75,
            "zorder": 3 - place / 1000,  # the first method is on top
        }

    def own(self, place: int, title: str, *artists: Artist | None, values: Axes | None = None) -> None:
        """Let the page's legend hide a method's artists, and pointing at them show a title.

        With ``values``, the axes of the artists, each marker also shows its value.
        """
        for artist in artists if self.page else ():
            if artist is not None:
                key = f"series-{len(self._series)}"
                artist.set_gid(key)
                self._series[key] = (place, title, values)

    def line(self, axes: Axes, place: int, x: Any, y: Any, *, marks: int = 15, label: str = "", **more: Any) -> None:
        """Draw the line of a method, with about ``marks`` markers on it."""
        dash, step = self.style(place).dash, max(1, len(x) // marks)
        look = {"linewidth": 1.4, "linestyle": (0, dash) if dash else "-", "markevery": (place % step, step)}
        name = label or self._labels[place]
        (drawn,) = axes.plot(x, y, label=name, **self.marked(place) | look | more)
        self.own(place, name, drawn, values=axes)

    def band(self, axes: Axes, place: int, x: Any, low: Any, high: Any) -> None:
        """Shade the 95 % interval around the line of a method."""
        shade = axes.fill_between(x, low, high, color=self.style(place).colour, alpha=0.16, linewidth=0)
        self.own(place, self._labels[place], shade)

    def curves(self, axes: Axes, curves: Sequence[Curve], counts: Sequence[int], *, marks: int = 15) -> None:
        """Draw the curves of methods, those of at least three runs with their intervals; ``counts`` are the runs.

        Values that only a few batches have are dots without a line.
        """
        known = [place for place, curve in enumerate(curves) if curve.known]
        for place in known:
            curve = curves[place]
            if counts[place] >= FEWEST_RUNS and len(known) <= MOST_BANDS:
                self.band(axes, place, curve.batches, curve.low, curve.high)
            known_points = np.isfinite(curve.mean)
            if 2 * known_points.sum() > len(known_points):
                self.line(axes, place, curve.batches, curve.mean, marks=marks)
            else:  # a line would have more gaps than points
                x, y = curve.batches[known_points], curve.mean[known_points]
                self.line(axes, place, x, y, linestyle="none", markevery=1)

    def legend(self, axes: Axes, title: str | None = None) -> None:
        """Name the lines to the right of the axes, in a file; a single line needs no name."""
        count = len(axes.get_legend_handles_labels()[1])
        if self.page or (count < 2 and title is None):
            return
        columns = -(-count // LEGEND_LINES)
        width, height = self._drawing.get_size_inches()
        self._drawing.set_size_inches(width + LEGEND_INCHES * (columns - 1), height)
        axes.legend(title=title, ncols=columns, alignment="left", loc="upper left", bbox_to_anchor=(1.01, 1))

    def settle(self) -> None:
        """Give the axes their final place, so that positions in points can be computed."""
        self._drawing.draw_without_rendering()

    def domains(self, axes: Axes, spans: Sequence[Span], named: bool = True) -> None:
        """Make batches the x axis, with a line between domains and, unless they are many, their names above."""
        from matplotlib.ticker import MaxNLocator  # slow to import, and needed only where a figure is drawn

        for span in spans[:-1]:
            axes.axvline(span.end - 0.5, color=LINE if self.page else "0.8", linewidth=0.7, zorder=0)
        end = max(spans[-1].end - 0.5, 0.5)
        axes.set_xlim(-0.5 - 0.01 * end, end + 0.01 * end)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(axis="x", visible=False)
        if not named or len(spans) > MOST_NAMES:
            return
        top = axes.secondary_xaxis("top")
        middles, labels = [(span.start + span.end - 1) / 2 for span in spans], [span.label for span in spans]
        top.set_xticks(middles, labels, rotation=45, ha="left", rotation_mode="anchor")
        top.tick_params(length=0)
        top.spines["top"].set_visible(False)


def square_root(axes: Axes, top: float) -> None:
    """Use a square-root axis for errors in per cent, so that 1 and 5 can be distinguished beside 90."""
    from matplotlib.ticker import NullLocator  # slow to import, and needed only where a figure is drawn

    axes.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    ticks = [tick for tick in (0, 1, 2, 5, 10, 20, 30, 50, 75, 100) if tick <= top]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, top)


@contextmanager
def canvas(
    target: Target,
    width: float,
    height: float,
    labels: Sequence[str] = (),
    *,
    rows: int = 1,
    columns: int = 1,
    share: str = "",
) -> Iterator[Canvas]:
    """Yield a canvas, then save it; matplotlib's global settings do not change the result.

    Args:
        target: PNG or PDF file to write, or a chart of a page.
        width: Width of a file's figure in inches; a chart of a page has its own size.
        height: Height of a file's figure in inches.
        labels: Labels of the methods.
        rows: Rows of panels.
        columns: Columns of panels.
        share: ``"x"`` or ``"y"`` if all panels share that axis.
    """
    kind = "svg" if isinstance(target, Svg) else Path(target).suffix.lower().removeprefix(".")
    if kind not in METADATA or (kind == "svg" and not isinstance(target, Svg)):
        raise ValueError(f"Expected `path` to end in .png or .pdf, but got {str(target)!r}.")
    import matplotlib.style  # slow to import, and needed only where a figure is drawn
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", PAGE_STYLE if kind == "svg" else FILE_STYLE]):
        if isinstance(target, Svg):
            matplotlib.rcParams["svg.hashsalt"] = target.name
            drawing = Figure(figsize=(target.width / 96, target.height / 96), dpi=72)
            left, right, top, bottom = target.margins
            room = {"left": left / target.width, "right": 1 - right / target.width}
            drawing.subplots_adjust(**room, bottom=bottom / target.height, top=1 - top / target.height)
        else:
            drawing = Figure(figsize=(width, height), dpi=72, layout="constrained")
        axes = drawing.subplots(rows, columns, squeeze=False, sharex=share == "x", sharey=share == "y")
        made = Canvas(drawing, list(axes.flat), labels, page=kind == "svg")
        yield made
        if isinstance(target, Svg):
            text = io.StringIO()
            drawing.savefig(text, format=kind, metadata=METADATA[kind])
            target.markup = _for_page(text.getvalue(), target, made._series)
        else:
            with atomic_path(target) as aside:
                drawing.savefig(aside, format=kind, dpi=150 if kind == "png" else 72, metadata=METADATA[kind])


def _for_page(text: str, chart: Svg, series: dict[str, tuple[int, str, Axes | None]]) -> Markup:
    """Shorten matplotlib's SVG, and give it a name, unique ids, and the page's colours and fonts."""
    root = ET.fromstring(text)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.text, element.tail = (part.strip() or None if part else None for part in (element.text, element.tail))
        for name, value in list(element.attrib.items()):
            del element.attrib[name]
            element.set(name.rpartition("}")[2], value)
    defined = {use.get("href", "")[1:] for use in root.iter("use")} | {clip.get("id") for clip in root.iter("clipPath")}
    for element in list(root.iter()):
        for child in [child for child in element if child.tag == "style"]:
            element.remove(child)
        if "style" in element.attrib:
            element.set("style", _page_style(element.get("style", "")))
        if "d" in element.attrib:
            element.set("d", re.sub(r"-?\d+\.\d+", _rounded, " ".join(element.get("d", "").split())))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        found = series.get(element.get("id", ""))
        if found:
            _make_series(element, *found, height=chart.height * POINTS)
        if element.get("id") not in defined:
            element.attrib.pop("id", None)
    box = root.get("viewBox", "")
    root.attrib.clear()
    if chart.title:
        names = {"title": f"{chart.name}-title", "desc": f"{chart.name}-desc"}
        root.attrib |= {"class": "chart", "viewBox": box, "role": "img", "aria-labelledby": " ".join(names.values())}
        for tag, words in (("desc", chart.description), ("title", chart.title)):
            element = ET.Element(tag, {"id": names[tag]})
            element.text = words
            root.insert(0, element)
    else:
        root.attrib |= {"viewBox": box, "width": f"{chart.width}", "height": f"{chart.height}", "aria-hidden": "true"}
    return Markup(ET.tostring(root, encoding="unicode", short_empty_elements=False))


def _make_series(element: ET.Element, place: int, title: str, values: Axes | None, height: float) -> None:
    """Give a method's group its class and title, and its markers their values."""
    element.set("class", f"s m{place}")
    words = ET.Element("title")
    words.text = title
    if values is not None:
        for use in element.iter("use"):
            point = float(use.get("x", "0")), height - float(use.get("y", "0"))
            hint = ET.SubElement(use, "title")
            hint.text = f"{title}: {values.transData.inverted().transform(point)[1]:.3g}"
    element.insert(0, words)


def _page_style(style: str) -> str:
    """An SVG style without fonts, and with the page's colours."""
    kept = [part.strip() for part in style.split(";") if not part.strip().startswith("font")]
    return re.sub(r"#\w{6}", lambda found: CSS_COLOURS.get(found[0], found[0]), ";".join(kept))


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
