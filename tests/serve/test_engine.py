"""A step succeeds as a whole or is undone, without a copy of the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vcotta import build_adapter, to_variational
from vcotta.models import build_network
from vcotta.serve import Bundle, Preprocess, make_bundle
from vcotta.serve.adapters import Adapters
from vcotta.serve.engine import Engine, StateLostError
from vcotta.serve.state_store import StateStore

from .conftest import NAMES, same_state, small_bundle

METHODS = {
    "tent": {"lr": 0.01},
    "cotta": {"views": 2, "lr": 0.01},
    "vcotta": {"views": 2},
    "sar": {"lr": 0.01},
    "rotta": {"lr": 0.01, "update_every": 6},
    "bn": {},
}


def bundle_of(method: str) -> Bundle:
    if method != "vcotta":
        return small_bundle(method, **METHODS[method])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = to_variational(build_network("wrn-10-1", 4, base=4))
    return make_bundle(build_adapter("vcotta", net, views=2), "wrn-10-1", NAMES, Preprocess(8), batch_size=6, base=4)


class PlantedError(Exception):
    """The failure of a step."""


def fail_in_the_forward_pass(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail in the last layer of the adapting network."""
    network = next(iter(engine.adapter.networks.values()))

    def fail(*_: object) -> None:
        raise PlantedError

    network.fc.register_forward_pre_hook(fail)


def fail_in_the_optimiser_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail after the optimiser has changed the parameters."""
    real = type(engine.adapter.optimizer).step

    def fail(self: torch.optim.Optimizer, *arguments: object, **options: object) -> None:
        real(self, *arguments, **options)
        raise PlantedError

    monkeypatch.setattr(type(engine.adapter.optimizer), "step", fail)


def fail_after_the_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when all networks have changed, averages included."""
    real = engine.adapter.predict_and_adapt

    def fail(images: Tensor) -> None:
        real(images)
        raise PlantedError

    monkeypatch.setattr(engine.adapter, "predict_and_adapt", fail)


def fail_in_the_average(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when half of the teacher's parameters have been averaged."""
    real = torch._foreach_copy_

    def fail(olds: list[Tensor], averages: list[Tensor]) -> None:
        half = len(olds) // 2
        real(olds[:half], averages[:half])
        raise PlantedError

    monkeypatch.setattr(torch, "_foreach_copy_", fail)


CASES = [
    *((method, fail_after_the_step) for method in METHODS),
    *((m, fail) for m in METHODS if m != "bn" for fail in (fail_in_the_forward_pass, fail_in_the_optimiser_step)),
    *((method, fail_in_the_average) for method in ("cotta", "vcotta", "rotta")),
]


@contextmanager
def broken(engine: Engine, fail: Callable[[Engine, pytest.MonkeyPatch], None]) -> Iterator[None]:
    """Let the next step fail, and repeated ones succeed."""
    real_undo = engine._undo
    with pytest.MonkeyPatch.context() as patch:
        fail(engine, patch)

        def mended() -> None:
            patch.undo()
            for net in engine.adapter.networks.values():
                getattr(net, "fc", net)._forward_pre_hooks.clear()
            real_undo()

        engine._undo = mended
        try:
            yield
        finally:
            engine._undo = real_undo


@pytest.mark.parametrize(("method", "fail"), CASES, ids=[f"{method} {fail.__name__}" for method, fail in CASES])
@pytest.mark.parametrize("saved", [None, 2], ids=["from the start", "from a checkpoint"])
def test_a_step_that_fails_anywhere_leaves_predictions_and_state_as_they_were(
    method, fail, saved, images, tmp_path
) -> None:
    bundle = bundle_of(method)
    engine, undisturbed = Engine(Adapters(bundle), store=StateStore(tmp_path, bundle)), Engine(Adapters(bundle))
    for seed in range(4):
        assert torch.equal(
            engine.adapt(images(6, seed)).probabilities, undisturbed.adapt(images(6, seed)).probabilities
        )
        if seed + 1 == saved:
            assert engine.save()
    with broken(engine, fail), pytest.raises(PlantedError):
        engine.adapt(images(6, 9))
    assert same_state(engine.adapter.state_dict(), undisturbed.adapter.state_dict())
    assert (engine.changes, engine.lost) == (4, None)
    for seed in range(4, 7):
        assert torch.equal(
            engine.adapt(images(6, seed)).probabilities, undisturbed.adapt(images(6, seed)).probabilities
        )


def test_no_step_copies_the_state(bundle, images, monkeypatch) -> None:
    engine = Engine(Adapters(bundle))
    monkeypatch.setattr("vcotta.methods.base.adapter_state", lambda *_: pytest.fail("the state was copied"))
    for seed in range(3):
        engine.adapt(images(6, seed))


def test_the_journal_stays_within_its_bounds_and_a_step_can_still_be_undone(bundle, images) -> None:
    one = images(6).nbytes
    for bounds in ({"journal_batches": 3}, {"journal_bytes": 3 * one}):
        engine, undisturbed = Engine(Adapters(bundle), **bounds), Engine(Adapters(bundle))
        for seed in range(8):
            engine.adapt(images(6, seed))
            undisturbed.adapt(images(6, seed))
            assert len(engine._journal) == (seed + 1) % 3
        with broken(engine, fail_after_the_step), pytest.raises(PlantedError):
            engine.adapt(images(6, 9))
        assert same_state(engine.adapter.state_dict(), undisturbed.adapter.state_dict())
        engine.store.close()


def test_without_a_state_folder_restore_points_are_in_a_temporary_folder(bundle, images) -> None:
    engine = Engine(Adapters(bundle), journal_batches=1)
    engine.adapt(images(6))
    place = engine.store._restore_point
    assert place.exists()
    engine.store.close()
    assert not place.exists()


def test_images_that_came_as_bytes_take_a_quarter_of_the_journal_and_are_replayed_exactly(bundle, images) -> None:
    engine, undisturbed = Engine(Adapters(bundle)), Engine(Adapters(bundle))
    pixels = images(6).mul(255).round().to(torch.uint8).float().div(255)
    for one in (engine, undisturbed):
        one.adapt(pixels)
    assert engine._journal[0].nbytes * 4 == pixels.nbytes
    with broken(engine, fail_after_the_step), pytest.raises(PlantedError):
        engine.adapt(images(6, 9))
    assert same_state(engine.adapter.state_dict(), undisturbed.adapter.state_dict())


def test_a_reset_survives_a_kill(bundle, images, tmp_path) -> None:
    engine = Engine(Adapters(bundle), store=StateStore(tmp_path / "state", bundle))
    engine.resume()
    engine.adapt(images(8, 1))
    engine.save()
    engine.reset()
    again = Engine(Adapters(bundle), store=StateStore(tmp_path / "state", bundle))  # the first was killed
    again.resume()
    assert (again.adapter.steps, again.changes) == (0, engine.changes)


def test_a_reset_starts_a_new_journal(bundle, images, tmp_path) -> None:
    engine, undisturbed = Engine(Adapters(bundle), store=StateStore(tmp_path, bundle)), Engine(Adapters(bundle))
    engine.adapt(images(6, 1))
    engine.save()
    engine.adapt(images(6, 2))
    engine.reset()
    with broken(engine, fail_after_the_step), pytest.raises(PlantedError):
        engine.adapt(images(6, 9))
    assert same_state(engine.adapter.state_dict(), undisturbed.adapter.state_dict())


def test_a_restarted_engine_undoes_steps_back_to_its_checkpoint(bundle, images, tmp_path) -> None:
    first, undisturbed = Engine(Adapters(bundle), store=StateStore(tmp_path, bundle)), Engine(Adapters(bundle))
    for engine in (first, undisturbed):
        engine.adapt(images(6, 0))
    first.save()
    again = Engine(Adapters(bundle), store=StateStore(tmp_path, bundle))
    again.resume()
    assert again.changes == 1
    with broken(again, fail_after_the_step), pytest.raises(PlantedError):
        again.adapt(images(6, 9))
    assert same_state(again.adapter.state_dict(), undisturbed.adapter.state_dict())


def test_trying_a_batch_out_changes_nothing(bundle, images) -> None:
    engine, undisturbed = Engine(Adapters(bundle)), Engine(Adapters(bundle))
    for one in (engine, undisturbed):
        one.adapt(images(6, 0))
    tried = engine.try_out(images(6, 1)).probabilities
    assert torch.equal(tried, undisturbed.try_out(images(6, 1)).probabilities)
    assert engine.changes == 1
    assert torch.equal(engine.adapt(images(6, 1)).probabilities, tried)


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize("ruin", [damage, Path.unlink])
def test_a_state_that_cannot_be_restored_is_not_served_or_saved_until_a_reset(bundle, images, tmp_path, ruin) -> None:
    engine = Engine(Adapters(bundle), store=StateStore(tmp_path, bundle))
    engine.adapt(images(6, 0))
    engine.save()
    ruin(engine.store._restore_point)
    with broken(engine, fail_after_the_step), pytest.raises(StateLostError, match="could not be undone"):
        engine.adapt(images(6, 9))
    for refused in (engine.adapt, engine.predict, engine.try_out):
        with pytest.raises(StateLostError):
            refused(images(6, 1))
    assert not engine.save()
    assert not engine.saved
    engine.reset()
    assert torch.equal(
        engine.adapt(images(6, 0)).probabilities, Engine(Adapters(bundle)).adapt(images(6, 0)).probabilities
    )


def test_without_a_restore_point_steps_continue_and_a_failed_one_is_not_served(bundle, images, tmp_path) -> None:
    failures: list[int] = []
    (tmp_path / "checkpoints").write_text("a file where the folder of the checkpoints should be")
    store = StateStore(tmp_path, bundle, on_failure=lambda: failures.append(1))
    engine = Engine(Adapters(bundle), store=store, journal_batches=2)
    for seed in range(3):
        engine.adapt(images(6, seed))
    assert len(failures) == 1
    with broken(engine, fail_after_the_step), pytest.raises(StateLostError):
        engine.adapt(images(6, 9))
    (tmp_path / "checkpoints").unlink()
    engine.reset()
    for seed in range(3):
        engine.adapt(images(6, seed))
    with broken(engine, fail_after_the_step), pytest.raises(PlantedError):
        engine.adapt(images(6, 9))
    assert engine.changes == 7
