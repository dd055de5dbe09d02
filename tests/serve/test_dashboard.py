"""Metrics of streams, and the dashboard that draws them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")

from vcotta.serve.metrics import NAMED, Metrics
from vcotta.serve.service import Service
from vcotta.serve.streams import StreamLimits

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"


def values(service: Service, name: str) -> dict[str, float]:
    found = re.findall(rf'^{name}{{stream="([^"]*)"}} (\S+)', service.metrics.text("")[0].decode(), re.MULTILINE)
    return {label: float(value) for label, value in found}


def test_the_dashboard_names_only_metrics_that_the_server_exports(service, images) -> None:
    service.predict(images(6)).result(60)
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for query in queries for name in re.findall(r"\b(?:vcotta|process)_\w+", query)}
    types = re.findall(r"^# TYPE (\S+) (\S+)$", service.metrics.text("")[0].decode(), re.MULTILINE)
    exported = {f"{name}_bucket" if kind == "histogram" else name for name, kind in types}
    assert len(used) > 20
    assert used <= exported
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]}
    assert len(places) == len(dashboard["panels"])


def test_the_dashboard_shows_every_metric_of_streams(service) -> None:
    text = DASHBOARD.read_text(encoding="utf-8")
    names = re.findall(
        r"^# TYPE (vcotta_stream_\S+?(?:_total)?) (?:counter|gauge)$", service.metrics.text("")[0].decode(), re.M
    )
    assert [name for name in names if name not in text and not name.endswith("_created")] == []


def test_streams_beyond_the_first_fifty_share_one_label_and_a_deleted_one_gives_its_own_back() -> None:
    metrics = Metrics()
    entry = {"images": 2, "adapted": True, "seconds": 0.5, "skipped": False, "guard": None}
    for number in range(NAMED + 3):
        metrics.add_batch(f"s{number}", entry)
    assert metrics.total("images") == 2 * (NAMED + 3)
    assert metrics.total("stream_images", stream="s0") == 2
    assert metrics.total("stream_images", stream="other") == 6
    metrics.forget("s0")
    assert 'stream="s0"' not in metrics.text("")[0].decode()
    metrics.add_batch("new", entry)
    assert metrics.total("stream_images", stream="new") == 2
    assert metrics.total("stream_images", stream="other") == 6


def test_gauges_of_streams_without_a_label_are_added_up_or_left_out(bundle, images, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.serve.metrics.NAMED", 2)
    with Service(bundle, streams=StreamLimits(streams=9), wait=0.0) as service:
        for name in "abcd":
            service.predict(images(6), stream=name).result(60)
        for name in "bcd":
            service.pin(name, True).result(60)
        assert values(service, "vcotta_stream_pinned") == {"a": 0.0, "b": 1.0, "other": 2.0}
        assert list(values(service, "vcotta_stream_entropy")) == ["a", "b"]
