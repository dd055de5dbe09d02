"""The tables of the page: the ranking as bars, the table that sorts, the heat map, and data beside charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vcotta.report.groups import WHOLE_RUN, Group, Score
from vcotta.report.looks import Look
from vcotta.report.markup import Html, join, tag
from vcotta.report.svg import swatch
from vcotta.report.tables import ALL_COLUMNS

__all__ = ["bars", "data_table", "heat_map", "legend", "score_table", "scroll"]

DARKEST = 0.62  # keeps the text readable on the deepest shade


def scroll(content: Html, label: str, *, wide: bool = False) -> Html:
    """Return a box that scrolls by itself, by keyboard too, so that the page never does."""
    kind = "scroll wide" if wide else "scroll"
    return tag("div", content, class_=kind, tabindex="0", role="region", aria_label=label)


def legend(groups: Sequence[Group], looks: Sequence[Look]) -> Html:
    """Return the legend: a button a method, which hides it in every chart."""
    items = [
        tag(
            "li",
            tag(
                "button",
                tag("span", swatch(look), class_=f"m{place}"),
                group.label,
                type="button",
                data_method=place,
                aria_pressed="true",
                title="Show or hide in every chart",
            ),
        )
        for place, (group, look) in enumerate(zip(groups, looks, strict=True))
    ]
    return tag("ul", *items, class_="legend", aria_label="Methods; press to show or hide")


def bars(groups: Sequence[Group]) -> Html:
    """Return the methods in order of their error, each with a bar as long as it."""
    most = max([score.mean for group in groups if math.isfinite((score := group.score("error")).mean)] or [1.0]) or 1.0
    items = []
    for place, group in enumerate(groups):
        error = group.score("error")
        width = f"--w:{100 * error.mean / most if math.isfinite(error.mean) else 0:.1f}%"
        items.append(
            tag(
                "li",
                tag("span", group.label),
                tag("span", tag("span", "", class_=f"bar m{place}", style=f"{width};display:block")),
                tag("span", _range(error, ".1f"), tag("b", f"{_shown(error.mean, '.1f')} %"), class_="value"),
            )
        )
    return tag("ol", *items, class_="rank", aria_label="Mean error, lowest first")


def score_table(groups: Sequence[Group]) -> Html:
    """Return the table of means over domains; a press on a heading sorts it."""
    head = [tag("th", tag("button", "Method", type="button"), scope="col")]
    for key, (heading, _) in ALL_COLUMNS.items():
        sorted_by = "ascending" if key == "error" else None
        head.append(tag("th", tag("button", heading, type="button"), scope="col", aria_sort=sorted_by))
    head.append(tag("th", tag("button", "Runs", type="button"), scope="col"))
    least = {
        key: min(
            (f"{group.score(key).mean:{form}}" for group in groups if math.isfinite(group.score(key).mean)),
            key=float,
            default="",
        )
        for key, (_, form) in ALL_COLUMNS.items()
    }
    rows = []
    for group in groups:
        cells = [tag("th", group.label, scope="row")]
        for key, (_, form) in ALL_COLUMNS.items():
            score = group.score(key)
            best = len(groups) > 1 and key not in WHOLE_RUN and f"{score.mean:{form}}" == least[key]
            shown = tag("span", _shown(score.mean, form), class_="best" if best else None)
            cells.append(tag("td", shown, _range(score, form), data_value=repr(score.mean)))
        cells.append(tag("td", str(len(group.runs)), data_value=len(group.runs)))
        rows.append(tag("tr", *cells))
    caption = "Means over domains of each method; headings sort"
    parts = _caption(caption), tag("thead", tag("tr", *head)), tag("tbody", *rows)
    return scroll(tag("table", *parts, class_="scores"), "Scores of each method")


def heat_map(groups: Sequence[Group]) -> Html:
    """Return the error of each method on each domain as a table whose cells are shaded by it."""
    names = [*groups[0].domains, "mean"]
    table = [[*(g.domain_score(k) for k in range(len(names) - 1)), g.score("error")] for g in groups]
    most = max([score.mean for line in table for score in line if math.isfinite(score.mean)] or [1.0]) or 1.0
    least = [min((f"{line[k].mean:.1f}" for line in table), key=_as_number) for k in range(len(names))]
    head = [tag("th", tag("span", "Method"), scope="col"), *(tag("th", tag("span", n), scope="col") for n in names)]
    rows = []
    for group, line in zip(groups, table, strict=True):
        cells = []
        for place, score in enumerate(line):
            shade = DARKEST * math.sqrt(score.mean / most) if math.isfinite(score.mean) else 0.0
            text = f"{score.mean:.1f}"
            best = "best" if len(groups) > 1 and text == least[place] else None
            hint = f"{group.label}, {names[place]}: {score.text('.1f')} %"
            cells.append(tag("td", _shown(score.mean, ".1f"), style=f"--a:{shade:.3f}", class_=best, title=hint))
        rows.append(tag("tr", tag("th", group.label, scope="row"), *cells))
    caption = "Error in per cent of each method on each domain"
    parts = _caption(caption), tag("thead", tag("tr", *head)), tag("tbody", *rows)
    return scroll(tag("table", *parts, class_="heat"), "Error of each method on each domain")


def data_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """Return the numbers behind a chart, folded away."""
    head = tag("tr", *(tag("th", name, scope="col") for name in header))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    table = tag("table", tag("thead", head), tag("tbody", *body))
    return tag("details", tag("summary", title), scroll(table, title))


def _caption(text: str) -> Html:
    """Name a table for those who hear the page; the others have read the section's heading."""
    return tag("caption", tag("span", text, class_="hidden"))


def _shown(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else f"{value:{form}}"


def _range(score: Score, form: str) -> Html:
    if not score.several:
        return join()
    return tag("span", f"{_shown(score.low, form)}–{_shown(score.high, form)}", class_="range")


def _as_number(text: str) -> float:
    value = float(text)
    return math.inf if math.isnan(value) else value
