"""The HTTP routes: answers and refusals."""

from __future__ import annotations

import html
import logging
import re
import signal
import socket
import tempfile

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from vcotta.serve import server as run
from vcotta.serve.app import create_app
from vcotta.serve.auth import check_exposure
from vcotta.serve.bundle import Preprocess
from vcotta.serve.requests import Limits, decode_files
from vcotta.serve.service import Service

from .conftest import same_state

TOKEN = "a-token-for-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
NPY = {"Content-Type": "application/x-npy"}


@pytest.fixture
def client(service):
    return TestClient(create_app(service, TOKEN), raise_server_exceptions=False)


@pytest.fixture
def array(npy, images):
    return npy(images(6))


def files(*contents: bytes, name: str = "images"):
    return [(name, (f"{number}.png", content)) for number, content in enumerate(contents)]


def sample(text: str, name: str, **labels: str) -> float:
    """The one sample of this name and these labels in Prometheus' text format."""
    found = [one for family in text_string_to_metric_families(text) for one in family.samples]
    (value,) = [one.value for one in found if (one.name, one.labels) == (name, labels)]
    return value


def test_files_and_arrays_of_the_same_pixels_get_the_same_answer(client, npy, png) -> None:
    contents = [png(seed=seed) for seed in range(6)]
    as_array = npy(decode_files(contents, Preprocess(8), Limits()))
    one = client.post("/v1/predict?adapt=false", files=files(*contents))
    other = client.post("/v1/predict?adapt=false", content=as_array, headers=NPY)
    assert one.status_code == other.status_code == 200
    assert one.json() == other.json()
    assert len(one.json()["predictions"]) == 6


def test_an_answer_has_a_prediction_for_each_image_and_describes_its_batch(client, array) -> None:
    answer = client.post("/v1/predict", content=array, headers=NPY | BEARER).json()
    assert answer["batch"] == {
        "step": 1,
        "changes": 1,
        "images": 6,
        "requests": 1,
        "offset": 0,
        "adapted": True,
    }
    for p in answer["predictions"]:
        assert sum(p["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert p["label"] == int(np.argmax(p["probabilities"]))
        assert p["name"] == ("ant", "bee", "cat", "dog")[p["label"]]
        assert p["probability"] == max(p["probabilities"])
        assert p["entropy"] == pytest.approx(-sum(v * np.log(v) for v in p["probabilities"]), abs=1e-3)
    short = client.post("/v1/predict?probabilities=false", content=array, headers=NPY | BEARER).json()
    assert "probabilities" not in short["predictions"][0]


def test_only_requests_that_change_the_state_need_the_token(client, service, array) -> None:
    for path in ("/v1/predict", "/v1/reset"):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            refused = client.post(path, content=array, headers=NPY | headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
    assert service.engine.changes == 0
    assert client.post("/v1/predict?adapt=false", content=array, headers=NPY).status_code == 200
    for path in ("/", "/docs", "/healthz", "/metrics", "/v1/state", "/openapi.json"):
        assert client.get(path).status_code == 200
    assert service.engine.changes == 0
    assert client.post("/v1/reset", headers=BEARER).json() == {"steps": 0, "changes": 1}


def test_without_a_token_only_this_machine_may_change_the_state(service, array) -> None:
    app = create_app(service)
    here = TestClient(app, base_url="http://127.0.0.1:8000")
    assert here.post("/v1/predict", content=array, headers=NPY).status_code == 200
    assert here.post("/v1/reset", headers={"Origin": "http://evil.example"}).status_code == 403
    assert TestClient(app, base_url="http://evil.example").post("/v1/reset").status_code == 403
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(ValueError, match="token"):
            check_exposure(host, None)
        check_exposure(host, TOKEN)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_exposure(host, None)


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (415, {"content": b"{}", "headers": {"Content-Type": "application/json"}}),
        (415, {"content": b"{}"}),
        (422, {"content": b"", "headers": NPY}),
        (422, {"content": b"x" * 50, "headers": NPY}),
        (422, {"files": files(b"x")}),
        (422, {"files": files(b"x", name="pictures")}),
        (422, {"data": {"images": "text"}, "files": files(b"x")}),
        (422, {"content": b"--a--", "headers": {"Content-Type": "multipart/form-data"}}),
        (422, {"content": b"nothing", "headers": {"Content-Type": "multipart/form-data; boundary=a"}}),
        (422, {"content": b"--a\r\nbroken", "headers": {"Content-Type": "multipart/form-data; boundary=a"}}),
        (413, {"files": files(*[b"x"] * 257)}),
        (413, {"content": b"x" * 20_000_000, "headers": NPY}),
        (413, {"content": (b"x" * 100_000 for _ in range(200)), "headers": NPY}),  # without a Content-Length
        (422, {"params": {"adapt": "perhaps"}, "content": b"", "headers": NPY}),
        (422, {"params": {"adpat": "false"}, "content": b"", "headers": NPY}),
        (422, {"params": {"coverage": "2"}, "content": b"", "headers": NPY}),
        (422, {"params": {"coverage": "0.5"}, "content": b"", "headers": NPY}),
    ],
)
def test_a_malformed_request_is_refused_with_a_reason_and_changes_nothing(client, service, status, sent) -> None:
    answer = client.post("/v1/predict", **(sent | {"headers": sent.get("headers", {}) | BEARER}))
    assert answer.status_code == status, answer.text
    assert len(answer.json()["detail"]) > 10
    assert service.engine.changes == service.waiting == client.app.state.admission.reading == 0


@pytest.mark.parametrize(
    ("method", "address", "status", "detail"),
    [
        ("POST", "/v1/predict?adapt=perhaps", 422, "Expected `adapt` to be true or false, but got 'perhaps'."),
        (
            "POST",
            "/v1/predict?adapt=false&coverage=2",
            422,
            "Expected `coverage` to be a number above 0 and at most 1, but got '2'.",
        ),
        (
            "GET",
            "/v1/state?since=-1",
            422,
            "Expected `since` to be a whole number, at least 0 and less than 2**53, but got '-1'.",
        ),
        ("GET", "/v1/predict", 405, "Expected POST for /v1/predict, but got GET. See /docs."),
    ],
)
def test_a_refusal_names_what_was_expected_and_what_was_sent(client, method, address, status, detail) -> None:
    answer = client.request(method, address, headers=BEARER)
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})


def test_a_wrong_value_of_any_parameter_is_refused_with_its_name(client) -> None:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, facts in methods.items():
            for parameter in facts.get("parameters", []):
                if parameter["name"] == "model":  # any name may be asked for
                    continue
                asked = path.replace("{stream}", "NONSENSE" if parameter["in"] == "path" else "default")
                wrong = {} if parameter["in"] == "path" else {parameter["name"]: "nonsense"}
                refused = client.request(method, asked, params=wrong, headers=BEARER)
                assert refused.status_code == 422
                assert refused.json()["detail"].startswith(f"Expected `{parameter['name']}` to be ")


def test_the_answer_to_an_unknown_path_lists_the_known_ones(client) -> None:
    answer = client.get("/predict")
    assert answer.status_code == 404
    known, given = answer.json()["detail"].split(", but got ")
    assert {"/v1/predict", "/v1/state", "/docs"} <= set(known.removeprefix("Expected one of the paths ").split(", "))
    assert given.startswith("'/predict'")


def test_a_damaged_file_fails_its_own_request_only(client, service, png, array) -> None:
    assert client.post("/v1/predict", files=files(png(), b"bad"), headers=BEARER).status_code == 422
    assert client.post("/v1/predict", content=array, headers=NPY | BEARER).json()["batch"]["step"] == 1


def test_too_many_open_requests_get_429_with_retry_after(client, array) -> None:
    client.app.state.admission.reading = Limits().requests
    answer = client.post("/v1/predict", content=array, headers=NPY | BEARER)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_a_failing_adapter_is_a_500_that_hides_the_traceback(client, service, array) -> None:
    service.engine.adapter.predict_and_adapt = lambda _: 1 / 0
    answer = client.post("/v1/predict", content=array, headers=NPY | BEARER)
    assert (answer.status_code, "as it was before" in answer.json()["detail"]) == (500, True)
    assert "division" not in answer.text


def test_after_a_step_that_cannot_be_undone_only_a_reset_is_served(client, service, array) -> None:
    adapter = service.engine.adapter
    real = adapter.predict_and_adapt
    client.post("/v1/predict", content=array, headers=NPY | BEARER)
    adapter.predict_and_adapt = lambda _: 1 / 0  # fails again when the first batch is repeated
    for query in ("", "", "?adapt=false"):
        answer = client.post(f"/v1/predict{query}", content=array, headers=NPY | BEARER)
        assert (answer.status_code, "POST /v1/reset" in answer.json()["detail"]) == (503, True)
    assert client.get("/healthz").status_code == 503
    adapter.predict_and_adapt = real
    assert client.post("/v1/reset", headers=BEARER).json() == {"steps": 0, "changes": 2}
    assert client.get("/healthz").status_code == 200
    assert client.post("/v1/predict", content=array, headers=NPY | BEARER).status_code == 200


def test_the_state_describes_the_model_and_its_latest_batches(client, array) -> None:
    for _ in range(3):
        client.post("/v1/predict", content=array, headers=NPY | BEARER)
    state = client.get("/v1/state").json()
    assert (state["method"], state["network"], state["steps"], state["token_needed"]) == ("tent", "wrn-10-1", 3, True)
    assert [entry["step"] for entry in state["history"]] == [1, 2, 3]
    assert state["history"][2]["parameter_distance"] > state["history"][0]["parameter_distance"] > 0
    assert [entry["step"] for entry in client.get("/v1/state?since=2").json()["history"]] == [3]
    assert client.get("/v1/state?since=-1").status_code == 422


def test_metrics_can_be_parsed_as_prometheus_text(client, array) -> None:
    for _ in range(2):
        client.post("/v1/predict", content=array, headers=NPY | BEARER)
    client.get("/no/such/<place>")
    assert client.post("/v1/predict", content=b"nonsense", headers=NPY | BEARER).status_code == 422
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "vcotta_images_total 12.0" in answer.text.splitlines()
    assert sample(answer.text, "vcotta_requests_total", path="/v1/predict", status="200") == 2
    assert sample(answer.text, "vcotta_requests_total", path="other", status="404") == 1
    assert sample(answer.text, "vcotta_requests_total", path="/v1/predict", status="422") == 1
    assert sample(answer.text, "vcotta_predict_seconds_bucket", le="+Inf") == 2  # the refused request is not counted
    assert sample(answer.text, "vcotta_steps") == sample(answer.text, "vcotta_changes") == 2
    assert sample(answer.text, "vcotta_parameter_distance") > 0
    assert "no/such" not in answer.text


def test_metrics_are_openmetrics_if_the_client_accepts_that(client) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_the_state_counts_all_images_not_only_those_of_the_returned_batches(client, array) -> None:
    for _ in range(2):
        client.post("/v1/predict", content=array, headers=NPY | BEARER)
    state = client.get("/v1/state?since=1").json()
    assert (state["images"], len(state["history"])) == (12, 1)


def test_a_form_is_never_written_to_disk(service, png, monkeypatch) -> None:
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", lambda *_: pytest.fail("it was written to disk"))
    client = TestClient(create_app(service))
    content = png(700, 700)
    assert len(content) > 2**20  # from where it would be by default
    assert client.post("/v1/predict?adapt=false", files=files(content)).status_code == 200


@pytest.fixture
def signals_given_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_given_back")
def test_a_second_signal_does_not_interrupt_saving_the_state(service, monkeypatch) -> None:
    def stopped_by_a_signal(*_) -> None:
        signal.raise_signal(signal.SIGINT)  # as uvicorn does when it has stopped

    monkeypatch.setattr(run._Server, "run", stopped_by_a_signal)
    run.run_app(create_app(service), [])
    for number in (signal.SIGINT, signal.SIGTERM):
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)


def test_the_error_for_a_port_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"Expected .* port {port}, but another program is using it. Choose another"):
            run.listen("127.0.0.1", port)


def test_the_error_for_a_foreign_host_says_what_to_do() -> None:
    with pytest.raises(OSError, match=r"Expected to listen on 192\.0\.2\.1, port 0, but .+\. Choose another"):
        run.listen("192.0.2.1", 0)


def test_the_health_check_fails_once_the_service_has_stopped(bundle) -> None:
    with Service(bundle) as service:
        client = TestClient(create_app(service))
        assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/healthz").status_code == 503


def test_pages_load_nothing_from_other_servers(client) -> None:
    for path in ("/", "/docs"):
        page = client.get(path)
        assert "default-src 'none'" in html.unescape(page.text)
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert "/v1/predict" in client.get("/docs").text


def form(*contents: bytes, end: bytes = b"--edge--\r\n") -> bytes:
    """The body of a form with the boundary ``edge``, closed by ``end``."""
    head = b'--edge\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    return b"".join(head + content + b"\r\n" for content in contents) + end


FORM_EDGE = {"Content-Type": "multipart/form-data; boundary=edge"}


@pytest.mark.parametrize(
    ("end", "dropped"),
    [
        pytest.param(b"", 0, id="no closing boundary"),
        pytest.param(b"--edge\r\n", 0, id="another part announced"),
        pytest.param(b"--edge-", 0, id="half a closing boundary"),
        pytest.param(b"", 40, id="cut off in the last part"),
    ],
)
def test_a_form_that_was_cut_off_is_refused_and_changes_nothing(client, service, png, end, dropped) -> None:
    contents = [png(seed=seed) for seed in range(3)]
    whole = form(*contents, end=end)
    answer = client.post("/v1/predict", content=whole[: len(whole) - dropped], headers=FORM_EDGE | BEARER)
    assert answer.status_code == 422
    assert "cut off" in answer.json()["detail"]
    assert service.engine.changes == service.engine.adapter.steps == 0


def test_a_whole_form_is_served_with_or_without_a_last_line_break(client, png) -> None:
    for end in (b"--edge--", b"--edge--\r\n", b"--edge--\r\nan epilogue"):
        assert client.post("/v1/predict", content=form(png(), end=end), headers=FORM_EDGE | BEARER).status_code == 200


@pytest.mark.parametrize("place", ["vcotta.serve.predicting._as_json", "vcotta.serve.service.Metrics.add_batch"])
def test_an_answer_that_cannot_be_made_is_a_500_that_leaves_the_state_as_it_was(
    client, service, array, monkeypatch, place
) -> None:
    client.post("/v1/predict", content=array, headers=NPY | BEARER)
    before = service.engine.adapter.state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(place, lambda *_, **__: "caf\udce9".encode())
        answer = client.post("/v1/predict", content=array, headers=NPY | BEARER)
    assert answer.status_code == 500
    assert answer.json() == {"detail": "The adapter failed on these images. Its state is as it was before."}
    assert service.engine.changes == 1
    assert same_state(service.engine.adapter.state_dict(), before)
    answer = client.post("/v1/predict", content=array, headers=NPY | BEARER)
    assert (answer.status_code, answer.json()["batch"]["changes"]) == (200, 2)


def test_the_line_of_every_request_that_fails_has_the_reason(client, service, array, monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO, "vcotta.serve")
    with monkeypatch.context() as patch:
        patch.setattr(type(service.engine), "_step", lambda *_: 1 / 0)
        assert client.post("/v1/predict", content=array, headers=NPY | BEARER).status_code == 500
    with monkeypatch.context() as patch:
        patch.setattr("vcotta.serve.app.render", lambda *_, **__: 1 / 0)
        assert client.get("/").status_code == 500
    with monkeypatch.context() as patch:
        patch.setattr(service.engine, "lost", "the state is unknown")
        assert client.get("/healthz").status_code == 503
    assert client.get("/nothing").status_code == 404
    lines = [(one.levelname, one.message) for one in caplog.records if one.message.startswith("request ")]
    assert [level for level, _ in lines] == ["WARNING"] * 3 + ["INFO"]
    reasons = [line.partition(" reason=")[2] for _, line in lines]
    assert "The adapter failed on these images" in reasons[0]
    assert reasons[1:] == ['"ZeroDivisionError: division by zero"', '"the state is unknown"', ""]


def test_an_unforeseen_failure_is_a_json_answer_with_the_common_headers(client, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.serve.app.render", lambda *_, **__: 1 / 0)
    answer = client.get("/")
    assert (answer.status_code, answer.json()) == (500, {"detail": "The server failed; see its log."})
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers["x-request-id"]) == 16


@pytest.mark.parametrize(
    "path",
    ["/v1/predict/", "/v1/state/", "/docs/", "/healthz/", "/static/", "//v1/state", "/v1//state", "//x"],
)
def test_a_host_header_is_never_reflected_in_a_redirect(client, path) -> None:
    host = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "X-Forwarded-Prefix": "//evil.example"}
    for method in ("GET", "HEAD", "POST", "OPTIONS"):
        answer = client.request(method, f"http://127.0.0.1{path}", headers=host, follow_redirects=False)
        assert answer.status_code == 404
        assert "location" not in answer.headers
        assert "evil.example" not in str(answer.headers) + answer.text
