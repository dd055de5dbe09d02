"""Streams of several replicas that are merged together, in this process without Ray."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from vcotta.methods.merging import merge_states, with_learned
from vcotta.serve.joint_merge import JointMerge, merge_periodically
from vcotta.serve.merging import MergeRule, Merging
from vcotta.serve.requests import RefusedError
from vcotta.serve.service import Service
from vcotta.serve.streams import Streams

from .conftest import same_state
from .two_replicas import OPERATOR, Fleet


def test_streams_of_two_replicas_are_merged_as_one_server_merges_them(
    fleet, vcotta_bundle, tmp_path, npy, images
) -> None:
    with Service(vcotta_bundle, state=tmp_path / "alone", wait=0.0) as alone:
        for place, name in enumerate("abcd"):
            fleet.send(npy, images, name, range(place, place + 2))
            for seed in range(place, place + 2):
                alone.predict(images(6, seed), stream=name).result(60)
        expected = alone.merge().result(60).body
        answer = fleet.http.post("/v1/merge", headers=OPERATOR)
        assert answer.status_code == 200
        assert answer.json()["merged"] == ["a", "b", "c", "d"]
        assert expected.startswith(answer.content.partition(b', "left_out"')[0])  # one server has a default stream
        assert [len(service.list_streams()) for service in fleet.services] == [2, 2]
        ours, theirs = fleet.states(*"abcd"), [alone.find(name).engine.adapter.state_dict() for name in "abcd"]
        assert all(map(same_state, ours, theirs))
        for name in "abcd":
            (found,) = fleet.send(npy, images, name, range(50, 51))
            served = alone.predict(images(6, 50), stream=name).result(60)
            assert found["batch"]["changes"] == served.changes == 4
            assert [one["probabilities"] for one in found["predictions"]] == (
                served.answer.probabilities.round(decimals=6).tolist()
            )
    assert (fleet.total("merges"), fleet.total("merge_failures")) == (2, 0)
    assert not (fleet.state / "merged.safetensors").exists()


def test_streams_that_no_replica_uses_are_merged_too(fleet, npy, images) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    before = fleet.states("a", "b", "c")
    with fleet.reopened() as again:
        again.send(npy, images, "d", range(7, 9))
        (last,) = again.states("d")
        assert again.merge().merged == ["a", "b", "c", "d"]
        expected = merge_states([*before, last]).state
        assert [one["batch"]["changes"] for one in again.send(npy, images, "a", range(9, 10))] == [4]
        assert same_state(again.states("b")[0]["networks"], with_learned(before[1], expected)["networks"])


def test_requests_are_accepted_while_free_streams_are_looked_for(vcotta_bundle, tmp_path, images, monkeypatch) -> None:
    looking, go = threading.Event(), threading.Event()

    def slow(self, name: str) -> bool:
        looking.set()
        return go.wait(60)

    with Service(vcotta_bundle, state=tmp_path / "state", wait=0.0, shared=True) as service:
        service.predict(images(6), stream="a").result(60)
        monkeypatch.setattr(Streams, "_has_adapted", slow)
        part = service.join_merge()
        assert looking.wait(60)
        free = service._ready.acquire(timeout=5)
        go.set()
        assert free
        service._ready.release()
        assert part.order(Merging.drop, last=True).result(60) is None


def test_a_poisoned_stream_is_refused_and_flagged_where_it_is_served(fleet, npy, images) -> None:
    for place, name in enumerate(("a", "b", "c", "x")):
        fleet.send(npy, images, name, range(place, place + 3))
    poisoned = fleet.stream("x").engine
    for net in poisoned.adapter.networks.values():
        for weight in net.parameters():
            weight.data.add_(5.0)
    before = fleet.states("a", "x")
    poisoned.save()
    assert fleet.merge().refused == ["x"]
    after = fleet.states("a", "x")
    assert [same_state(*pair) for pair in zip(before, after, strict=True)] == [False, True]
    assert (fleet.stream("x").signs, fleet.stream("a").signs) == (["outlier"], [])
    assert fleet.total("merge_refusals") == 1


def test_pinned_streams_and_those_of_other_names_neither_give_nor_take(vcotta_path, tmp_path, npy, images) -> None:
    fleet = Fleet(vcotta_path, tmp_path / "state", MergeRule(streams="north-*"))
    try:
        names = ("north-a", "north-b", "north-c", "south-a")
        for place, name in enumerate(names):
            fleet.send(npy, images, name, range(place, place + 2))
        assert fleet.http.post("/v1/streams/north-c/pin", headers=OPERATOR).status_code == 200
        before = fleet.states(*names)
        outcome = fleet.merge()
        assert (outcome.merged, outcome.left_out) == (["north-a", "north-b"], ["north-c"])
        kept = [same_state(*pair) for pair in zip(before, fleet.states(*names), strict=True)]
        assert kept == [False, False, True, True]
    finally:
        fleet.close()


def test_nothing_is_merged_while_replicas_serve_two_bundles(fleet, npy, images) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    fleet.replicas[1]._member._bundle = "another"
    with pytest.raises(RefusedError, match="came or went"):
        fleet.merge()
    assert fleet.orders == ["offer", "drop"]
    assert fleet.send(npy, images, "a", range(5, 6))[0]["batch"]["changes"] == 3


def test_a_merge_needs_the_token_for_all_and_two_streams(fleet, npy, images) -> None:
    assert fleet.http.post("/v1/merge").status_code == 401
    assert fleet.http.post("/v1/merge?now=1", headers=OPERATOR).status_code == 422
    fleet.send(npy, images, "a", range(1))
    answer = fleet.http.post("/v1/merge", headers=OPERATOR | {"X-Request-ID": "one"})
    assert (answer.status_code, "at least two streams" in answer.json()["detail"]) == (409, True)
    assert fleet.total("merge_failures") == 0
    fleet.send(npy, images, "b", range(1, 2))
    answer = fleet.http.post("/v1/merge", headers=OPERATOR | {"X-Request-ID": "one"})
    assert (answer.headers["x-request-id"], answer.headers["cache-control"]) == ("one", "no-store")


def test_requests_wait_for_the_merge_and_none_is_lost(fleet, npy, images) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    answers: list[dict] = []
    real, threads = fleet.order_all, []

    def slow(order, *details):
        replies = real(order, *details)
        if order == "offer":
            threads.extend(
                threading.Thread(target=lambda name=name: answers.extend(fleet.send(npy, images, name, range(8, 9))))
                for name in "ab"
            )
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            assert not answers
        return replies

    assert JointMerge(slow, MergeRule()).run(fleet.state).merged == ["a", "b"]
    for thread in threads:
        thread.join(60)
    assert [one["batch"]["changes"] for one in answers] == [4, 4]


def test_streams_are_merged_periodically_but_not_again_while_nothing_changes(fleet, npy, images) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    with merge_periodically(lambda: fleet.joint.run(fleet.state, only_changed=True), 0.05):
        until = time.monotonic() + 60
        while fleet.orders.count("drop") < 3 and time.monotonic() < until:
            time.sleep(0.02)
    assert fleet.orders.count("finish") == 1
    assert fleet.orders.count("drop") >= 3
    assert (fleet.total("merges"), fleet.total("merge_failures")) == (2, 0)
