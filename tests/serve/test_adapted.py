"""`adapted` says whether an update was taken, not whether one was requested."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta import Guard
from vcotta.serve.app import create_app
from vcotta.serve.bundle import Bundle
from vcotta.serve.engine import _took_update
from vcotta.serve.service import Service

from .conftest import same_state, small_bundle
from .noting import note_steps


def answers(service: Service, npy, images, count: int = 1, query: str = "") -> list[bool]:
    """What `adapted` is in the answers to requests that follow each other."""
    client = TestClient(create_app(service), base_url="http://127.0.0.1")
    headers = {"Content-Type": "application/x-npy"}
    sent = [client.post(f"/v1/predict{query}", content=npy(images(6)), headers=headers) for _ in range(count)]
    return [answer.json()["batch"]["adapted"] for answer in sent]


def test_a_step_that_changed_the_network_adapted_and_a_mere_prediction_did_not(service, npy, images) -> None:
    before = service.engine.adapter.networks["model"].state_dict()
    before = {name: tensor.clone() for name, tensor in before.items()}
    assert answers(service, npy, images, query="?adapt=false") == [False]
    assert same_state(dict(service.engine.adapter.networks["model"].state_dict()), before)
    assert answers(service, npy, images) == [True]
    assert not same_state(dict(service.engine.adapter.networks["model"].state_dict()), before)
    assert [entry["adapted"] for entry in service.streams.default.history.since(0)] == [True]


@pytest.mark.parametrize("method", ["source", "bn"])
def test_a_method_that_changes_no_network_never_adapts(method, npy, images) -> None:
    with Service(small_bundle(method), wait=0.0) as service:
        assert answers(service, npy, images, 2) == [False, False]
        assert (service.metrics.total("batches"), service.metrics.total("updates")) == (2, 0)


def test_rotta_adapts_only_when_it_has_collected_enough_images(npy, images) -> None:
    with Service(small_bundle("rotta", lr=0.01, update_every=12), wait=0.0) as service:
        assert answers(service, npy, images, 4) == [False, True, False, True]


def test_a_skipped_update_did_not_adapt(service, npy, images) -> None:
    note_steps(service.engine, [{"skipped": True}, {}])
    assert answers(service, npy, images, 2) == [False, True]
    assert service.metrics.total("updates") == 1


def test_a_batch_after_which_the_guard_restarted_did_not_adapt(npy, images) -> None:
    alarmed = asdict(Guard(overconfidence=0.0, window=1, patience=1))  # as soon as TENT is surer than the source
    with Service(Bundle(**vars(small_bundle(lr=0.1)) | {"guard": alarmed}), wait=0.0) as service:
        adapted = answers(service, npy, images, 4)
        actions = [(entry["guard"] or {}).get("action") for entry in service.streams.default.history.since(0)]
    assert "restart" in actions
    assert adapted[0]
    assert not any(done for done, action in zip(adapted, actions, strict=True) if action == "restart")


def test_a_batch_of_few_classes_did_adapt_for_the_guard_only_notes_it(service, npy, images) -> None:
    note_steps(service.engine, [{"guard": {"causes": ["diversity"], "action": "note"}}])
    assert answers(service, npy, images) == [True]
    assert service.metrics.total("guard_events") == 0


def step(*, networks: bool = True, optimizer: bool = True, **last) -> Any:
    """An adapter after a step, as far as the question is concerned."""
    facts = {"forwards": 1, "backwards": 1, "skipped": False} | last
    return SimpleNamespace(networks={"model": None} if networks else {}, optimizer=optimizer or None, last=facts)


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        (step(), True),
        (step(networks=False), False),
        (step(backwards=0), False),
        (step(backwards=0, optimizer=False), True),  # running statistics that move
        (step(skipped=True), False),
        (step(guard={"causes": ["collapse"], "action": "pull"}), False),
        (step(guard={"causes": ["collapse"], "action": "pause"}), False),
        (step(guard={"causes": ["diversity"], "action": "note"}), True),
        (step(updated=True), True),
        (step(updated=False), False),  # the guard's verdict on the batch before forbade it, and nothing else says so
        (step(updated=True, guard={"causes": ["collapse"], "action": "pull"}), True),  # stopped from the next batch on
        (step(updated=True, guard={"causes": ["collapse"], "action": "restart"}), False),
        (step(updated=True, networks=False), False),
    ],
)
def test_an_update_counts_if_the_method_took_it_and_the_guard_left_it(adapter, expected) -> None:
    assert _took_update(adapter) is expected
