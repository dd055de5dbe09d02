"""One page that says it all: no network, no file beside it, nothing from a run's files taken as markup."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from vcotta._messages import counted
from vcotta._version import __version__
from vcotta.report.charts import cost_chart, note_chart, reliability_chart, risk_chart, stream_chart
from vcotta.report.curves import along_stream, noted, reliability_bins, risk_coverage, varies
from vcotta.report.groups import Group, group_runs
from vcotta.report.looks import MOST_BANDS, Look, looks
from vcotta.report.markup import Html, join, tag
from vcotta.report.page_tables import bars, data_table, heat_map, legend, score_table, scroll
from vcotta.report.samples import Samples, samples
from vcotta.report.script import SCRIPT
from vcotta.report.style import style_for
from vcotta.report.words import ranking, remarks, stream_sentence
from vcotta.runs import Run

__all__ = ["html_page"]

NOTES = {  # what adapters note, the most telling first
    "alpha": "weight of the source prior against the teacher's",
    "drift": "divergence of the teacher from the source network, in nats a weight",
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
    "loss": "each method's own, so not on one scale",
}


def html_page(runs: Mapping[str, Run]) -> str:
    """Return the report as one self-contained HTML page.

    Args:
        runs: Runs of one stream, by the name of their folder.
    """
    groups = sorted(group_runs(list(runs.values())), key=lambda group: group.score("error").mean)
    drawn = looks([group.label for group in groups])
    pictures = samples(groups[0].runs[0])
    sections = {
        "Summary": _summary(groups),
        "Scores": join(score_table(groups)),
        "Corruptions": heat_map(groups),
        "Stream": _stream(groups, drawn),
        "Adaptation": _adaptation(groups, drawn),
        "Reliability": _reliability(groups, drawn),
        "Risk": _risk(groups, drawn),
        "Cost": _cost(groups, drawn),
        "Images": _images(pictures),
        "Manifests": _manifests(runs),
    }
    sections = {name: content for name, content in sections.items() if content}
    links = [tag("li", tag("a", name, href=f"#{name.lower()}")) for name in sections]
    body = [
        tag("a", "Skip to the summary", class_="skip", href="#summary"),
        tag("header", tag("h1", "Adapting at test time"), tag("p", stream_sentence(groups[0]), class_="soft")),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *(_section(name, content) for name, content in sections.items())),
        tag("footer", tag("p", f"Drawn from the files of {counted(len(runs), 'run')} by vcotta {__version__}.")),
        tag("div", "", id="said", class_="hidden", role="status"),
    ]
    return f"<!DOCTYPE html>\n{tag('html', _head(drawn), tag('body', *body, _script()), lang='en')}\n"


HEADINGS = {
    "Summary": ("Which method did best", ""),
    "Scores": (
        "Scores and cost",
        "Means over domains; below a mean, the range over seeds. A star marks the best. Press a heading to sort.",
    ),
    "Corruptions": (
        "Error on each corruption",
        "In per cent, in the order of the stream. Deeper is worse; the lowest of each column is underlined.",
    ),
    "Stream": (
        "Error along the stream",
        "Batch by batch, on a square-root axis so that small errors can be told apart. Bands are ranges over seeds, in "
        f"charts of at most {MOST_BANDS} methods.",
    ),
    "Adaptation": ("What the methods noted of themselves", "Along the stream; bands as above."),
    "Reliability": (
        "Is the confidence deserved?",
        "Accuracy against confidence over the whole stream. On the diagonal a method is right as often as it is sure; "
        "below, it is too sure of itself. Larger dots hold more predictions.",
    ),
    "Risk": (
        "Does it know when it is wrong?",
        "The error that is left when only the most confident predictions are kept. Lower is better.",
    ),
    "Cost": (
        "What an error costs",
        "Down and to the left is better; the errors are on a square-root axis. "
        "Seconds depend on the machine; passes do not.",
    ),
    "Images": ("What the methods saw", ""),
    "Manifests": ("How each run was made", ""),
}


def _head(drawn: Sequence[Look]) -> Html:
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    # Even if something slipped through: no script but ours runs, and nothing is ever loaded from anywhere.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "Adapting at test time: report"),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style_for(drawn))),
    )


def _script() -> Html:
    return tag("script", Html(SCRIPT))


def _section(name: str, content: Html) -> Html:
    heading, about = HEADINGS[name]
    place = name.lower()
    lead = tag("p", about, class_="soft") if about else None
    title = tag("h2", heading, id=f"{place}-heading")
    return tag("section", title, lead, content, id=place, aria_labelledby=f"{place}-heading")


def _summary(groups: Sequence[Group]) -> Html:
    best, runs = groups[0], sum(len(group.runs) for group in groups)
    records = best.runs[0].records
    tiles = [(f"{best.score('error').mean:.1f} %", f"lowest mean error: {best.label}")]
    source = next((group for group in groups if group.method == "source"), None)
    if source is not None and source is not best:
        tiles.append((f"{source.score('error').mean:.1f} %", "without adaptation"))
    tiles.append((f"{sum(r['n'] for r in records):,}".replace(",", " "), f"images in {len(best.domains)} domains"))
    tiles.append((str(runs), f"run{'s' * (runs > 1)} of {len(groups)} method{'s' * (len(groups) > 1)}"))
    first, *said = ranking(groups)
    warned = remarks(groups)
    boxes = [tag("div", tag("b", top), tag("span", below), class_="tile") for top, below in tiles]
    return join(
        tag("div", *boxes, class_="tiles"),
        bars(groups),
        tag("p", first),
        tag("ul", *(tag("li", line) for line in said), class_="notes") if said else None,
        tag("p", tag("b", "Before comparing: "), " ".join(warned), class_="soft") if warned else None,
    )


def _stream(groups: Sequence[Group], drawn: Sequence[Look]) -> Html:
    chart = scroll(stream_chart(groups, drawn), "Chart: error along the stream", wide=True)
    rows = []
    for group in groups:
        line = along_stream(group).mean
        quarter = max(1, len(line) // 4)
        told = line[:quarter].mean(), line[-quarter:].mean(), line.min(), line.max()
        rows.append((group.label, *(f"{value:.1f}" for value in told)))
    header = ("Method", "First quarter", "Last quarter", "Lowest", "Highest")
    return join(legend(groups, drawn), chart, data_table("Numbers: error in per cent along the stream", header, rows))


def _adaptation(groups: Sequence[Group], drawn: Sequence[Look]) -> Html:
    keys = noted(groups)
    keys.sort(key=lambda key: (key == "loss", list(NOTES).index(key) if key in NOTES else len(NOTES)))
    if not keys:
        return tag("p", "These methods note nothing but their passes.", class_="soft")
    figures, rows = [], []
    for place, key in enumerate(keys):
        meaning = f": {NOTES[key]}" if key in NOTES else ""
        caption = tag("figcaption", tag("b", key), meaning)
        if any(varies(group, key) for group in groups):  # a setting that stayed as it was is in the table alone
            figures.append(tag("figure", caption, note_chart(groups, drawn, key, place)))
        for group in groups:
            line = along_stream(group, key).mean
            if np.isfinite(line).any():
                kept = line[np.isfinite(line)]
                rows.append((key, group.label, *(f"{v:.4g}" for v in (kept[0], kept.mean(), kept[-1]))))
    header = ("Note", "Method", "First", "Mean", "Last")
    return join(
        legend(groups, drawn), tag("div", *figures, class_="grid2"), data_table("Numbers: the notes", header, rows)
    )


def _reliability(groups: Sequence[Group], drawn: Sequence[Look]) -> Html:
    figures, rows = [], []
    for place, (group, look) in enumerate(zip(groups, drawn, strict=True)):
        caption = tag("figcaption", tag("b", group.label), tag("br"), f"ECE {group.score('ece').text('.3f')}")
        figures.append(tag("figure", caption, reliability_chart(group, look, place)))
        rows += [(group.label, f"{c:.3f}", f"{a:.3f}", str(n)) for c, a, n in reliability_bins(group.runs)]
    header = ("Method", "Confidence", "Accuracy", "Predictions")
    return join(tag("div", *figures, class_="grid4"), data_table("Numbers: every bin", header, rows))


def _risk(groups: Sequence[Group], drawn: Sequence[Look]) -> Html:
    shares = (10, 25, 50, 75, 90, 100)
    rows = []
    for group in groups:
        coverage, risk = risk_coverage(group.runs)
        at = [f"{100 * float(np.interp(share / 100, coverage, risk)):.2f}" for share in shares]
        rows.append((group.label, *at, f"{group.score('aurc').mean:.4f}"))
    header = ("Method", *(f"{share} % kept" for share in shares), "AURC")
    chart = scroll(risk_chart(groups, drawn), "Chart: risk and coverage", wide=True)
    return join(legend(groups, drawn), chart, data_table("Numbers: error in per cent by coverage", header, rows))


def _cost(groups: Sequence[Group], drawn: Sequence[Look]) -> Html:
    seconds = [group.score("seconds") for group in groups]
    passes = [group.passes() for group in groups]
    charts = (
        cost_chart(groups, drawn, seconds, "seconds for the stream", "cost-seconds"),
        cost_chart(groups, drawn, passes, "forward and backward passes a batch", "cost-passes"),
    )
    rows = [
        (group.label, group.score("error").text(".1f"), time.text(".2f"), each.text(".3g"))
        for group, time, each in zip(groups, seconds, passes, strict=True)
    ]
    header = ("Method", "Error %", "Seconds", "Passes a batch")
    return join(
        tag("div", *(tag("figure", chart) for chart in charts), class_="grid2"),
        data_table("Numbers: cost and error", header, rows),
    )


def _images(pictures: Samples) -> Html:
    strips = [
        tag("figure", tag("img", src=address, alt=f"A few images, {name}"), tag("figcaption", name))
        for name, address in pictures.strips
    ]
    about = tag("p", pictures.about, class_="soft")
    return join(about, tag("div", *strips, class_="strips small" if pictures.small else "strips") if strips else None)


def _manifests(runs: Mapping[str, Run]) -> Html:
    folded = []
    for name, run in runs.items():
        more = f" {run.method}, seed {run.manifest.get('seed')}"
        text = json.dumps(run.manifest, indent=2, ensure_ascii=False)
        pre = tag("pre", text, tabindex="0", role="region", aria_label=f"Manifest of {name}")
        folded.append(tag("details", tag("summary", name, tag("span", more)), pre))
    return join(*folded)
