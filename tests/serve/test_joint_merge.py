"""Streams of several replicas that are merged together, in this process without Ray."""

from __future__ import annotations

import asyncio
import errno
import inspect
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from fastapi.testclient import TestClient

from vcotta.methods.merging import merge_states, with_learned
from vcotta.serve import Bundle, replica, save_bundle, state_store
from vcotta.serve.auth import hash_token
from vcotta.serve.claims import Claims
from vcotta.serve.joint_merge import ORDER_SECONDS, JointMerge, merge_periodically
from vcotta.serve.merging import MergeOutcome, MergeRule, Merging
from vcotta.serve.replica import Front, Replica, ReplicaOptions
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.service import Service
from vcotta.serve.streams import Streams

from .conftest import same_state, small_bundle

OPERATOR = {"Authorization": "Bearer the-token-of-the-operator"}
TOKENS = {"*": hash_token("the-token-of-the-operator")}
NPY = OPERATOR | {"Content-Type": "application/x-npy"}


class Fleet:
    """Two replicas in this process; a stream goes to the first or the second of them by its name's last letter."""

    def __init__(self, path: Path, state: Path, rule: MergeRule | None = None, **more: object) -> None:
        self.state, self.orders = state, []
        options = {"state": state, "wait": 0.0, "checkpoint_seconds": 1e6, "merging": rule or MergeRule(), **more}
        self.replicas = [Replica(ReplicaOptions(path, options, TOKENS)) for _ in range(2)]
        self.joint = JointMerge(self.order_all, rule or MergeRule())
        self.http = TestClient(
            Front(self.ask, self.ask_all, Limits(), self.merge, TOKENS), raise_server_exceptions=False
        )

    async def ask(self, scope, body, stream):
        return await self.replicas[ord((stream or "a")[-1]) % 2].answer(scope, body, stream)

    async def ask_all(self, scope):
        return {f"r{n}": (await one.answer_as(scope))[1] for n, one in enumerate(self.replicas)}

    def order_all(self, *order):
        async def all_of_them():
            return await asyncio.gather(*(one.follow(*order) for one in self.replicas))

        self.orders.append(order[0])
        return asyncio.run(all_of_them())

    def merge(self) -> MergeOutcome:
        return self.joint.run(self.state)

    def send(self, npy, images, name: str, seeds: range) -> list[dict]:
        answers = [self.http.post(f"/v1/streams/{name}/predict", content=npy(images(6, s)), headers=NPY) for s in seeds]
        assert [answer.status_code for answer in answers] == [200] * len(answers)
        return [answer.json() for answer in answers]

    def stream(self, name: str):
        """The stream where it is, by the service that has it."""
        return next(s for one in self.services for s in one.list_streams() if s.name == name)

    @property
    def services(self) -> list[Service]:
        return [one._service for one in self.replicas]

    def states(self, *names: str) -> list[dict]:
        return [self.stream(name).engine.adapter.state_dict() for name in names]

    def total(self, metric: str) -> float:
        return sum(service.metrics.total(metric) for service in self.services)

    def close(self) -> None:
        for one in self.replicas:
            one.__del__()


@pytest.fixture(scope="module")
def vcotta_bundle() -> Bundle:
    return small_bundle("vcotta", views=1, lr=0.01, statistics="batch", label_prior=False)


@pytest.fixture
def path(vcotta_bundle, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(replica, "log_to", lambda _: None)  # would stay after the test
    save_bundle(vcotta_bundle, tmp_path / "vcotta.bundle")
    return tmp_path / "vcotta.bundle"


@pytest.fixture
def fleet(path, tmp_path) -> Iterator[Fleet]:
    made = Fleet(path, tmp_path / "state")
    yield made
    made.close()


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


def test_streams_that_no_replica_uses_are_merged_too(fleet, path, npy, images) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    before = fleet.states("a", "b", "c")
    fleet.close()
    again = Fleet(path, fleet.state)
    try:
        again.send(npy, images, "d", range(7, 9))
        (last,) = again.states("d")
        assert again.merge().merged == ["a", "b", "c", "d"]
        expected = merge_states([*before, last]).state
        assert [one["batch"]["changes"] for one in again.send(npy, images, "a", range(9, 10))] == [4]
        assert same_state(again.states("b")[0]["networks"], with_learned(before[1], expected)["networks"])
    finally:
        again.close()


def cannot_lock(monkeypatch, refused: str, code: int) -> None:
    """Let the lock of a stream fail, as with a damaged disk or without file descriptors."""
    real = Claims._locked

    def fails(self, name, *more):
        if name == refused:
            raise OSError(code, "injected")
        real(self, name, *more)

    monkeypatch.setattr(Claims, "_locked", fails)


def test_a_stream_that_cannot_be_taken_is_not_merged_and_the_others_are(
    fleet, path, npy, images, monkeypatch, caplog
) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    fleet.close()
    again = Fleet(path, fleet.state)
    try:
        cannot_lock(monkeypatch, "b", errno.EIO)
        assert again.merge().merged == ["a", "c"]
        assert "The stream b is not merged" in caplog.text
        assert all(service.alive for service in again.services)
        assert again.send(npy, images, "a", range(9, 10))[0]["batch"]["changes"] == 4
    finally:
        again.close()


def test_a_replica_without_file_descriptors_gives_free_streams_back_and_serves_its_own(
    fleet, path, npy, images, monkeypatch
) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    fleet.close()
    again = Fleet(path, fleet.state)
    try:
        again.send(npy, images, "d", range(7, 8))
        cannot_lock(monkeypatch, "c", errno.EMFILE)
        with pytest.raises(RefusedError, match="at least two streams"):
            again.merge()
        assert sorted(stream.name for service in again.services for stream in service.list_streams()) == ["d"]
        assert [one["batch"]["changes"] for one in again.send(npy, images, "d", range(8, 9))] == [2]
        assert [one["batch"]["changes"] for one in again.send(npy, images, "b", range(8, 9))] == [3]
    finally:
        again.close()


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


def test_if_the_worker_ends_in_a_merge_its_order_is_answered_and_states_are_saved(
    vcotta_bundle, tmp_path, images, monkeypatch
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    options = {"state": tmp_path / "state", "wait": 0.0, "checkpoint_seconds": 1e6, "shared": True}
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with Service(vcotta_bundle, **options) as service:
        service.predict(images(6), stream="a").result(60)
        monkeypatch.setattr(Streams, "take_free", fails)
        part = service.join_merge()
        service._worker.join(60)
        assert not service.alive
        with pytest.raises(RefusedError, match="served again"):
            part.order(Merging.offer)
        assert service.saved


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


def test_pinned_streams_and_those_of_other_names_neither_give_nor_take(path, tmp_path, npy, images) -> None:
    fleet = Fleet(path, tmp_path / "state", MergeRule(streams="north-*"))
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


def test_if_one_replica_cannot_write_no_stream_of_any_is_changed(fleet, path, npy, images, monkeypatch) -> None:
    for place, name in enumerate("abcd"):
        fleet.send(npy, images, name, range(place, place + 2))
    before, real = fleet.states(*"abcd"), state_store.save_checkpoint

    def fails(folder, manifest, what, *more):
        if folder.name == "d" and isinstance(what, dict):
            raise OSError("full")
        real(folder, manifest, what, *more)

    monkeypatch.setattr(state_store, "save_checkpoint", fails)
    answer = fleet.http.post("/v1/merge", headers=OPERATOR)
    assert (answer.status_code, "no stream was changed" in answer.json()["detail"]) == (503, True)
    monkeypatch.setattr(state_store, "save_checkpoint", real)
    assert all(map(same_state, fleet.states(*"abcd"), before))
    assert fleet.total("merge_failures") == 2  # each replica counts the merges it takes part in
    checkpoints = (fleet.state / "streams").glob("*/checkpoints/*")
    assert sorted(f"{path.parts[-3]}/{path.name}" for path in checkpoints) == [f"{n}/2.safetensors" for n in "abcd"]
    fleet.close()
    again = Fleet(path, fleet.state)
    try:
        assert again.send(npy, images, "a", range(5, 6))[0]["batch"]["changes"] == 3
    finally:
        again.close()


def test_if_a_replica_is_lost_during_a_merge_the_others_continue_as_they_were(fleet, npy, images) -> None:
    for place, name in enumerate("abcd"):
        fleet.send(npy, images, name, range(place, place + 2))
    before, real = fleet.states(*"abcd"), fleet.order_all

    def lost(order, *details):
        if order != "write":
            return real(order, *details)
        real(order, *details)
        raise RefusedError(503, "a replica is lost")

    with pytest.raises(RefusedError, match="a replica is lost"):
        JointMerge(lost, MergeRule()).run(fleet.state)
    assert all(map(same_state, fleet.states(*"abcd"), before))
    with pytest.raises(RefusedError, match="came or went") as refused:
        JointMerge(lambda order, *more: real(order, *more)[: 1 if order == "write" else 2], MergeRule()).run(
            fleet.state
        )
    assert refused.value.status == 503
    assert all(map(same_state, fleet.states(*"abcd"), before))
    assert fleet.send(npy, images, "a", range(5, 6))[0]["batch"]["changes"] == 3
    assert fleet.merge().merged == ["a", "b", "c", "d"]


def test_if_a_replica_is_lost_at_the_very_end_the_others_are_merged_and_the_answer_says_so(fleet, npy, images) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    expected, real = merge_states(fleet.states("a", "b")).state["networks"], fleet.order_all

    def lost(order, *details):
        replies = real(order, *details)
        if order == "finish":
            raise RefusedError(503, "a replica is lost")
        return replies

    with pytest.raises(RefusedError, match=r"Merged states were written, .* a replica is lost"):
        JointMerge(lost, MergeRule()).run(fleet.state)
    assert all(same_state(state["networks"], expected) for state in fleet.states("a", "b"))


@pytest.mark.parametrize(("where", "expected"), [("write", MemoryError), ("finish", RefusedError)])
def test_an_unexpected_error_in_a_merge_leaves_no_replica_waiting(fleet, npy, images, where, expected) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    real = fleet.order_all

    def fails(order, *details):
        replies = real(order, *details)
        if order in (where, "drop"):
            raise MemoryError
        return replies

    with pytest.raises(expected) as error:
        JointMerge(fails, MergeRule()).run(fleet.state)
    assert ("Merged states were written" in str(error.value)) == (where == "finish")
    (found,) = fleet.send(npy, images, "a", range(5, 6))
    assert found["batch"]["changes"] == (4 if where == "finish" else 3)


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


def test_a_merge_that_fails_is_logged_and_tried_again(caplog) -> None:
    tried = []

    def merge() -> None:
        tried.append(1)
        raise RefusedError(503, "the disk is full") if len(tried) == 1 else ValueError("odd")

    with merge_periodically(merge, 0.01):
        until = time.monotonic() + 60
        while len(tried) < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert len(tried) >= 3
    assert "the disk is full" in caplog.text
    assert "ValueError: odd" in caplog.text


def test_a_replica_that_hears_nothing_more_serves_its_streams_again(vcotta_bundle, tmp_path, images, caplog) -> None:
    options = {"state": tmp_path / "state", "wait": 0.0, "shared": True, "merge_seconds": 1.0}
    with Service(vcotta_bundle, **options) as service:
        service.predict(images(6), stream="a").result(60)
        part = service.join_merge()
        assert [*part.order(Merging.offer).result(60).files] == ["a"]
        waits = service.predict(images(6), stream="a")
        assert waits.result(60).changes == 2
        assert "A merge was given up" in caplog.text
        assert service.metrics.total("merge_failures") == 1
        with pytest.raises(RefusedError, match="served again"):
            part.order(Merging.offer)


def test_a_replica_given_up_after_it_has_written_keeps_its_own_states_and_counts_a_failure(
    path, tmp_path, npy, images
) -> None:
    fleet = Fleet(path, tmp_path / "state", merge_seconds=1.0)
    try:
        for place, name in enumerate("ab"):
            fleet.send(npy, images, name, range(place, place + 2))
        before, real = fleet.states("a", "b"), fleet.order_all

        def stops(order, *details):
            if order != "write":
                return real(order, *details)
            real(order, *details)
            raise SystemExit  # as if the process that merges were killed

        with pytest.raises(SystemExit):
            JointMerge(stops, MergeRule()).run(fleet.state)
        for one in fleet.services:  # answered when streams are served again
            one.predict(images(6), adapt=False, stream=one.list_streams()[0].name).result(60)
        assert all(map(same_state, fleet.states("a", "b"), before))
        assert [fleet.stream(name).engine.changes for name in "ab"] == [2, 2]
        assert fleet.total("merge_failures") == 2
        assert fleet.merge().merged == ["a", "b"]
    finally:
        fleet.close()


def test_replicas_wait_for_the_next_order_longer_than_the_slowest_may_take() -> None:
    assert inspect.signature(Service).parameters["merge_seconds"].default >= 3 * ORDER_SECONDS


def test_an_order_that_nobody_waits_for_any_more_is_followed_and_the_next_one_too(
    vcotta_bundle, tmp_path, images
) -> None:
    with Service(vcotta_bundle, state=tmp_path / "state", wait=0.0, shared=True) as service:
        service.predict(images(6), stream="a").result(60)
        part = service.join_merge()
        assert not part.order(lambda _: time.sleep(0.2)).cancel()
        assert not part.order(Merging.offer).cancel()
        assert part.order(Merging.drop, last=True).result(60) is None
        assert service.predict(images(6), stream="a").result(60).changes == 2


def test_a_merge_whose_file_cannot_be_removed_is_finished(fleet, npy, images, monkeypatch) -> None:
    for place, name in enumerate("ab"):
        fleet.send(npy, images, name, range(place, place + 2))
    real = Path.unlink

    def fails(self, *more, **options):
        if self.name == "merged.safetensors":
            raise PermissionError("injected")
        real(self, *more, **options)

    monkeypatch.setattr(Path, "unlink", fails)
    assert fleet.merge().merged == ["a", "b"]
    assert [fleet.send(npy, images, name, range(9, 10))[0]["batch"]["changes"] for name in "ab"] == [4, 4]


def test_a_server_that_stops_does_not_wait_for_the_rest_of_a_merge(vcotta_bundle, tmp_path, images) -> None:
    with Service(vcotta_bundle, state=tmp_path / "state", wait=0.0, shared=True) as service:
        service.predict(images(6), stream="a").result(60)
        service.join_merge().order(Merging.offer).result(60)
        began = time.monotonic()
    assert time.monotonic() - began < 60
    with pytest.raises(RefusedError, match="stopping"):
        service.join_merge()
