"""The queue and its worker: order, pooling, failures, checkpoints."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vcotta.serve import state_store
from vcotta.serve.adapters import Adapters
from vcotta.serve.bundle import load_bundle, save_bundle
from vcotta.serve.engine import Engine
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.service import Service

from .conftest import same_state, small_bundle

MARK = 0.123


def held(service: Service) -> threading.Event:
    """Keep the worker waiting before its next batch until the event is set."""
    go, real = threading.Event(), service._serve
    service._serve = lambda *batch: (go.wait(60), real(*batch))
    return go


def poison(service: Service) -> None:
    """Let the adapter fail, half-way through a step, on any batch with a marked image."""
    adapter = service.engine.adapter
    real = adapter.predict_and_adapt

    def fails(images):
        answer = real(images)
        if (images[:, 0, 0, 0] == MARK).any():
            raise RuntimeError("poisoned")
        return answer

    adapter.predict_and_adapt = fails


def marked(images):
    images[:, 0, 0, 0] = MARK
    return images


def test_requests_are_answered_in_order_as_by_the_bare_adapter(bundle, service, images) -> None:
    alone = Engine(Adapters(bundle)).adapter
    futures = [service.predict(images(6, seed)) for seed in range(5)]
    answers = [future.result(60) for future in futures]
    for seed, served in enumerate(answers):
        assert torch.equal(served.answer.probabilities, alone(images(6, seed)).double().exp())
        assert (served.step, served.batch_images, served.batch_requests) == (seed + 1, 6, 1)
    assert same_state(service.engine.adapter.state_dict(), alone.state_dict())


def test_small_requests_that_follow_each_other_are_pooled_in_order(bundle, service, images) -> None:
    go = held(service)
    sizes = (6, 2, 3, 2, 1, 6, 1, 1)  # pool is 6: [6] [2 3] [2 1] [6] [1 1]
    futures = [service.predict(images(size, seed)) for seed, size in enumerate(sizes)]
    go.set()
    answers = [future.result(60) for future in futures]
    assert [(t.step, t.offset, t.batch_requests) for t in answers] == [
        (1, 0, 1),
        (2, 0, 2),
        (2, 2, 2),
        (3, 0, 2),
        (3, 2, 2),
        (4, 0, 1),
        (5, 0, 2),
        (5, 1, 2),
    ]
    alone = Engine(Adapters(bundle)).adapter
    alone(images(6, 0))
    together = alone(torch.cat([images(2, 1), images(3, 2)])).double().exp()
    assert torch.equal(answers[1].answer.probabilities, together[:2])
    assert torch.equal(answers[2].answer.probabilities, together[2:])


def test_a_small_request_waits_for_others_at_most_the_given_time(bundle, images) -> None:
    with Service(bundle, wait=30.0) as service:
        first, second = service.predict(images(3)), service.predict(images(3))
        assert first.result(60).batch_requests == second.result(60).batch_requests == 2
    with Service(bundle, wait=0.01) as service:
        assert service.predict(images(3)).result(60).batch_requests == 1


@pytest.mark.parametrize("pool", [None, 4])
def test_the_adapter_compiles_for_a_full_pool_whatever_the_first_request(bundle, images, pool) -> None:
    with Service(bundle, pool=pool, wait=0.0) as service:
        service.predict(images(2)).result(60)
        assert service.engine.adapter.state_dict()["compiled_shape"] == [pool or 6, 3, 8, 8]


def test_a_prediction_without_adaptation_changes_nothing_and_is_never_pooled(service, images) -> None:
    go = held(service)
    futures = [service.predict(images(1)), service.predict(images(1), adapt=False), service.predict(images(1))]
    go.set()
    answers = [future.result(60) for future in futures]
    assert [t.batch_requests for t in answers] == [1, 1, 1]
    assert [t.changes for t in answers] == [1, 1, 2]
    before = service.engine.adapter.state_dict()
    service.predict(images(6), adapt=False).result(60)
    assert same_state(service.engine.adapter.state_dict(), before)


def test_a_reset_is_processed_in_order(bundle, service, images) -> None:
    go = held(service)
    futures = [service.predict(images(6)), service.reset(), service.predict(images(6))]
    go.set()
    first, done, again = (future.result(60) for future in futures)
    assert (first.step, done.step, again.step) == (1, 0, 1)
    assert torch.equal(first.answer.probabilities, again.answer.probabilities)
    assert (first.changes, done.changes, again.changes) == (1, 2, 3)


def test_a_failing_request_does_not_change_the_answers_of_the_others(bundle, service, images) -> None:
    poison(service)
    go = held(service)
    service.predict(images(6, 0))
    sent = [images(2, 1), marked(images(1, 2)), images(3, 3)]
    futures = [service.predict(some) for some in sent]
    after = service.predict(images(6, 4))
    go.set()
    with pytest.raises(RefusedError, match="as it was before"):
        futures[1].result(60)
    last = after.result(
        10
    ).answer.probabilities  # now the worker rests: adapters in two threads share torch's generator
    alone = Engine(Adapters(bundle)).adapter
    alone(images(6, 0))
    expected = alone(torch.cat([sent[0], sent[2]])).double().exp()
    assert torch.equal(futures[0].result(60).answer.probabilities, expected[:2])
    assert torch.equal(futures[2].result(60).answer.probabilities, expected[2:])
    assert torch.equal(last, alone(images(6, 4)).double().exp())
    assert service.metrics.total("failed_batches") == 1
    assert same_state(service.engine.adapter.state_dict(), alone.state_dict())


def test_requests_that_fail_only_together_are_served_one_by_one(bundle, service, images) -> None:
    adapter = service.engine.adapter
    real = adapter.predict_and_adapt
    adapter.predict_and_adapt = lambda x: real(x) if len(x) < 4 else 1 / 0
    go = held(service)
    futures = [service.predict(images(2, seed)) for seed in range(3)]
    go.set()
    assert [future.result(60).step for future in futures] == [1, 2, 3]


def test_outputs_that_are_not_finite_are_an_error_and_change_nothing(service, images) -> None:
    adapter = service.engine.adapter
    before, real = adapter.state_dict(), adapter.predict_and_adapt
    adapter.predict_and_adapt = lambda x: real(x) * float("nan")
    with pytest.raises(RefusedError):
        service.predict(images(6)).result(60)
    assert same_state(adapter.state_dict(), before)


def test_a_full_queue_refuses_with_429_and_retry_after(bundle, images) -> None:
    with Service(bundle, limits=Limits(images=6, queue=12), wait=0.0) as service:
        go = held(service)
        first = service.predict(images(6))
        while service.waiting:  # the worker has taken it, and is being held
            pass
        accepted = [service.predict(images(6)) for _ in range(2)]
        with pytest.raises(RefusedError) as refused:
            service.predict(images(1))
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
        go.set()
        assert [future.result(60).step for future in (first, *accepted)] == [1, 2, 3]


def status(future) -> int:
    with pytest.raises(RefusedError) as refused:
        future.result(60)
    return refused.value.status


def test_resets_count_towards_the_limit_of_the_queue(bundle, images) -> None:
    with Service(bundle, limits=Limits(images=6, queue=6), wait=0.0) as service:
        go = held(service)
        service.reset()
        while service.streams.default.queue:  # the worker has taken it, and is being held
            pass
        accepted = [service.reset() for _ in range(6)]
        with pytest.raises(RefusedError) as refused:
            service.reset()
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
        go.set()
        assert [future.result(60).changes for future in accepted] == [2, 3, 4, 5, 6, 7]


def test_at_the_end_the_current_batch_is_finished_and_saved_and_the_rest_refused(bundle, tmp_path, images) -> None:
    service = Service(bundle, state=tmp_path / "state")
    with service:
        go = held(service)
        first = service.predict(images(6))
        while service.waiting:
            pass
        others = [service.predict(images(6)) for _ in range(3)]
        others[0].add_done_callback(lambda _: go.set())  # only once those are refused
    assert first.result(0).step == 1
    assert [status(future) for future in others] == [503, 503, 503]
    with pytest.raises(RefusedError) as refused:
        service.predict(images(6))
    assert refused.value.status == 503
    assert not service.alive
    with Service(bundle, state=tmp_path / "state") as again:
        assert again.engine.changes == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waiting_requests_are_refused_if_the_worker_dies(bundle, images) -> None:
    with Service(bundle, wait=0.0) as service:
        go = threading.Event()

        def die(*_):
            go.wait(60)
            raise SystemExit  # no Exception: nothing in the service catches it

        service._serve = die
        service.predict(images(6))
        while service.waiting:
            pass
        left = service.predict(images(6))
        go.set()
        assert status(left) == 503


@pytest.mark.parametrize(("method", "options"), [("tent", {}), ("cotta", {"views": 1})])
def test_a_restarted_service_answers_as_an_uninterrupted_one(tmp_path, images, method, options) -> None:
    save_bundle(small_bundle(method, lr=0.01, **options), tmp_path / "a")
    bundle = load_bundle(tmp_path / "a")
    batches = [images(6, seed) for seed in range(6)]
    with Service(bundle) as whole:
        expected = [whole.predict(batch).result(60).answer.probabilities for batch in batches]
    found = []
    for part in (batches[:2], batches[2:3], batches[3:]):
        with Service(bundle, state=tmp_path / "state") as service:
            assert service.engine.changes == len(found)
            found += [service.predict(batch).result(60).answer.probabilities for batch in part]
    assert all(map(torch.equal, expected, found))
    assert same_state(service.engine.adapter.state_dict(), whole.engine.adapter.state_dict())


def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(bundle, tmp_path, images) -> None:
    for seed in range(2):
        with Service(bundle, state=tmp_path / "state") as service:
            service.predict(images(6, seed)).result(60)
    newest = tmp_path / "state" / "checkpoints" / "2.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="not used"), Service(bundle, state=tmp_path / "state") as service:
        assert service.engine.changes == service.engine.adapter.steps == 1


def test_without_a_usable_checkpoint_the_service_does_not_start_and_keeps_the_files(bundle, tmp_path, images) -> None:
    state = tmp_path / "state"
    with Service(bundle, state=state) as service:
        service.predict(images(6)).result(60)
    other = replace(bundle, settings=bundle.settings | {"lr": 0.5})  # of the same file, as a newer vcotta might see it
    for _ in range(2):
        with (
            pytest.warns(UserWarning, match="lr=0.01"),
            pytest.raises(ValueError, match="another --state"),
            Service(other, state=state),
        ):
            pass
    with Service(bundle, state=state) as service:
        assert service.engine.changes == 1


def test_the_state_folder_of_another_bundle_is_refused_and_kept(bundle, tmp_path, images) -> None:
    state = tmp_path / "state"
    with Service(bundle, state=state) as service:
        service.predict(images(6)).result(60)
    save_bundle(small_bundle(lr=0.02), tmp_path / "b")
    with pytest.raises(ValueError, match="another one"), Service(load_bundle(tmp_path / "b"), state=state):
        pass
    with Service(bundle, state=state) as service:
        assert service.engine.changes == 1


def test_two_servers_cannot_use_one_state_folder(bundle, tmp_path) -> None:
    with (
        Service(bundle, state=tmp_path / "state"),
        pytest.raises(BlockingIOError, match="another server"),
        Service(bundle, state=tmp_path / "state"),
    ):
        pass


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), torch.OutOfMemoryError("full")])
def test_the_service_continues_if_checkpoints_cannot_be_written(bundle, tmp_path, images, monkeypatch, error) -> None:
    def full(*_):
        raise error

    with Service(bundle, state=tmp_path / "state", checkpoint_seconds=0.0) as service:
        real = state_store.save_checkpoint
        monkeypatch.setattr(state_store, "save_checkpoint", full)
        assert [service.predict(images(6)).result(60).step for _ in range(3)] == [1, 2, 3]
        assert service.metrics.total("checkpoint_failures") >= 2
        assert not service.engine.saved
        monkeypatch.setattr(state_store, "save_checkpoint", real)
    assert service.engine.saved
    assert [path.name for path in Path(tmp_path / "state" / "checkpoints").iterdir()] == ["3.safetensors"]


def test_checkpoints_are_written_while_the_service_runs(bundle, tmp_path, images) -> None:
    with Service(bundle, state=tmp_path / "state", checkpoint_seconds=0.05) as service:
        service.predict(images(6)).result(60)
        place = tmp_path / "state" / "checkpoints" / "1.safetensors"
        for _ in range(1200):
            if place.exists():
                break
            threading.Event().wait(0.05)
        assert place.exists()
