"""Replicas and the front, run in this process without Ray."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx
from fastapi.testclient import TestClient

from vcotta.serve import replica
from vcotta.serve.app import create_app
from vcotta.serve.auth import hash_token
from vcotta.serve.oip import HEADER_LENGTH
from vcotta.serve.replica import Front, Replica, ReplicaOptions, merge_metrics, merge_streams, run_request, stream_of
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.service import Service

OPERATOR = {"Authorization": "Bearer the-token-of-the-operator"}
NPY = OPERATOR | {"Content-Type": "application/x-npy"}
TOKENS = {"*": hash_token("the-token-of-the-operator")}
LIMITS = Limits(body=4000, images=8)


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/v1/predict", "default"),
        ("/v1/reset", "default"),
        ("/v1/state", "default"),
        ("/v1/streams/camera-7", "camera-7"),
        ("/v1/streams/camera-7/pin", "camera-7"),
        ("/v1/streams/default/predict", "default"),
        ("/v1/streams", None),
        ("/", None),
        ("/healthz", None),
        ("/v2/models/vcotta", None),
        ("/v2/models/vcotta/ready", None),
    ],
)
def test_the_path_says_whose_request_it_is(path, stream) -> None:
    assert stream_of(path) == stream


@pytest.mark.parametrize(
    ("body", "head", "stream"),
    [
        (b'{"parameters": {"stream": "a"}, "inputs": []}', None, "a"),
        (b'{"parameters": {"stream": "a"}}\x00\x01\xff', "31", "a"),
        (b'{"inputs": []}', None, "default"),
        (b'{"parameters": {"stream": 7}}', None, "default"),
        (b'{"parameters": []}', None, "default"),
        (b"[" * 100_000, None, "default"),
        (b"\xff", "x", "default"),
    ],
)
def test_an_inference_names_its_stream_in_the_body(body, head, stream) -> None:
    assert stream_of("/v2/models/vcotta/infer", body, head) == stream


class Fleet:
    """Replicas in this process; a stream goes to the first or the second of them by its name's last letter."""

    def __init__(self, replicas: list[Replica]) -> None:
        self.replicas, self.asked, self.swapped = replicas, [], False

    async def ask(self, scope, body, stream):
        number = (ord((stream or "a")[-1]) + self.swapped) % 2
        self.asked.append((stream, number))
        return await self.replicas[number].answer(scope, body, stream)

    async def ask_all(self, scope):
        return {f"r{n}": (await one.answer_as(scope))[1] for n, one in enumerate(self.replicas)}


@pytest.fixture
def fleet(bundle_path, tmp_path, monkeypatch) -> Iterator[Fleet]:
    monkeypatch.setattr(replica, "log_to", lambda _: None)  # would stay after the test
    service = {"state": tmp_path / "fleet", "wait": 0.0, "checkpoint_seconds": 1e6, "limits": LIMITS}
    replicas = [Replica(ReplicaOptions(bundle_path, service, TOKENS)) for _ in range(2)]
    yield Fleet(replicas)
    for one in replicas:
        one.__del__()


def client_of(fleet: Fleet) -> TestClient:
    return TestClient(Front(fleet.ask, fleet.ask_all, LIMITS), raise_server_exceptions=False)


@pytest.fixture
def alone(bundle, tmp_path) -> Iterator[TestClient]:
    with Service(bundle, state=tmp_path / "alone", wait=0.0, limits=LIMITS) as service:
        yield TestClient(create_app(service, TOKENS), raise_server_exceptions=False)


def test_answers_are_those_of_one_server_byte_for_byte(fleet, alone, npy, images) -> None:
    front = client_of(fleet)
    infer = {
        "parameters": {"stream": "b"},
        "inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": images(1).flatten().tolist()}],
    }
    body = npy(images(1))
    asked = [
        *[("POST", f"/v1/streams/{name}/predict", body, NPY) for name in ("a", "b", "a", "default")],
        ("POST", "/v1/predict?probabilities=false", body, NPY),
        ("POST", "/v1/predict", body, {"Content-Type": "application/x-npy"}),
        ("POST", "/v1/streams/c/predict?adapt=false", body, NPY),
        ("POST", "/v1/streams/No/predict", body, NPY),
        ("POST", "/v1/streams/a/predict", b"nonsense", NPY),
        ("POST", "/v1/streams/a/predict?adpat=1", body, NPY),
        ("POST", "/v1/streams/a/predict", bytes(5000), NPY),
        ("POST", "/v2/models/vcotta/infer", bytes(5000), OPERATOR),
        ("POST", "/v2/models/vcotta/infer", json.dumps(infer).encode()[:3999], OPERATOR),
        ("GET", "/v1/streams/a/predict", b"", {}),
        ("PUT", "/v1/streams/d", b"", OPERATOR),
        ("DELETE", "/v1/streams/d", b"", OPERATOR),
        ("POST", "/v1/streams/a/pin", b"", OPERATOR),
        ("POST", "/v1/streams/a/predict", body, NPY),
        ("POST", "/v1/reset", b"", OPERATOR),
        ("GET", "/v2/models/vcotta", b"", {}),
        ("GET", "/healthz", b"", {}),
        ("GET", "/docs", b"", {}),
        ("GET", "/nothing", b"", {}),
    ]
    for method, path, content, headers in asked:
        headers = headers | {"X-Request-ID": "one"}
        ours = front.request(method, path, content=content, headers=headers)
        theirs = alone.request(method, path, content=content, headers=headers)
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), path
        assert sorted(ours.headers.multi_items()) == sorted(theirs.headers.multi_items()), path
    assert {number for _, number in fleet.asked} == {0, 1}


def test_a_stream_that_goes_to_another_replica_waits_until_it_is_handed_over(fleet, npy, images) -> None:
    front = client_of(fleet)
    for changes in range(1, 7):
        fleet.swapped = changes > 3
        answer = front.post("/v1/streams/a/predict", content=npy(images(1, changes)), headers=NPY)
        assert (answer.status_code, answer.json()["batch"]["changes"]) == (200, changes)


def test_the_list_of_streams_and_the_metrics_are_those_of_all_replicas(fleet, npy, images) -> None:
    front = client_of(fleet)
    for name in ("a", "b", "d"):
        front.post(f"/v1/streams/{name}/predict", content=npy(images(2)), headers=NPY)
    answer = front.get("/v1/streams").json()
    assert [one["stream"] for one in answer["streams"]] == ["a", "b", "d"]
    assert (answer["total"], answer["in_memory"]) == (3, 3)
    for accept in ("text/plain", "application/openmetrics-text"):
        text = front.get("/metrics", headers={"Accept": accept}).text
        found = re.findall(r'vcotta_stream_images_total\{replica="(r\d)",stream="(.)"\} 2.0', text)
        assert sorted(found) == [("r0", "b"), ("r0", "d"), ("r1", "a")]
    assert front.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text.endswith("# EOF\n")
    assert front.get("/v1/streams?odd=1").status_code == 422


def test_pinned_and_flagged_streams_are_first_in_the_merged_list() -> None:
    def of(name: str, signs: list[str], pinned: bool) -> dict:
        counts = {"total": 1, "in_memory": 1, "memory": 10, "held": 2, "source": 5, "most": 64}
        return counts | {"streams": [{"stream": name, "signs": signs, "pinned": pinned}]}

    merged = merge_streams([of("a", [], False), of("b", [], True), of("c", ["collapse"], False)])
    assert [one["stream"] for one in merged["streams"]] == ["c", "b", "a"]
    assert {name: merged[name] for name in ("total", "memory", "held", "source", "most")} == {
        "total": 3,
        "memory": 30,
        "held": 6,
        "source": 5,
        "most": 64,
    }


def test_merged_metrics_keep_the_labels_and_values_of_each_replica() -> None:
    text = '# HELP a_total Of a.\n# TYPE a_total counter\na_total{path="/"} %d.0\n'
    merged = merge_metrics({"r1": text % 1, "r2": text % 2}, "")[0].decode()
    assert merged.count("# HELP a_total Of a.\n") == 1
    assert 'a_total{path="/",replica="r1"} 1.0\n' in merged
    assert 'a_total{path="/",replica="r2"} 2.0\n' in merged


@pytest.mark.parametrize(("path", "key"), [("/v1/predict", "detail"), ("/v2/models/vcotta/infer", "error")])
def test_a_lost_replica_is_told_to_the_client(path, key, npy, images) -> None:
    async def lost(*_: object):
        raise RefusedError(503, "lost", Retry_After="1")

    front = TestClient(Front(lost, lost, LIMITS))
    answer = front.post(path, content=npy(images(1)), headers=NPY)
    assert (answer.status_code, answer.json(), answer.headers["Retry-After"]) == (503, {key: "lost"}, "1")
    assert answer.headers["X-Request-ID"]
    assert front.get("/metrics").status_code == 503


def test_bodies_that_wait_for_an_answer_are_bounded() -> None:
    async def main() -> None:
        go, waiting = asyncio.Event(), asyncio.Semaphore(0)

        async def slow(*_: object):
            waiting.release()
            await go.wait()
            return 200, [], b"done"

        front = Front(slow, slow, Limits(body=100, requests=2))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://localhost") as client:
            open_ones = [asyncio.create_task(client.post("/v1/predict", content=bytes(80))) for _ in range(2)]
            for _ in open_ones:
                await waiting.acquire()
            refused = await client.post("/v1/predict", content=bytes(80))
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
            go.set()
            assert [(await one).status_code for one in open_ones] == [200, 200]
            assert (await client.post("/v1/predict", content=bytes(80))).status_code == 200

    asyncio.run(main())


def test_a_replica_whose_worker_has_ended_is_not_healthy(fleet) -> None:
    one = fleet.replicas[0]
    one.check_health()
    one.__del__()
    with pytest.raises(RuntimeError, match="has ended"):
        one.check_health()


def test_an_unexpected_error_is_not_lost() -> None:
    async def broken(scope, receive, send) -> None:
        raise KeyError("odd")

    with pytest.raises(KeyError):
        asyncio.run(run_request(broken, {"type": "http"}, b""))


def test_a_binary_inference_goes_to_its_stream(fleet, images) -> None:
    head = json.dumps(
        {
            "parameters": {"stream": "b"},
            "inputs": [
                {
                    "name": "images",
                    "datatype": "FP32",
                    "shape": [1, 3, 8, 8],
                    "parameters": {"binary_data_size": 4 * 3 * 64},
                }
            ],
        }
    ).encode()
    answer = client_of(fleet).post(
        "/v2/models/vcotta/infer",
        content=head + images(1).numpy().tobytes(),
        headers=OPERATOR | {HEADER_LENGTH: str(len(head))},
    )
    assert (answer.status_code, answer.json()["parameters"]["stream"]) == (200, "b")
    assert fleet.asked == [("b", 0)]


def test_an_unexpected_failure_is_in_the_log_of_its_replica(fleet, monkeypatch, caplog) -> None:
    monkeypatch.setattr("vcotta.serve.app.render", lambda *_, **__: 1 / 0)
    assert client_of(fleet).get("/").status_code == 500
    assert "ZeroDivisionError" in "".join(str(one.exc_text) for one in caplog.records)
    assert [one.levelname for one in caplog.records if " status=500 " in one.message] == ["WARNING"]


def test_the_front_logs_why_it_could_not_answer(caplog) -> None:
    async def lost(*_):
        raise RefusedError(503, "the replica is lost")

    http = TestClient(Front(lost, lost, LIMITS))
    assert http.get("/v1/state").status_code == 503
    assert [(one.levelname, "the replica is lost" in one.message) for one in caplog.records] == [("WARNING", True)]


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/merge"), ("GET", "/v1/state"), ("GET", "/metrics")])
def test_an_unexpected_error_of_the_front_is_answered_and_logged_as_one_server_does(method, path, caplog) -> None:
    def fails(*_):
        raise MemoryError("no room")

    http = TestClient(Front(fails, fails, LIMITS, fails, TOKENS), raise_server_exceptions=False)
    answer = http.request(method, path, headers=OPERATOR | {"X-Request-ID": "one"})
    assert (answer.status_code, answer.json()) == (500, {"detail": "The server failed; see its log."})
    assert (answer.headers["x-request-id"], answer.headers["cache-control"]) == ("one", "no-store")
    (line,) = [one for one in caplog.records if " status=500 " in one.message]
    assert (line.levelname, "MemoryError: no room" in line.message) == ("WARNING", True)
    assert any(one.exc_info for one in caplog.records)
