"""What a merge of several replicas leaves if something fails in it."""

from __future__ import annotations

import errno
import inspect
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

from vcotta.methods.merging import merge_states
from vcotta.serve import state_store
from vcotta.serve.claims import Claims
from vcotta.serve.joint_merge import ORDER_SECONDS, JointMerge, merge_periodically
from vcotta.serve.merging import MergeRule, Merging
from vcotta.serve.requests import RefusedError
from vcotta.serve.service import Service
from vcotta.serve.streams import Streams

from .conftest import same_state
from .two_replicas import OPERATOR, Fleet


def cannot_lock(monkeypatch, refused: str, code: int) -> None:
    """Let the lock of a stream fail, as with a damaged disk or without file descriptors."""
    real = Claims._locked

    def fails(self, name, *more):
        if name == refused:
            raise OSError(code, "injected")
        real(self, name, *more)

    monkeypatch.setattr(Claims, "_locked", fails)


def test_a_stream_that_cannot_be_taken_is_not_merged_and_the_others_are(
    fleet, npy, images, monkeypatch, caplog
) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    with fleet.reopened() as again:
        cannot_lock(monkeypatch, "b", errno.EIO)
        assert again.merge().merged == ["a", "c"]
        assert "The stream b is not merged" in caplog.text
        assert all(service.alive for service in again.services)
        assert again.send(npy, images, "a", range(9, 10))[0]["batch"]["changes"] == 4


def test_a_replica_without_file_descriptors_gives_free_streams_back_and_serves_its_own(
    fleet, npy, images, monkeypatch
) -> None:
    for place, name in enumerate("abc"):
        fleet.send(npy, images, name, range(place, place + 2))
    with fleet.reopened() as again:
        again.send(npy, images, "d", range(7, 8))
        cannot_lock(monkeypatch, "c", errno.EMFILE)
        with pytest.raises(RefusedError, match="at least two streams"):
            again.merge()
        assert sorted(stream.name for service in again.services for stream in service.list_streams()) == ["d"]
        assert [one["batch"]["changes"] for one in again.send(npy, images, "d", range(8, 9))] == [2]
        assert [one["batch"]["changes"] for one in again.send(npy, images, "b", range(8, 9))] == [3]


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


def test_if_one_replica_cannot_write_no_stream_of_any_is_changed(fleet, npy, images, monkeypatch) -> None:
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
    with fleet.reopened() as again:
        assert again.send(npy, images, "a", range(5, 6))[0]["batch"]["changes"] == 3


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
    vcotta_path, tmp_path, npy, images
) -> None:
    fleet = Fleet(vcotta_path, tmp_path / "state", merge_seconds=1.0)
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
