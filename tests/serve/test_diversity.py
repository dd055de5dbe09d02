"""Batches of few classes: one line in the log, gauges, the state, and no alarm."""

from __future__ import annotations

import io
import json
import logging
import warnings

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from vcotta.methods.guard import DiversityWarning
from vcotta.serve.app import create_app
from vcotta.serve.diversity import DiversityEvent
from vcotta.serve.logs import log_to

from .noting import FEW, MANY, note_steps
from .test_logs import documented


@pytest.fixture
def log(monkeypatch):
    """The server's log as JSON."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored afterwards
    loggers = [logging.getLogger(name) for name in ("vcotta.serve", "uvicorn")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    stream = io.StringIO()
    log_to("json", stream)
    yield stream
    for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def lines(log: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def send(service, images, count: int) -> None:
    for _ in range(count):
        service.predict(images(6), request="camera").result(60)
    service.make("default")[0].result(60)  # comes after the lines of the last batch


def warn_in_steps(engine, which: set[int]) -> None:
    """Let the adapter warn of few classes in these steps, counted from 1."""
    adapter = engine.adapter
    real, count = adapter.predict_and_adapt, 0

    def warning(batch):
        nonlocal count
        count += 1
        if count in which:
            warnings.warn(f"The batches seem to hold few classes ({count}).", DiversityWarning, stacklevel=2)
        return real(batch)

    adapter.predict_and_adapt = warning


def test_the_event_starts_with_the_adapters_word_and_outlasts_a_single_diverse_batch() -> None:
    event = DiversityEvent()
    assert event.see(MANY) is None
    assert [event.see(notes) for notes in (FEW, FEW, MANY, FEW, {})] == ["start", None, None, None, None]
    assert event.low
    phases = [event.see(MANY) for _ in range(10)]
    assert phases.count("end") == 1
    assert not event.low
    assert event.see(FEW) == "start"


def test_an_event_that_is_said_only_once_also_lasts_until_the_stream_is_diverse_again() -> None:
    event, quiet = DiversityEvent(), {key: value for key, value in FEW.items() if key != "guard"}
    assert event.see(FEW) == "start"
    assert [event.see(quiet) for _ in range(20)] == [None] * 20
    assert [event.see(MANY) for _ in range(6)].count("end") == 1


def test_the_log_has_one_line_at_the_start_and_one_at_the_end(service, images, log) -> None:
    note_steps(service.engine, [MANY] + [FEW] * 5 + [MANY] * 10)
    send(service, images, 16)
    start, end = lines(log)
    assert {"diversity": list(start)} == {"diversity": list(end)} == documented("diversity")
    assert (start.pop("level"), end.pop("level")) == ("warning", "info")
    assert start.pop("time") <= end.pop("time")
    same = {"event": "diversity", "stream": "default", "images": 6, "requests": ["camera"]}
    assert start == same | {
        "phase": "start",
        "step": 2,
        "changes": 2,
        "effective_classes": 1.25,
        "class_diversity": 0.1,
    }
    assert end.pop("step") == end.pop("changes") > 7
    assert end == same | {"phase": "end", "effective_classes": 3.75, "class_diversity": 1.0}


def test_the_adapters_warning_is_no_second_line(service, images, log) -> None:
    note_steps(service.engine, [FEW] * 3)
    warn_in_steps(service.engine, {1, 3})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        send(service, images, 3)
    assert [line["event"] for line in lines(log)] == ["diversity"]


def test_a_warning_without_an_event_is_logged_as_it_is(service, images, log) -> None:
    warn_in_steps(service.engine, {1})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        send(service, images, 2)
    assert [line["message"] for line in lines(log)] == ["The batches seem to hold few classes (1)."]


def test_a_step_that_is_undone_neither_starts_the_event_nor_warns(service, images, log) -> None:
    note_steps(service.engine, [FEW, FEW])
    warn_in_steps(service.engine, {1, 2})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        service.engine.try_out(images(6))
    assert not service.streams.default.diversity.low
    assert log.getvalue() == ""


def test_a_guard_that_acts_besides_is_logged_as_always(service, images, log) -> None:
    pulled = {"guard": {"causes": ["collapse", "diversity"], "action": "pull"}}
    note_steps(service.engine, [FEW | pulled] * 2)
    send(service, images, 2)
    assert [line["event"] for line in lines(log)] == ["guard", "diversity", "guard"]
    assert service.metrics.total("guard_events") == 2


def test_a_reset_ends_the_event_without_a_line(service, images, log) -> None:
    note_steps(service.engine, [FEW, FEW])
    send(service, images, 1)
    assert service.streams.default.diversity.low
    service.reset().result(60)
    assert not service.streams.default.diversity.low
    send(service, images, 1)
    assert [line["phase"] for line in lines(log)] == ["start", "start"]


def test_gauges_and_history_have_the_numbers_and_keep_the_latest_known(service, images) -> None:
    note_steps(service.engine, [{}, {}, FEW, MANY, {}])  # the fourth batch the adapter looks at by itself
    client = TestClient(create_app(service))

    def gauges() -> dict[str, float]:
        found = text_string_to_metric_families(client.get("/metrics").text)
        names = ("vcotta_effective_classes", "vcotta_class_diversity", "vcotta_batch_share")
        return {one.name: one.samples[0].value for one in found if one.name in names and one.type == "gauge"}

    send(service, images, 2)
    assert gauges() == {}  # no number is better than a made-up one
    send(service, images, 1)
    assert client.get("/v1/state").json()["low_diversity"] is True
    send(service, images, 2)
    assert gauges() == {"vcotta_effective_classes": 3.75, "vcotta_class_diversity": 1.0, "vcotta_batch_share": 0.5}
    history = client.get("/v1/state").json()["history"]
    assert [entry["effective_classes"] for entry in history] == [None, None, 1.25, 3.75, None]
    assert [entry["batch_share"] for entry in history] == [None, None, 0.05, 0.5, None]
    assert [entry["class_diversity"] for entry in history] == [None, None, 0.1, 1.0, None]
    assert client.get("/v1/state").json()["guarded"] == 0
