"""The pages people look at: how the model is, live, and what the server answers to; all in one piece."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from vcotta.report.markup import Html, join, tag
from vcotta.report.style import style_for
from vcotta.serve.live import SCRIPT

__all__ = ["docs_page", "policy_of", "status_page"]

_STYLE = """
.live{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1.25rem}
.live svg{width:100%;height:auto;display:block;color:var(--accent);background:var(--faint);border-radius:8px}
.live figcaption b{color:var(--ink)}
.live polyline{fill:none;stroke:currentColor;stroke-width:2;vector-effect:non-scaling-stroke}
.live svg text{fill:var(--soft);font-size:12px}
#said{min-height:1.5em}#said.bad{color:var(--ink);font-weight:600}
button.plain{font:inherit;color:var(--ink);background:var(--faint);border:1px solid var(--line);border-radius:8px;
padding:.45rem .9rem;min-height:2.75rem;cursor:pointer}
code{font-size:.9em;overflow-wrap:anywhere}
"""
_TILES = {
    "rate": "images a second",
    "images": "images adapted to",
    "steps": "batches since the latest reset",
    "waiting": "images waiting",
    "guarded": "batches a guard stepped in",
    "skipped": "updates dropped",
}
_CHARTS = {
    "rate": ("Throughput", "images a second"),
    "entropy": ("Entropy", "mean of each batch's predictions, in nats"),
    "alpha": ("Alpha", "weight of the source prior, where the method has one"),
    "drift": ("Drift", "distance of the weights from their start, relative to their size"),
}


def status_page() -> str:
    """Return the status page, which asks ``v1/state`` for news once a second."""
    tiles = [
        tag("div", tag("b", "-", id=f"tile-{key}"), tag("span", about), class_="tile") for key, about in _TILES.items()
    ]
    charts = [_chart(key, *told) for key, told in _CHARTS.items()]
    header = [tag("th", name, scope="col") for name in ("Change", "Seconds ago", "What the guard did")]
    events = tag("table", tag("thead", tag("tr", *header)), tag("tbody", "", id="events"))
    body = [
        tag("a", "Skip to the numbers", class_="skip", href="#now"),
        tag("header", tag("h1", "How the model is"), tag("p", "Asking the server ...", id="about", class_="soft")),
        tag(
            "main",
            _section(
                "now",
                "Now",
                tag("p", "", id="said", role="status", class_="soft"),
                tag("div", *tiles, class_="tiles"),
                tag("button", "Pause", id="pause", type="button", class_="plain", aria_pressed="false"),
            ),
            _section("charts", "The latest batches", tag("div", *charts, class_="live")),
            _section(
                "guards",
                "Guard events",
                tag("p", "None among the latest batches.", id="no-events", class_="soft"),
                tag("div", events, class_="scroll", id="event-table", hidden=True),
            ),
        ),
        tag("footer", tag("p", tag("a", "What this server answers to", href="docs"), ", ", _link("metrics"))),
    ]
    return _page("vcotta: status", *body, tag("script", Html(SCRIPT)))


def docs_page(document: dict[str, Any]) -> str:
    """Return a page that tells an OpenAPI document in plain words."""
    sections = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = re.sub(r"\W+", "-", path).strip("-")
            sections.append(_section(place, f"{method.upper()} {path}", *_operation(operation)))
    schemas = document.get("components", {}).get("schemas", {})
    told = [
        tag("details", tag("summary", name), tag("pre", json.dumps(schema, indent=2), tabindex="0"))
        for name, schema in schemas.items()
    ]
    body = [
        tag(
            "header",
            tag("h1", "What this server answers to"),
            tag("p", "For programs: ", _link("openapi.json"), ". How the model is: ", _link("./"), class_="soft"),
        ),
        tag("main", *sections, _section("schemas", "What the answers hold", *told)),
    ]
    return _page("vcotta: requests and answers", *body)


def policy_of(page: str) -> str:
    """Return the Content-Security-Policy of a page: its own script, its own server, and nothing else."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    ]
    scripts = " ".join(hashes) or "'none'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {scripts}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _page(title: str, *body: Html) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
        tag("style", Html(style_for(()) + _STYLE)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *body), lang='en')}\n"


def _section(place: str, heading: str, *content: Html | None) -> Html:
    title = tag("h2", heading, id=f"{place}-heading")
    return tag("section", title, *content, id=place, aria_labelledby=f"{place}-heading")


def _link(place: str) -> Html:
    return tag("a", "status page" if place == "./" else place, href=place)


def _chart(key: str, name: str, about: str) -> Html:
    line = tag("polyline", "", id=f"line-{key}", points="")
    words = [
        tag("text", "", id=f"high-{key}", x="6", y="16"),
        tag("text", "", id=f"low-{key}", x="6", y="154"),
    ]
    svg = tag("svg", line, *words, id=f"chart-{key}", viewBox="0 0 480 160", role="img", aria_label=f"{name}: no data")
    caption = tag("figcaption", tag("b", name), ": ", about, ". Now ", tag("b", "-", id=f"now-{key}"), ".")
    return tag("figure", caption, svg)


def _operation(operation: dict[str, Any]) -> list[Html]:
    told = [tag("p", operation.get("description") or operation["summary"])]
    if operation.get("security"):
        told.append(tag("p", "Takes ", tag("code", "Authorization: Bearer TOKEN"), class_="soft"))
    given = [
        tag("li", tag("code", p["name"]), f": {p.get('description', '')} Default: {p['schema'].get('default')}.")
        for p in operation.get("parameters", [])
    ]
    bodies = operation.get("requestBody", {}).get("content", {})
    sent = [tag("li", tag("code", kind), ": ", _about(content["schema"])) for kind, content in bodies.items()]
    answers = [
        tag("li", tag("code", status), f": {answer['description']}")
        for status, answer in operation.get("responses", {}).items()
    ]
    for heading, items in (("In the address", given), ("In the body", sent), ("Answers", answers)):
        if items:
            told += [tag("h3", heading), tag("ul", *items, class_="notes")]
    return told


def _about(schema: dict[str, Any]) -> str:
    fields = schema.get("properties", {})
    return schema.get("description") or join(*(f"{name}: {field['description']}" for name, field in fields.items()))
