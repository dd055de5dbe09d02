"""Several services on one state folder: each stream is served by one of them at a time."""

from __future__ import annotations

import threading
import time

import pytest

from vcotta.serve.merging import MergeRule
from vcotta.serve.requests import RefusedError
from vcotta.serve.service import Service
from vcotta.serve.streams import DEFAULT, StreamLimits

from .conftest import same_state, small_bundle


@pytest.fixture
def pair(bundle, tmp_path):
    def make(**options):
        return Service(bundle, state=tmp_path / "state", wait=0.0, checkpoint_seconds=1e6, shared=True, **options)

    limits = StreamLimits(streams=3)
    with make(streams=limits) as one, make(streams=limits) as other:
        yield one, other


def step(service: Service, images, stream: str = "a"):
    return service.predict(images, stream=stream).result(60)


def wait_for(service: Service, stream: str = "a") -> None:
    for _ in range(1200):
        if service.streams.ask_for(stream):
            return
        time.sleep(0.05)
    raise AssertionError(f"{stream} was not handed over")


@pytest.mark.parametrize("stream", ["a", DEFAULT])
def test_a_stream_that_is_handed_over_continues_with_every_step(pair, bundle, images, stream) -> None:
    one, other = pair
    with Service(bundle, wait=0.0) as alone:
        expected = [step(alone, images(6, seed), stream) for seed in range(4)]
        last = alone.find(stream).engine.adapter.state_dict()
    for seed in range(3):
        assert step(one, images(6, seed), stream).changes == seed + 1
    assert one.find(stream).engine.saved_changes == 0
    with pytest.raises(RefusedError, match="Another replica") as refused:
        step(other, images(6, 3), stream)
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    wait_for(other, stream)
    reply = step(other, images(6, 3), stream)
    assert reply.changes == 4
    assert same_state(reply.answer.probabilities, expected[3].answer.probabilities)
    assert same_state(other.find(stream).engine.adapter.state_dict(), last)
    with pytest.raises(RefusedError, match="Another replica"):
        step(one, images(6, 4), stream)
    wait_for(one, stream)
    assert step(one, images(6, 4), stream).changes == 5


def step_when_free(service: Service, images):
    """A step of a stream that is refused while the service tries to save it for another one."""
    while True:
        try:
            return step(service, images)
        except RefusedError as error:
            if "handing the stream" not in error.detail:
                raise
            time.sleep(0.01)


def test_a_stream_that_cannot_be_saved_is_not_handed_over(pair, images, tmp_path) -> None:
    one, other = pair
    step(one, images(6))
    checkpoints = tmp_path / "state" / "streams" / "a" / "checkpoints"
    checkpoints.write_text("no folder")
    assert not other.streams.ask_for("a")
    while one.metrics.total("checkpoint_failures") < 2:
        time.sleep(0.02)
    assert not other.streams.ask_for("a")
    assert step_when_free(one, images(6, 1)).changes == 2
    checkpoints.unlink()
    wait_for(other)
    assert step(other, images(6, 2)).changes == 3


def test_a_stream_with_waiting_requests_is_handed_over_after_them(pair, images) -> None:
    one, other = pair
    go, seen = threading.Event(), threading.Event()

    def slow(_: object) -> bytes:
        seen.set()
        go.wait(60)
        return b""

    first = one.predict(images(6), stream="a", render=slow)
    second = one.predict(images(6, 1), stream="a")
    assert seen.wait(60)
    assert not other.streams.ask_for("a")
    go.set()
    assert (first.result(60).changes, second.result(60).changes) == (1, 2)
    wait_for(other)
    assert step(other, images(6, 2)).changes == 3


def test_streams_of_the_other_count_and_a_deleted_one_is_gone_for_both(pair, images) -> None:
    one, other = pair
    with pytest.raises(RefusedError, match="no stream 'a'"):
        other.find("a")
    step(one, images(6), "a")
    step(other, images(6), "b")
    with pytest.raises(RefusedError, match="3 streams already"):
        step(one, images(6), "c")
    one.delete("a").result(60)
    with pytest.raises(RefusedError, match="no stream 'a'"):
        other.find("a")
    assert step(other, images(6), "a").changes == 1
    assert [stream.name for stream in other.list_streams()] == ["b", "a"]


def test_at_the_end_all_is_saved_and_free_and_one_server_alone_can_continue(bundle, tmp_path, images) -> None:
    with Service(bundle, state=tmp_path, wait=0.0, shared=True) as one:
        step(one, images(6), "a")
        step(one, images(6), DEFAULT)
    assert list((tmp_path / "claims").iterdir()) == []
    with Service(bundle, state=tmp_path, wait=0.0) as alone:
        assert step(alone, images(6, 1), "a").changes == 2
        assert step(alone, images(6, 1), DEFAULT).changes == 2


def test_a_shared_folder_of_another_bundle_is_refused(bundle, tmp_path) -> None:
    with Service(bundle, state=tmp_path, shared=True):
        pass
    with pytest.raises(ValueError, match="of another one"), Service(small_bundle(), state=tmp_path, shared=True):
        pass


def test_one_process_of_several_merges_no_streams_alone(pair, images) -> None:
    one, _ = pair
    step(one, images(6), "a")
    step(one, images(6, 1), "b")
    with pytest.raises(RefusedError, match=r"only some of the streams\. Send POST /v1/merge") as refused:
        one.merge()
    assert refused.value.status == 409


def test_a_service_that_shares_streams_does_not_merge_periodically_by_itself(tmp_path) -> None:
    bundle = small_bundle("vcotta", views=1)
    with pytest.raises(ValueError, match=r"`merging\.every` to be None where processes share streams, but got 60"):
        Service(bundle, state=tmp_path, shared=True, merging=MergeRule(every=60.0))
