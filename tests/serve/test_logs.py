"""The server's log: one line a request and a guard action, and nothing that must stay secret."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import warnings
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta import Guard
from vcotta.serve.app import create_app
from vcotta.serve.bundle import Bundle
from vcotta.serve.logs import log_to, safe_path
from vcotta.serve.service import Service

from .conftest import small_bundle

TOKEN = "a-token-for-the-tests"
PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "deploy.md").read_text(encoding="utf-8")
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-npy"}


@pytest.fixture(params=["json", "text"])
def log(request, monkeypatch):
    """The form of the log, and the stream it is written to."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored afterwards
    loggers = [logging.getLogger(name) for name in ("vcotta.serve", "uvicorn")]
    before = [(one.handlers, one.propagate, one.level) for one in loggers]
    stream = io.StringIO()
    log_to(request.param, stream)
    yield request.param, stream
    for one, (handlers, propagate, level) in zip(loggers, before, strict=True):
        one.handlers, one.propagate = handlers, propagate
        one.setLevel(level)


def client_of(service: Service) -> TestClient:
    return TestClient(create_app(service, TOKEN), raise_server_exceptions=False)


def test_each_request_is_one_line_with_its_id_status_images_and_time(service, log, npy, images) -> None:
    form, stream = log
    client = client_of(service)
    answer = client.post("/v1/predict", content=npy(images(6)), headers=HEADERS | {"X-Request-ID": "camera-7.1"})
    client.get("/nothing?token=hidden")
    first, second = stream.getvalue().splitlines()
    assert answer.headers["x-request-id"] == "camera-7.1"
    if form == "text":
        assert (
            " INFO request id=camera-7.1 stream=default method=POST path=/v1/predict status=200 images=6 ms=" in first
        )
        assert " method=GET path=/nothing status=404 images=0 ms=" in second
        return
    line, other = json.loads(first), json.loads(second)
    assert line.pop("time").endswith("Z")
    assert 0 < line.pop("ms") < 60_000
    assert line == {
        "level": "info",
        "event": "request",
        "id": "camera-7.1",
        "stream": "default",
        "method": "POST",
        "path": "/v1/predict",
        "status": 200,
        "images": 6,
    }
    assert (other["path"], other["status"], len(other["id"])) == ("/nothing", 404, 16)


@pytest.mark.parametrize("given", ["two words", "x" * 65, "a=b", "", "ä".encode()])
def test_an_id_that_could_forge_a_line_is_replaced(service, log, given) -> None:
    answer = client_of(service).get("/healthz", headers={"X-Request-ID": given})
    assert len(answer.headers["x-request-id"]) == 16
    assert answer.headers["x-request-id"] in log[1].getvalue()


def test_a_path_cannot_forge_a_line(service, log) -> None:
    client_of(service).get("/x%0A2026-01-01T00:00:00Z INFO request id=forged")
    assert len(log[1].getvalue().splitlines()) == 1
    assert len(safe_path("/" + "\n" * 500)) == 200


def guarded() -> Bundle:
    """A bundle whose guard objects as soon as predictions are more certain than the source's, which TENT makes them."""
    return Bundle(**vars(small_bundle(lr=0.1)) | {"guard": asdict(Guard(overconfidence=0.0, window=1, patience=2))})


def documented(*events: str) -> dict[str, list[str]]:
    """The fields of events, as the page of deployment shows them."""
    found = map(json.loads, re.findall(r"^\{.*\}$", PAGE, re.M))
    return {event["event"]: list(event) for event in found if event["event"] in events}


def test_each_guard_action_is_one_line_with_its_causes_and_requests(log, npy, images) -> None:
    form, stream = log
    body = npy(images(6))
    with Service(guarded(), wait=0.0) as service:
        for number in range(3):
            sent = HEADERS | {"X-Request-ID": f"r{number}"}
            assert client_of(service).post("/v1/predict", content=body, headers=sent).status_code == 200
        shown = [entry["guard"] for entry in service.streams.default.history.since(0) if entry["guard"]]
    lines = [line for line in stream.getvalue().splitlines() if "guard" in line]
    assert len(lines) == len(shown) > 0
    if form == "json":
        read = [json.loads(line) for line in lines]
        assert [{key: line[key] for key in ("causes", "action")} for line in read] == shown
        assert read[-1]["requests"] == ["r2"]
        assert read[-1]["level"] == "warning"
        assert (read[-1]["changes"], read[-1]["images"]) == (3, 6)
        everything = [json.loads(line) for line in stream.getvalue().splitlines()]
        assert {event["event"]: list(event) for event in everything} == documented("request", "guard")
    else:
        assert (
            f" WARNING guard stream=default causes={','.join(shown[-1]['causes'])} action={shown[-1]['action']} "
            in lines[-1]
        )
        assert lines[-1].endswith("requests=r2")


def test_a_failed_batch_is_in_the_log_with_its_traceback(service, log, npy, images, monkeypatch) -> None:
    form, stream = log

    def fail(*_: object) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(service.engine, "_step", fail)
    assert client_of(service).post("/v1/predict", content=npy(images(6)), headers=HEADERS).status_code == 500
    if form == "json":
        failed = json.loads(stream.getvalue().splitlines()[0])
        assert "failed and was undone" in failed["message"]
        assert "out of order" in failed["traceback"]
    else:
        assert "RuntimeError: out of order" in stream.getvalue()


def test_a_python_warning_is_one_line_of_the_log(log) -> None:
    form, stream = log
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("The disk\nis almost full.", stacklevel=1)
    (line,) = stream.getvalue().splitlines()
    if form == "json":
        read = json.loads(line)
        assert (read["level"], read["event"], read["message"]) == ("warning", "message", "The disk is almost full.")
    else:
        assert line.endswith(" WARNING The disk is almost full.")


def test_neither_token_nor_images_are_in_the_log(service, log, npy, png, images) -> None:
    client, content = client_of(service), png()
    wrong = "another-token-of-somebody"
    client.post("/v1/predict", content=npy(images(6)), headers=HEADERS)
    client.post("/v1/predict", content=b"secret pixels", headers=HEADERS)
    client.post("/v1/predict", content=npy(images(6)), headers=HEADERS | {"Authorization": f"Bearer {wrong}"})
    client.post(f"/v1/predict?adapt=false&token={TOKEN}", files=[("images", ("secret.png", content))])
    client.post("/v1/predict?adapt=false", files=[("images", ("secret.png", content))])
    said = log[1].getvalue()
    assert len(said.splitlines()) == 5
    for hidden in (TOKEN, wrong, "secret", "Bearer", base64.b64encode(content[:30]).decode(), "PNG"):
        assert hidden not in said
