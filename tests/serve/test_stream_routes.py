"""The HTTP routes of streams, and who may use them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta import load
from vcotta.serve.app import create_app
from vcotta.serve.auth import ALL, hash_token, read_tokens
from vcotta.serve.service import Service

from .conftest import small_bundle

NPY = {"Content-Type": "application/x-npy"}
TOKENS = {ALL: "the-token-of-the-operator", "a": "the-token-of-stream-a", "b": "the-token-of-stream-b"}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture
def client(service):
    tokens = {name: hash_token(token) for name, token in TOKENS.items()}
    return TestClient(create_app(service, tokens), raise_server_exceptions=False)


@pytest.fixture
def array(npy, images):
    return npy(images(6))


def test_a_stream_is_made_used_reset_exported_and_deleted(client, array, tmp_path) -> None:
    operator = bearer(ALL)
    assert client.get("/v1/streams/a").status_code == 404
    assert [client.put("/v1/streams/a", headers=operator).status_code for _ in range(2)] == [201, 200]
    assert client.get("/v1/streams/a").json()["steps"] == 0
    answer = client.post("/v1/streams/a/predict", content=array, headers=NPY | operator).json()
    assert answer["batch"]["changes"] == 1
    assert answer == client.post("/v1/predict", content=array, headers=NPY | operator).json()
    looked = client.post("/v1/streams/a/predict?adapt=false", content=array, headers=NPY)
    assert (looked.status_code, looked.json()["batch"]["adapted"]) == (200, False)
    listed = client.get("/v1/streams").json()
    assert {one["stream"]: one["changes"] for one in listed["streams"]} == {"a": 1, "default": 1}
    assert listed["total"] == listed["in_memory"] == 2
    assert 0 < listed["held"] < listed["memory"]
    exported = client.get("/v1/streams/a/export", headers=operator)
    assert exported.headers["content-disposition"] == 'attachment; filename="a.safetensors"'
    (tmp_path / "a").write_bytes(exported.content)
    assert load(tmp_path / "a").steps == 1
    assert client.app.state.exports == 0
    assert client.post("/v1/streams/a/reset", headers=operator).json() == {"steps": 0, "changes": 2}
    assert client.delete("/v1/streams/a", headers=operator).json()["stream"] == "a"
    assert client.get("/v1/streams/a").status_code == 404
    assert client.get("/v1/state").json()["changes"] == 1


def test_answers_say_in_a_header_what_would_survive_a_kill(client, service, array) -> None:
    client.put("/v1/streams/a", headers=bearer("a"))
    service.find("a").engine.store.every = 1e6
    infer = {"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 3, 8, 8], "data": [0.5] * 192}]}
    answers = [
        client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a")),
        client.post("/v1/streams/a/predict?adapt=false", content=array, headers=NPY),
        client.post("/v2/models/vcotta/infer", json=infer | {"parameters": {"stream": "a"}}, headers=bearer("a")),
    ]
    assert [answer.headers["vcotta-saved"] for answer in answers] == ["0", "0", "0"]
    service.find("a").engine.save()
    assert client.post("/v1/streams/a/predict?adapt=false", content=array, headers=NPY).headers["vcotta-saved"] == "2"
    for path in ("/v1/predict", "/v1/streams/{stream}/predict", "/v2/models/{model}/infer"):
        described = client.get("/openapi.json").json()["paths"][path]["post"]["responses"]["200"]
        assert described["headers"]["vcotta-saved"]["schema"] == {"type": "integer"}


def test_exports_are_bounded_and_a_failed_one_leaves_nothing(client, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    client.app.state.exports = 2
    assert client.get("/v1/streams/default/export", headers=bearer(ALL)).status_code == 429
    client.app.state.exports = 0
    assert client.get("/v1/streams/c/export", headers=bearer(ALL)).status_code == 404
    assert (client.app.state.exports, list(tmp_path.glob("vcotta-export-*"))) == (0, [])


def test_the_token_of_a_stream_opens_no_other_and_none_of_the_operators_doors(client, service, array) -> None:
    doors = {
        "predict": lambda name, headers: client.post(
            f"/v1/streams/{name}/predict", content=array, headers=NPY | headers
        ),
        "make": lambda name, headers: client.put(f"/v1/streams/{name}", headers=headers),
        "reset": lambda name, headers: client.post(f"/v1/streams/{name}/reset", headers=headers),
        "export": lambda name, headers: client.get(f"/v1/streams/{name}/export", headers=headers),
        "pin": lambda name, headers: client.post(f"/v1/streams/{name}/pin", headers=headers),
        "unpin": lambda name, headers: client.delete(f"/v1/streams/{name}/pin", headers=headers),
        "delete": lambda name, headers: client.delete(f"/v1/streams/{name}", headers=headers),
    }
    service.make("a")[0].result(60)
    service.make("b")[0].result(60)
    for name, act in doors.items():
        for headers in ({}, bearer("b"), {"Authorization": "Bearer "}):
            assert act("a", headers).status_code == 401, name
        expected = 401 if name in ("pin", "unpin", "delete") else 200
        assert act("a", bearer("a")).status_code == expected, name
    for path in ("/v1/predict", "/v1/reset", "/v1/merge"):
        assert client.post(path, content=array, headers=NPY | bearer("a")).status_code == 401
    assert client.get("/v1/streams/b").json()["changes"] == 0
    assert client.get("/v1/state").json()["changes"] == 0
    for name, act in doors.items():
        assert act("a", bearer(ALL)).status_code == 200, name


def test_without_a_right_token_nobody_makes_a_stream(client, service, array) -> None:
    assert client.post("/v1/streams/c/predict", content=array, headers=NPY).status_code == 401
    assert client.post("/v1/streams/c/predict", content=array, headers=NPY | bearer("a")).status_code == 401
    assert client.post("/v1/streams/c/predict?adapt=false", content=array, headers=NPY).status_code == 404
    assert client.post("/v1/streams/c/predict", content=b"x", headers=NPY | bearer(ALL)).status_code == 422
    assert [stream.name for stream in service.list_streams()] == ["default"]


def test_a_pinned_stream_says_so_and_adapts_no_more(client, array) -> None:
    client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a"))
    assert client.post("/v1/streams/a/pin", headers=bearer(ALL)).json() == {
        "stream": "a",
        "changes": 1,
        "pinned": True,
    }
    batch = client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a")).json()["batch"]
    assert (batch["adapted"], batch["changes"]) == (False, 1)
    assert client.get("/v1/streams").json()["streams"][0]["pinned"]
    assert client.delete("/v1/streams/a/pin", headers=bearer(ALL)).json()["pinned"] is False
    assert client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a")).json()["batch"]["adapted"]


@pytest.mark.parametrize("path", ["/v1/streams/A", "/v1/streams/.a", "/v1/streams/a%20b", "/v1/streams/" + "a" * 65])
def test_an_odd_name_is_refused_before_anything_else(client, path) -> None:
    for answer in (client.put(path, headers=bearer(ALL)), client.get(path), client.post(f"{path}/predict")):
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("Expected `stream` to be a stream's name")


def test_one_stream_cannot_take_all_places_for_reading(client, array) -> None:
    admission = client.app.state.admission
    with admission.admit("x"):
        admission._by_stream["a"] = admission.most // 2
        refused = client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.post("/v1/streams/b/predict", content=array, headers=NPY | bearer("b")).status_code == 200


def test_the_log_and_metrics_name_the_route_and_the_stream(client, service, array, caplog) -> None:
    with caplog.at_level("INFO", logger="vcotta.serve"):
        client.post("/v1/streams/a/predict", content=array, headers=NPY | bearer("a"))
    assert "stream=a method=POST path=/v1/streams/a/predict status=200 images=6" in caplog.text
    text = client.get("/metrics").text
    assert 'vcotta_requests_total{path="/v1/streams/{stream}/predict",status="200"} 1.0' in text
    assert 'vcotta_stream_images_total{stream="a"} 6.0' in text
    assert 'vcotta_stream_pinned{stream="a"} 0.0' in text
    assert "vcotta_streams 2.0" in text


def test_a_file_of_tokens_is_json_by_stream_with_tokens_or_their_hashes(tmp_path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    hashed = {name: f"sha256:{hash_token(token).hex()}" if name == "b" else token for name, token in TOKENS.items()}
    path.write_text(json.dumps(hashed))
    assert read_tokens(path) == {name: hash_token(token) for name, token in TOKENS.items()}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"a": "short"}', "at least 16"),
        ('{"a": 12345678901234567890}', "at least 16"),
        ('{"A": "0123456789abcdef"}', "stream's name"),
        ('{"a": "0123456789abcdef", "b": "0123456789abcdef"}', "twice"),
        ('{"a": "0123456789abcdef", "a": "0123456789abcdeg"}', "has two"),
        ('{"a": {"b": "0123456789abcdef"}}', "at least 16"),
        ('{"a": "0123456789abcdef"', "damaged"),
    ],
)
def test_an_odd_file_of_tokens_is_refused(tmp_path, content, reason) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(ValueError, match=reason):
        read_tokens(path)


def test_the_operator_has_streams_merged_and_is_told_why_they_cannot_be(array, npy, images, tmp_path) -> None:
    tokens = {name: hash_token(token) for name, token in TOKENS.items()}
    options = {"views": 1, "statistics": "batch", "label_prior": False}
    with Service(small_bundle("vcotta", **options), state=tmp_path / "state", wait=0.0) as service:
        client = TestClient(create_app(service, tokens), raise_server_exceptions=False)
        refused = client.post("/v1/merge", headers=bearer(ALL))
        assert (refused.status_code, "at least two streams" in refused.json()["detail"]) == (409, True)
        for name, content in (("a", array), ("b", npy(images(6, 1)))):
            client.post(f"/v1/streams/{name}/predict", content=content, headers=NPY | bearer(name))
        merged = client.post("/v1/merge", headers=bearer(ALL)).json()
        assert (merged["merged"], merged["left_out"]) == (["a", "b"], ["default"])
        assert client.get("/v1/streams/a").json()["changes"] == 2
        assert client.post("/v1/merge?streams=a", headers=bearer(ALL)).status_code == 422
