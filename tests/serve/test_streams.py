"""Streams: isolated from each other, in turn, put to disk and back, bounded."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from vcotta.runs.checkpoints import newest_checkpoint
from vcotta.serve import state_store
from vcotta.serve.adapters import Adapters
from vcotta.serve.engine import Engine
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.service import Service
from vcotta.serve.streams import StreamLimits

from .conftest import same_state, small_bundle
from .test_service import held, marked, poison, status


def refusal(call) -> int:
    with pytest.raises(RefusedError) as refused:
        call()
    return refused.value.status


def answers(service: Service, images, stream: str, seeds: range) -> list[torch.Tensor]:
    return [service.predict(images(6, s), stream=stream).result(60).answer.probabilities for s in seeds]


@pytest.mark.parametrize("memory", [None, 1])
def test_what_is_sent_to_one_stream_never_changes_anothers_answers(tmp_path, images, memory) -> None:
    bundle = small_bundle("cotta", lr=0.01, views=1)
    with Service(bundle, wait=0.0) as alone:
        expected = answers(alone, images, "a", range(4))
        state = alone.find("a").engine.adapter.state_dict()
    limits = StreamLimits(memory=memory and Adapters(bundle).state_bytes)
    with Service(bundle, state=tmp_path / "state", streams=limits, wait=0.0) as service:
        found = []
        for seed in range(4):
            answers(service, images, "b", range(50 + seed, 51 + seed))
            service.predict(images(3, 90), stream="c").result(60)
            found += answers(service, images, "a", range(seed, seed + 1))
            service.predict(images(6, 70), adapt=False, stream="b").result(60)
            service.reset("c").result(60)
        assert all(map(torch.equal, expected, found))
        assert (service.streams.evictions > 3) == (memory is not None)
        service.predict(images(6), adapt=False, stream="a").result(60)
        assert same_state(service.find("a").engine.adapter.state_dict(), state)


def test_all_streams_hold_one_source_network(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        for name in ("a", "b"):
            service.predict(images(6), stream=name).result(60)
        starts = {id(stream.engine.adapter.start) for stream in service.list_streams()}
    assert len(starts) == 1


def test_states_in_memory_are_bounded_and_the_longest_unused_goes_first(bundle, tmp_path, images) -> None:
    each = Adapters(bundle).state_bytes
    limits = StreamLimits(memory=2 * each + each // 2)
    with Service(bundle, state=tmp_path / "state", streams=limits, wait=0.0) as service:
        for name in ("a", "b", "c", "a", "d"):
            service.predict(images(6), stream=name).result(60)
            service.predict(images(1), adapt=False, stream=name).result(60)  # after room was made
            assert service.streams.held() <= limits.memory
        assert [stream.name for stream in service.list_streams() if stream.engine.awake] == ["a", "d"]


def test_while_all_streams_wait_some_states_stay_in_memory_for_their_next_turn(bundle, tmp_path, images) -> None:
    limits = StreamLimits(memory=3 * Adapters(bundle).state_bytes)
    with Service(bundle, state=tmp_path / "state", streams=limits, wait=0.0) as service:
        go = held(service)
        done = [service.predict(images(6), stream=name) for _ in range(4) for name in "abcd"]
        go.set()
        for future in done:
            future.result(60)
        # Of the sixteen batches each would load a state if the longest unused went first.
        assert service.streams.loads < 14


def test_a_memory_below_one_state_is_refused(bundle) -> None:
    with pytest.raises(ValueError, match="hold the state of one stream"):
        Service(bundle, streams=StreamLimits(memory=10))


def test_if_states_cannot_be_put_to_disk_streams_in_memory_go_on_and_others_get_503(
    bundle, tmp_path, images, monkeypatch
) -> None:
    limits = StreamLimits(memory=2 * Adapters(bundle).state_bytes)
    with Service(bundle, state=tmp_path / "state", streams=limits, wait=0.0) as service:
        real = state_store.save_checkpoint
        service.predict(images(6)).result(60)
        monkeypatch.setattr(state_store, "save_checkpoint", lambda *_: (_ for _ in ()).throw(OSError("full")))
        service.predict(images(6)).result(60)
        assert status(service.predict(images(6), stream="a")) == 503
        assert service.predict(images(6)).result(60).step == 3
        monkeypatch.setattr(state_store, "save_checkpoint", real)
        assert service.predict(images(6), stream="a").result(60).step == 1


@pytest.mark.parametrize("method", ["cotta", "rotta"])
def test_streams_continue_after_a_restart_and_are_loaded_when_needed(tmp_path, images, method) -> None:
    bundle = small_bundle(method, lr=0.01)
    with Service(bundle) as whole:
        expected = answers(whole, images, "a", range(4))
    found = []
    for part in (range(2), range(2, 4)):
        with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
            if part.start:
                stream = service.find("a")
                assert (stream.engine.awake, stream.engine.changes, stream.engine.saved_changes) == (False, 2, 2)
            found += answers(service, images, "a", part)
    assert all(map(torch.equal, expected, found))


def test_a_server_killed_after_a_checkpoint_finds_every_stream_as_it_was_then(bundle, tmp_path, images) -> None:
    service = Service(bundle, state=tmp_path / "state", wait=0.0, checkpoint_seconds=0.0).__enter__()
    for name in ("a", "b"):
        answers(service, images, name, range(3))
    assert service.saved
    expected = service.find("a").engine.adapter.state_dict()
    (tmp_path / "state" / ".lock").unlink()  # as if it were gone: it never gets to save anything
    with Service(bundle, state=tmp_path / "state", wait=0.0) as again:
        assert sorted(stream.name for stream in again.list_streams()) == ["a", "b", "default"]
        again.predict(images(6), adapt=False, stream="a").result(60)
        assert same_state(again.find("a").engine.adapter.state_dict(), expected)
    service._stop()


def test_an_answer_says_which_changes_would_survive_a_kill(bundle, tmp_path, images) -> None:
    with Service(bundle, state=tmp_path / "late", wait=0.0, checkpoint_seconds=1e6) as service:
        found = [service.predict(images(6, seed), stream="a").result(60) for seed in range(2)]
        assert [(one.changes, one.saved) for one in found] == [(1, 0), (2, 0)]
        assert service.reset("a").result(60).changes == 3
        assert service.predict(images(6), stream="a").result(60).saved == 3
    with Service(bundle, wait=0.0, checkpoint_seconds=0.0) as service:
        assert service.predict(images(6)).result(60).saved is None  # no state is to survive


def test_with_a_checkpoint_before_each_answer_all_answered_steps_are_on_the_disk(
    bundle, tmp_path, images, monkeypatch
) -> None:
    folder = tmp_path / "state"
    monkeypatch.setattr(state_store, "_RETRY_SECONDS", 1e6)
    with Service(bundle, state=folder, wait=0.0, checkpoint_seconds=0.0) as service:
        for seed in range(4):
            for name in ("a", "b"):
                answer = service.predict(images(6, seed), stream=name).result(60)
                assert answer.saved == answer.changes == newest_checkpoint(folder / "streams" / name) == seed + 1
        real = state_store.save_checkpoint
        monkeypatch.setattr(state_store, "save_checkpoint", lambda *_: 1 / 0)
        refused = service.predict(images(6), stream="a").result(60)
        assert (refused.changes, refused.saved) == (5, 4)  # it is answered, and not called saved
        assert service.find("a").engine.due() > 1e5  # and not tried again at once
        monkeypatch.setattr(state_store, "save_checkpoint", real)
        assert service.predict(images(6), stream="a").result(60).saved == 6


def test_the_folders_that_name_a_new_stream_are_flushed_to_the_disk(bundle, tmp_path, monkeypatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(state_store, "sync_folder", flushed.append)
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        flushed.clear()
        service.make("a")[0].result(60)
        assert flushed == [tmp_path / "state" / "streams", tmp_path / "state"]
        service.make("a")[0].result(60)
        assert len(flushed) == 2


def test_a_stream_whose_state_is_damaged_is_refused_until_it_is_reset_and_others_are_served(
    bundle, tmp_path, images
) -> None:
    state = tmp_path / "state"
    with Service(bundle, state=state, wait=0.0) as service:
        answers(service, images, "a", range(3))
    for path in (state / "streams" / "a" / "checkpoints").iterdir():
        path.write_bytes(b"nonsense")
    with Service(bundle, state=state, wait=0.0) as service:
        with pytest.warns(UserWarning, match="not used"):
            assert status(service.predict(images(6), stream="a")) == 503
        assert service.predict(images(6), stream="b").result(60).step == 1
        assert service.reset("a").result(60).changes == 4
        assert service.predict(images(6), stream="a").result(60).step == 1
    with Service(bundle, state=state, wait=0.0) as service:
        service.predict(images(6), adapt=False, stream="a").result(60)
        assert service.find("a").engine.changes == 5


def test_a_failed_step_is_undone_in_its_own_stream_only(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        answers(service, images, "a", range(2))
        poison(service)  # the default stream
        with pytest.raises(RefusedError, match="as it was before"):
            service.predict(marked(images(6))).result(60)
        after = answers(service, images, "a", range(2, 3))
        alone = Engine(Adapters(bundle)).adapter
        expected = [alone(images(6, seed)).double().exp() for seed in range(3)]
    assert torch.equal(after[0], expected[2])


def test_streams_are_served_in_turn_not_first_come_first_served(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        go, order = held(service), []
        service.predict(images(6))
        while service.waiting:
            pass
        for name in "aaaabbc":
            done = service.predict(images(6), stream=name)
            done.add_done_callback(lambda _, name=name: order.append(name))
        go.set()
        done.result(60)
        while service.waiting:
            pass
        service.predict(images(6)).result(60)
    assert "".join(order) == "abcabaa"


def test_a_small_request_that_waits_for_others_does_not_hold_up_another_stream(bundle, images) -> None:
    with Service(bundle, wait=30.0) as service:
        small = service.predict(images(2), stream="a")
        assert service.predict(images(6), stream="b").result(60).step == 1
        assert not small.done()
        service.predict(images(4), stream="a").result(60)
        assert small.result(60).batch_requests == 2


def test_a_full_queue_of_one_stream_refuses_only_its_own_requests(bundle, images) -> None:
    limits = Limits(images=6, queue=12)
    with Service(bundle, limits=limits, streams=StreamLimits(queue=30), wait=0.0) as service:
        go = held(service)
        service.predict(images(6))
        while service.waiting:
            pass
        accepted = [service.predict(images(6), stream="a") for _ in range(2)]
        assert refusal(lambda: service.predict(images(1), stream="a")) == 429
        accepted += [service.predict(images(6), stream=name) for name in "bcd"]
        assert refusal(lambda: service.predict(images(1), stream="e")) == 429  # 30 wait, the most of all together
        go.set()
        assert [future.result(60).step for future in accepted] == [1, 2, 1, 1, 1]


def test_there_are_at_most_so_many_streams_and_a_deleted_one_makes_room(bundle, tmp_path, images) -> None:
    with Service(bundle, state=tmp_path / "state", streams=StreamLimits(streams=2), wait=0.0) as service:
        first = answers(service, images, "a", range(1))
        assert refusal(lambda: service.predict(images(6), stream="b")) == 409
        assert refusal(lambda: service.delete("default")) == 409
        assert refusal(lambda: service.delete("b")) == 404
        service.delete("a").result(60)
        assert refusal(lambda: service.find("a")) == 404
        assert not list((tmp_path / "state" / "streams").iterdir())
        service.predict(images(6), stream="b").result(60)
        service.delete("b").result(60)
        assert torch.equal(answers(service, images, "a", range(1))[0], first[0])  # it begins anew


def test_a_stream_whose_folder_cannot_be_removed_is_still_served(bundle, tmp_path, images, monkeypatch) -> None:
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        answers(service, images, "a", range(1))
        store = service.find("a").engine.store
        monkeypatch.setattr(store, "remove", lambda: (_ for _ in ()).throw(OSError("read only")))
        assert status(service.delete("a")) == 503
        assert service.predict(images(6), stream="a").result(60).step == 2


def test_requests_for_a_stream_that_is_being_deleted_are_refused(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        service.make("a")[0].result(60)
        go = held(service)
        before, deleted = service.predict(images(6), stream="a"), service.delete("a")
        assert refusal(lambda: service.predict(images(6), stream="a")) == 409
        go.set()
        assert (before.result(60).step, deleted.result(60).changes) == (1, 1)


@pytest.mark.parametrize("name", ["", "A", "../a", "a/b", ".a", "a" * 65, "é", "a\n", "con:"])
def test_odd_names_of_streams_are_refused(service, images, name) -> None:
    assert refusal(lambda: service.predict(images(6), stream=name)) == 422


def test_a_prediction_without_adaptation_makes_no_stream(service, images) -> None:
    assert refusal(lambda: service.predict(images(6), adapt=False, stream="a")) == 404
    assert [stream.name for stream in service.list_streams()] == ["default"]


def test_a_pinned_stream_answers_as_the_source_and_does_not_change_until_it_is_released(
    bundle, tmp_path, images
) -> None:
    source = Adapters(bundle).source
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        answers(service, images, "a", range(2))
        before = service.find("a").engine.adapter.state_dict()
        service.pin("a", True).result(60)
        pinned = service.predict(images(6, 7), stream="a").result(60)
        assert torch.equal(pinned.answer.probabilities, source(images(6, 7)).double().exp())
        assert (pinned.answer.adapted, pinned.changes) == (False, 2)
        assert same_state(service.find("a").engine.adapter.state_dict(), before)
        assert service.predict(images(6), stream="b").result(60).answer.adapted
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        again = service.predict(images(6, 7), stream="a").result(60)
        assert torch.equal(again.answer.probabilities, pinned.answer.probabilities)
        assert not service.find("a").engine.awake  # it is not even loaded,
        assert (pinned.step, again.step, again.changes) == (2, None, 2)  # so nobody knows how many steps it had
        service.pin("a", False).result(60)
        assert service.predict(images(6, 7), stream="a").result(60).changes == 3


def test_an_exported_stream_is_a_file_that_continues_elsewhere(bundle, tmp_path, images) -> None:
    from vcotta import load

    with Service(bundle, wait=0.0) as service:
        answers(service, images, "a", range(2))
        path = tmp_path / "a.safetensors"
        service.export("a", path).result(60)
        adapter = load(path)
        assert torch.equal(adapter(images(6, 2)).double().exp(), answers(service, images, "a", range(2, 3))[0])


def test_leftovers_of_a_deletion_are_removed_at_the_start(bundle, tmp_path, images) -> None:
    left = tmp_path / "state" / "streams" / ".a"
    left.mkdir(parents=True)
    (left / "manifest.json").write_text(json.dumps({"bundle": "x"}))
    with Service(bundle, state=tmp_path / "state") as service:
        assert not left.exists()
        assert len(service.list_streams()) == 1


def test_a_stream_of_another_bundle_stops_the_start(bundle, tmp_path) -> None:
    place = Path(tmp_path, "state", "streams", "a")
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"bundle": "0" * 64}))
    with pytest.raises(ValueError, match="another one"), Service(bundle, state=tmp_path / "state"):
        pass


def test_many_threads_and_streams_leave_no_request_unanswered(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        done: list[int] = []

        def send(number: int) -> None:
            for seed in range(5):
                done.append(service.predict(images(6, seed), stream=f"s{number % 4}").result(60).changes)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 40
        assert sum(stream.engine.changes for stream in service.list_streams()) == 40
