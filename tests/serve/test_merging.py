"""Streams of a server that are merged: all of them or none, without those that learned something else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from vcotta.methods.merging import merge_states, with_learned
from vcotta.serve import Bundle, state_store
from vcotta.serve.adapters import Adapters
from vcotta.serve.engine import predicted
from vcotta.serve.merging import MergeRule
from vcotta.serve.requests import RefusedError
from vcotta.serve.service import Service

from .conftest import same_state, small_bundle


@pytest.fixture(scope="module")
def vcotta_bundle() -> Bundle:
    return variational("all")


def variational(trains: str) -> Bundle:
    return small_bundle("vcotta", views=1, lr=0.01, statistics="batch", label_prior=False, trains=trains)


def start(bundle: Bundle, folder: Path | None = None, **options) -> Service:
    return Service(bundle, state=folder, wait=0.0, **options)


def send(service: Service, images, name: str, seeds: range) -> list[torch.Tensor]:
    return [service.predict(images(6, s), stream=name).result(60).answer.probabilities for s in seeds]


def merge(service: Service) -> dict:
    return json.loads(service.merge().result(60).body)


def states(service: Service, *names: str) -> list[dict]:
    return [service.find(name).engine.adapter.state_dict() for name in names]


@pytest.mark.parametrize("trains", ["all", "norm"])
def test_merged_streams_answer_as_adapters_with_the_merged_state(tmp_path, images, trains) -> None:
    bundle = variational(trains)
    with start(bundle, tmp_path / "state") as service:
        send(service, images, "a", range(3))
        send(service, images, "b", range(10, 12))
        before = states(service, "a", "b")
        outcome = merge(service)
        assert (outcome["merged"], outcome["refused"], outcome["left_out"]) == (["a", "b"], [], ["default"])
        networks = [state["networks"] for state in states(service, "a", "b")]
        assert same_state(*networks)
        merged = merge_states(before).state
        for name, state in zip("ab", before, strict=True):
            alone = Adapters(bundle).build()
            alone.load_state_dict(with_learned(state, merged))
            looked = service.predict(images(6, 5), adapt=False, stream=name).result(60).answer.probabilities
            assert torch.equal(looked, predicted(alone, images(6, 5)).probabilities)
            assert torch.equal(send(service, images, name, range(20, 21))[0], alone(images(6, 20)).double().exp())
        assert [service.find(name).engine.changes for name in ("a", "b", "default")] == [5, 4, 0]


def test_a_failed_step_after_a_merge_is_undone_to_the_merged_state(vcotta_bundle, images) -> None:
    with start(vcotta_bundle) as service:
        for place, name in enumerate("ab"):
            send(service, images, name, range(place, place + 2))
        merge(service)
        engine, (before,) = service.find("a").engine, states(service, "a")
        with pytest.raises(ZeroDivisionError):
            engine.adapt(images(6), lambda _: 1 / 0)
        assert same_state(engine.adapter.state_dict(), before)


def test_a_merge_survives_a_restart_and_takes_streams_that_are_on_the_disk(vcotta_bundle, tmp_path, images) -> None:
    with start(vcotta_bundle, tmp_path / "state") as service:
        for name, seeds in (("a", range(2)), ("b", range(5, 8))):
            send(service, images, name, seeds)
        before = states(service, "a", "b")
    with start(vcotta_bundle, tmp_path / "state") as service:
        assert merge(service)["merged"] == ["a", "b"]
        assert not any(service.find(name).engine.awake for name in "ab")
    expected = [with_learned(state, merge_states(before).state) for state in before]
    with start(vcotta_bundle, tmp_path / "state") as service:
        for found, state in zip(states(service, "a", "b"), expected, strict=True):
            assert same_state(found["networks"], state["networks"])
            assert found["counters"] == state["counters"]


def test_a_poisoned_stream_among_four_is_refused_flagged_and_keeps_its_own_state(vcotta_bundle, images) -> None:
    with start(vcotta_bundle) as service:
        for place, name in enumerate(("a", "b", "c", "bad")):
            send(service, images, name, range(place, place + 3))
        poisoned = service.find("bad").engine
        for net in poisoned.adapter.networks.values():
            for weight in net.parameters():
                weight.data.add_(5.0)
        before = states(service, "a", "bad")
        poisoned.save()
        assert merge(service)["refused"] == ["bad"]
        after = states(service, "a", "bad")
        assert same_state(after[1], before[1])
        assert not same_state(after[0]["networks"], before[0]["networks"])
        bad = service.find("bad")
        assert (bad.flagged, bad.signs, service.find("a").signs) == (True, ["outlier"], [])
        assert [service.metrics.total(name) for name in ("merges", "merge_refusals", "merge_failures")] == [1, 1, 0]
        service.reset("bad").result(60)
        assert not bad.flagged


def test_a_stream_that_goes_on_alone_after_a_merge_is_no_outlier_and_those_that_rest_take_what_others_learn(
    vcotta_bundle, tmp_path, images
) -> None:
    names = ("a", "b", "c", "d", "e")
    with start(vcotta_bundle, tmp_path / "state") as service:
        for place, name in enumerate(names):
            send(service, images, name, range(place, place + 2))
        assert merge(service)["merged"] == [*names]
        send(service, images, "a", range(10, 11))
        with pytest.raises(RefusedError, match=r"since they were last merged, .* but got 1"):
            merge(service)
    with start(vcotta_bundle, tmp_path / "state") as service:
        send(service, images, "b", range(11, 12))
        before = states(service, *names)
        outcome = merge(service)
        assert (outcome["merged"], outcome["refused"]) == ([*names], [])
        expected = merge_states(before[:2]).state["networks"]
        assert all(same_state(state["networks"], expected) for state in states(service, *names))


def test_pinned_streams_and_those_of_other_names_neither_give_nor_take(vcotta_bundle, images) -> None:
    with start(vcotta_bundle, merging=MergeRule(streams="north-*")) as service:
        names = ("north-1", "north-2", "north-3", "south")
        for place, name in enumerate(names):
            send(service, images, name, range(place, place + 2))
        service.pin("north-3", True).result(60)
        before = states(service, *names)
        outcome = merge(service)
        assert (outcome["merged"], outcome["left_out"]) == (["north-1", "north-2"], ["north-3"])
        after = states(service, *names)
        assert [same_state(*pair) for pair in zip(before, after, strict=True)] == [False, False, True, True]
        assert same_state(after[0]["networks"], with_learned(before[0], merge_states(before[:2]).state)["networks"])


def test_a_merge_whose_second_state_cannot_be_written_changes_nothing(
    vcotta_bundle, tmp_path, images, monkeypatch
) -> None:
    folder, real = tmp_path / "state", state_store.save_checkpoint
    with start(vcotta_bundle, folder) as service:
        for place, name in enumerate("ab"):
            send(service, images, name, range(place, place + 2))
        before = states(service, "a", "b")

        def fails(place, manifest, what, *more):
            if place.name == "b" and isinstance(what, dict):
                raise OSError("full")
            real(place, manifest, what, *more)

        monkeypatch.setattr(state_store, "save_checkpoint", fails)
        with pytest.raises(RefusedError, match="no stream was changed") as refused:
            merge(service)
        assert refused.value.status == 503
        assert [service.find(name).engine.changes for name in "ab"] == [2, 2]
        assert all(map(same_state, states(service, "a", "b"), before))
        assert service.metrics.total("merge_failures") == 1
        assert [path.name for path in (folder / "streams" / "a" / "checkpoints").iterdir()] == ["2.safetensors"]
        monkeypatch.setattr(state_store, "save_checkpoint", real)
        assert send(service, images, "a", range(5, 6))
    with start(vcotta_bundle, folder) as service:
        assert same_state(states(service, "b")[0], before[1])


def test_a_merge_that_fails_and_cannot_be_cleaned_up_changes_no_stream(
    vcotta_bundle, tmp_path, images, monkeypatch, caplog
) -> None:
    real_save, real_unlink = state_store.save_checkpoint, Path.unlink

    def fails(place, manifest, what, *more):
        if place.name == "c" and isinstance(what, dict):
            raise OSError("full")
        real_save(place, manifest, what, *more)

    def stays(self, *more, **options):
        if self.parts[-3:] == ("a", "checkpoints", "3.safetensors"):
            raise PermissionError("injected")
        real_unlink(self, *more, **options)

    with start(vcotta_bundle, tmp_path / "state") as service:
        for place, name in enumerate("abc"):
            send(service, images, name, range(place, place + 2))
        before = states(service, *"abc")
        monkeypatch.setattr(state_store, "save_checkpoint", fails)
        monkeypatch.setattr(Path, "unlink", stays)
        with pytest.raises(RefusedError, match="no stream was changed"):
            merge(service)
        monkeypatch.setattr(state_store, "save_checkpoint", real_save)
        monkeypatch.setattr(Path, "unlink", real_unlink)
        assert "injected" in caplog.text
        assert all(map(same_state, states(service, *"abc"), before))
        assert [service.find(name).engine.store.current().name for name in "abc"] == ["2.safetensors"] * 3
        assert merge(service)["merged"] == ["a", "b", "c"]
        assert [service.find(name).engine.changes for name in "abc"] == [3, 3, 3]


def test_a_stream_that_cannot_be_read_is_left_out(vcotta_bundle, tmp_path, images) -> None:
    with start(vcotta_bundle, tmp_path / "state") as service:
        for place, name in enumerate("abc"):
            send(service, images, name, range(place, place + 2))
    for path in (tmp_path / "state" / "streams" / "c" / "checkpoints").iterdir():
        path.write_bytes(b"nonsense")
    with start(vcotta_bundle, tmp_path / "state") as service:
        outcome = merge(service)
        assert (outcome["merged"], outcome["left_out"]) == (["a", "b"], ["default", "c"])


def test_one_stream_or_another_method_cannot_be_merged(vcotta_bundle, bundle, images) -> None:
    with start(vcotta_bundle) as service:
        send(service, images, "a", range(1))
        with pytest.raises(RefusedError, match="at least two streams") as refused:
            merge(service)
        assert refused.value.status == 409
    with start(bundle) as service:
        for place, name in enumerate("ab"):
            send(service, images, name, range(place, place + 1))
        with pytest.raises(RefusedError, match="of tent"):
            merge(service)
    with pytest.raises(ValueError, match="Leave `--merge-every` out"):
        start(bundle, merging=MergeRule(every=60.0))


def test_streams_are_merged_periodically_but_not_again_while_nothing_changes(vcotta_bundle, images) -> None:
    with start(vcotta_bundle, merging=MergeRule(every=0.1)) as service:
        send(service, images, "a", range(1))
        send(service, images, "b", range(1, 2))
        until = time.monotonic() + 60
        while not service.metrics.total("merges") and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.4)
        assert service.metrics.total("merges") == 1
        assert service.metrics.total("merge_failures") == 0


def test_a_periodic_merge_that_fails_is_counted_and_requests_are_still_served(
    vcotta_bundle, images, monkeypatch
) -> None:
    def fails(*_, **__):
        raise MemoryError

    monkeypatch.setattr("vcotta.serve.merging.merge_states", fails)
    with start(vcotta_bundle, merging=MergeRule(every=0.05)) as service:
        for place, name in enumerate("ab"):
            send(service, images, name, range(place, place + 2))
        until = time.monotonic() + 60
        while not service.metrics.total("merge_failures") and time.monotonic() < until:
            time.sleep(0.02)
        assert service.metrics.total("merge_failures")
        assert service.predict(images(6), stream="a").result(60).step == 3


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_the_command_says_that_streams_of_another_method_cannot_be_merged(
    command, bundle_path, tmp_path, engine
) -> None:
    options = ("--state", str(tmp_path / "state"), "--engine", engine, "--merge-every", "60", "--merge", "north-*")
    code, _, error = command("serve", str(bundle_path), *options)
    assert (code, "Leave `--merge-every` out" in " ".join(error.split())) == (2, True), error


def test_the_command_gives_the_service_the_rule_of_merges(command, bundle_path, tmp_path, monkeypatch) -> None:
    given = []
    monkeypatch.setattr("vcotta.serve.service.Service", lambda *_, **options: given.append(options["merging"]) or 1 / 0)
    code, _, _ = command("serve", str(bundle_path), "--merge-every", "60", "--merge", "north-*")
    assert code != 0
    assert given == [MergeRule(60.0, "north-*")]


def test_the_command_gives_the_fleet_the_rule_of_merges(command, bundle_path, tmp_path, monkeypatch) -> None:
    given = []
    monkeypatch.setattr("vcotta.serve.ray_engine.Fleet", lambda *options: given.append(options[-1]) or 1 / 0)
    code, _, _ = command("serve", str(bundle_path), "--engine", "ray", "--merge-every", "60", "--merge", "north-*")
    assert code != 0
    assert given == [MergeRule(60.0, "north-*")]
