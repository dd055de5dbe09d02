"""Every operation of the OpenAPI document with requests from schemathesis: never a server error."""

from __future__ import annotations

import io

import numpy as np
import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from vcotta.serve import load_bundle
from vcotta.serve.app import create_app
from vcotta.serve.service import Service

pytestmark = pytest.mark.slow
TOKEN = "a-token-for-the-tests"


def _array(count: int, seed: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.random.default_rng(seed).random((count, 3, 8, 8), np.float32))
    return file.getvalue()


def _image(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, "PNG")
    return file.getvalue()


ARRAYS = st.one_of(st.builds(_array, st.integers(0, 8), st.integers(0, 9)), st.binary(max_size=300))
IMAGES = st.one_of(st.builds(_image, st.integers(1, 40), st.integers(1, 40)), st.binary(max_size=300))
BEYOND = (
    positive_data_acceptance,  # a document cannot say which bytes are an image
    negative_data_rejection,  # counts the token, which is put back, among what was left out
)
schemathesis.openapi.media_type("application/x-npy", ARRAYS)
schemathesis.openapi.format("binary", IMAGES)


@pytest.fixture(scope="module")
def running(bundle_path):
    with Service(load_bundle(bundle_path), wait=0.0) as service:
        yield service, schemathesis.openapi.from_asgi("/openapi.json", create_app(service, TOKEN))


def attempt(api, mode, examples: int, act) -> None:
    """Try every operation with so many valid, or invalid, requests."""
    for found in api.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.query or operation.body):
            continue  # nothing can be wrong with it
        cases = operation.as_strategy(generation_mode=mode)
        limits = settings(
            max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
        )
        limits(given(cases)(act))()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_is_a_server_error_and_all_answers_are_as_documented(running, mode) -> None:
    service, api = running
    before = service.engine.changes

    def act(case) -> None:
        case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, excluded_checks=BEYOND)

    attempt(api, mode, 200, act)
    assert service.alive
    assert service.metrics.total("failed_batches") == 0
    assert mode is GenerationMode.NEGATIVE or service.engine.changes > before  # or nothing but refusals was tried


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_without_the_token_is_a_server_error_or_changes_the_state(running, mode) -> None:
    service, api = running
    before = service.engine.changes

    def act(case) -> None:
        assert case.call().status_code < 500

    attempt(api, mode, 50, act)
    assert service.engine.changes == before
