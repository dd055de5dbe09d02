"""The Open Inference Protocol, version 2, by hand and with a public client."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta.serve.app import create_app
from vcotta.serve.auth import hash_token
from vcotta.serve.service import Service

TOKENS = {"*": hash_token("the-token-of-the-operator"), "a": hash_token("the-token-of-stream-a")}
OPERATOR = {"Authorization": "Bearer the-token-of-the-operator"}
STREAM_A = {"Authorization": "Bearer the-token-of-stream-a"}
NPY = {"Content-Type": "application/x-npy"}
INFER = "/v2/models/vcotta/infer"


@pytest.fixture
def client(service):
    return TestClient(create_app(service, TOKENS), raise_server_exceptions=False)


def tensor(images, **more) -> dict:
    return {"name": "images", "datatype": "FP32", "shape": list(images.shape), "data": images.flatten().tolist()} | more


def test_metadata_and_health_are_as_the_protocol_says(client) -> None:
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/vcotta/ready").json() == {"name": "vcotta", "ready": True}
    model = client.get("/v2/models/vcotta").json()
    assert model["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 8, 8]}]
    assert {one["name"]: one["shape"] for one in model["outputs"]}["probabilities"] == [-1, 4]
    for path in ("/v2/models/other", "/v2/models/other/ready", "/v2/nothing"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert list(answer.json()) == ["error"]


def test_the_step_of_a_pinned_stream_is_left_out_while_its_state_was_not_needed(bundle, tmp_path, images) -> None:
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        service.predict(images(6), stream="a").result(60)
        service.pin("a", True).result(60)
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        client = TestClient(create_app(service, TOKENS))
        asked = {"parameters": {"stream": "a"}, "inputs": [tensor(images(6))]}
        answer = client.post(INFER, json=asked, headers=STREAM_A).json()
    assert answer["parameters"] == {"stream": "a", "changes": 1, "adapted": False}


def test_an_inference_is_the_prediction_of_our_own_route_and_a_step_of_the_stream(client, npy, images) -> None:
    first = client.post("/v1/predict", content=npy(images(6)), headers=NPY | OPERATOR).json()
    asked = {"id": "r1", "parameters": {"stream": "a"}, "inputs": [tensor(images(6))]}
    answer = client.post(INFER, json=asked, headers=STREAM_A).json()
    assert (answer["model_name"], answer["id"]) == ("vcotta", "r1")
    assert answer["parameters"] == {"stream": "a", "step": 1, "changes": 1, "adapted": True}
    outputs = {one["name"]: one for one in answer["outputs"]}
    assert outputs["labels"]["data"] == [one["label"] for one in first["predictions"]]
    expected = np.array([one["probabilities"] for one in first["predictions"]])
    assert np.allclose(
        np.reshape(outputs["probabilities"]["data"], outputs["probabilities"]["shape"]), expected, atol=1e-5
    )
    assert client.get("/v1/streams/a").json()["changes"] == 1


def test_tensors_as_bytes_and_nested_lists_are_the_same_as_flat_lists(client, images) -> None:
    asked = {"parameters": {"adapt": False}, "outputs": [{"name": "probabilities"}], "inputs": [tensor(images(3))]}
    flat = client.post(INFER, json=asked).json()["outputs"]
    asked["inputs"] = [tensor(images(3), data=images(3).tolist())]
    assert client.post(INFER, json=asked).json()["outputs"] == flat
    raw = images(3).numpy().tobytes()
    sent = tensor(images(3), parameters={"binary_data_size": len(raw)})
    del sent["data"]
    asked |= {"inputs": [sent], "outputs": [{"name": "probabilities", "parameters": {"binary_data": True}}]}
    head = json.dumps(asked).encode()
    answer = client.post(INFER, content=head + raw, headers={"Inference-Header-Content-Length": str(len(head))})
    length = int(answer.headers["inference-header-content-length"])
    (described,) = json.loads(answer.content[:length])["outputs"]
    values = np.frombuffer(answer.content[length:], "<f4")
    assert described["parameters"]["binary_data_size"] == values.nbytes
    assert np.array_equal(values, np.array(flat[0]["data"], np.float32))


def test_only_inferences_that_adapt_need_the_streams_token(client, service, images) -> None:
    asked = {"inputs": [tensor(images(6))], "parameters": {"stream": "b"}}
    for headers in ({}, STREAM_A):
        assert client.post(INFER, json=asked, headers=headers).status_code == 401
    asked["parameters"]["adapt"] = False
    assert client.post(INFER, json=asked).status_code == 404
    assert client.post(INFER, json={"inputs": asked["inputs"], "parameters": {"adapt": False}}).status_code == 200
    assert [stream.name for stream in service.list_streams()] == ["default"]


def odd(images, **more):
    return {"inputs": [tensor(images(2), **more)]}


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        (422, lambda i: []),
        (422, lambda i: {}),
        (422, lambda i: {"inputs": []}),
        (422, lambda i: {"inputs": [tensor(i(1))] * 2}),
        (422, lambda i: odd(i) | {"parameters": {"adpat": False}}),
        (422, lambda i: odd(i) | {"parameters": {"adapt": "false"}}),
        (422, lambda i: odd(i) | {"parameters": {"stream": "../a"}}),
        (422, lambda i: odd(i) | {"parameters": {"stream": 7}}),
        (422, lambda i: odd(i) | {"outputs": [{"name": "logits"}]}),
        (422, lambda i: odd(i) | {"outputs": [{"name": "labels"}] * 9}),
        (422, lambda i: odd(i) | {"id": "\ud800"}),
        (422, lambda i: odd(i) | {"more": 1}),
        (422, lambda i: odd(i, datatype="FP64")),
        (422, lambda i: odd(i, name="input")),
        (422, lambda i: odd(i, shape=[2, 3, 8])),
        (422, lambda i: odd(i, shape=[3, 3, 8, 8])),
        (422, lambda i: odd(i, shape=[2.0, 3, 8, 8])),
        (422, lambda i: odd(i, shape=[True, 3, 8, 8])),
        (422, lambda i: odd(i, shape=[10**30, 3, 8, 8])),
        (413, lambda i: odd(i, shape=[257, 3, 8, 8])),
        (422, lambda i: odd(i, data=["0.5"] * 384)),
        (422, lambda i: odd(i, data=[True] * 384)),
        (422, lambda i: odd(i, data=[10**400] * 384)),
        (422, lambda i: odd(i, data=[1e300] * 384)),
        (422, lambda i: odd(i, data=[2] * 384)),
        (422, lambda i: odd(i, data=[-0.5] * 384)),
        (422, lambda i: odd(i, data=[[0.5], 0.5])),
        (422, lambda i: odd(i, data={"a": 1})),
        (422, lambda i: odd(i, parameters={"binary_data_size": 1536})),
    ],
)
def test_a_malformed_inference_is_refused_and_changes_nothing(client, service, images, status, asked) -> None:
    answer = client.post(INFER, content=json.dumps(asked(images)), headers=OPERATOR)
    assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text
    assert [stream.name for stream in service.list_streams()] == ["default"]
    assert service.engine.changes == service.waiting == client.app.state.admission.reading == 0


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (422, b"", {}),
        (422, b"nonsense", {}),
        (422, b"[" * 100_000, {}),
        (422, b'{"inputs": [{"data": [NaN]}]}', {}),
        (413, b" " * (5 * 2**20), {}),
        (413, b" " * (17 * 2**20), {}),
        (415, b"{}", {"Content-Encoding": "gzip"}),
        (422, b"{}", {"Inference-Header-Content-Length": "9"}),
        (422, b"{}", {"Inference-Header-Content-Length": "-1"}),
    ],
)
def test_a_broken_body_is_refused(client, service, status, body, headers) -> None:
    answer = client.post(INFER, content=body, headers=OPERATOR | headers)
    assert (answer.status_code, list(answer.json())) == (status, ["error"]), answer.text
    assert "Restore" not in answer.text  # it is no file
    assert service.engine.changes == 0


@pytest.mark.slow
def test_a_public_client_gets_predictions_as_json_and_as_bytes(service, images) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(create_app(service, TOKENS), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    expected = service.engine.predict(images(6)).probabilities.float().numpy()
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as asking:
        assert asking.is_server_live()
        assert asking.is_server_ready()
        assert asking.is_model_ready("vcotta")
        assert not asking.is_model_ready("other")
        (described,) = asking.get_model_metadata("vcotta")["inputs"]
        for number, binary in enumerate((True, False)):
            sent = triton.InferInput(described["name"], [6, 3, 8, 8], described["datatype"])
            sent.set_data_from_numpy(images(6).numpy(), binary_data=binary)
            wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "labels")]
            headers, parameters = dict(OPERATOR), {"stream": f"s{number}"}  # the client adds to the headers
            answer = asking.infer("vcotta", [sent], outputs=wanted, headers=headers, parameters=parameters)
            assert np.allclose(answer.as_numpy("probabilities"), expected, atol=1e-6)
            assert np.array_equal(answer.as_numpy("labels"), expected.argmax(1))
            assert answer.get_response()["parameters"]["changes"] == 1
        everything = asking.infer("vcotta", [sent], headers=dict(OPERATOR))
        assert everything.as_numpy("entropy").shape == (6,)
        with pytest.raises(triton.InferenceServerException, match="TOKEN"):
            asking.infer("vcotta", [sent], parameters={"stream": "a"})
    server.should_exit = True
    thread.join()
