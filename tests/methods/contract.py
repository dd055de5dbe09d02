"""What every method promises, as functions that check one method; tests apply them to each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vcotta import to_variational
from vcotta.methods import find_method

from .subject import Subject, claim, same, snapshot

__all__ = ["BAD_INPUT", "check_bad_input", "check_grad_mode", "check_outputs"]


def check_outputs(subject: Subject, norm: str, size: tuple[int, int]) -> None:
    """Outputs are log-probabilities for any network and image size."""
    adapter = subject.build(subject.network(norm))
    for seed, n in enumerate((6, 1, 3)):  # full batch, single image, short last batch
        output = adapter(subject.images(n, seed, size=size))
        assert output.shape == (n, 4)
        assert output.isfinite().all()
        assert torch.allclose(output.exp().sum(-1), torch.ones(n), atol=1e-5)
        assert not output.requires_grad
    assert adapter.steps == 3
    assert adapter.skipped == 0


@claim(lambda subject: subject.promise.before)
def first_prediction_comes_from_before_any_update(subject: Subject) -> None:
    still, eager = subject.build(**subject.lr(0.0)), subject.build(**subject.lr(0.1))
    assert torch.equal(still(subject.images()), eager(subject.images()))


@claim(lambda subject: subject.promise.still is not None)
def without_a_step_it_is_its_fixed_point(subject: Subject) -> None:
    assert subject.promise.still is not None
    adapter = subject.build(lr=0.0, **subject.promise.still_options)
    fixed = subject.other(subject.promise.still)
    for batch in subject.stream():
        assert torch.allclose(adapter(batch), fixed(batch), atol=1e-5)


def _declared(net: nn.Module, trains: str) -> set[str]:
    """The parameters that a method's card allows it to train."""
    if trains == "attached modules":
        return {name for name, _ in net.named_parameters() if "attached." in name}
    norm = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    kinds = {"convolutions": (nn.Conv2d,), "normalisation": norm}
    parts = trains.split(", ") if trains in ("normalisation", "convolutions, normalisation") else []
    if trains == "prompts":  # a network of their own
        return {key for key, _ in net.named_parameters()}
    assert parts or trains in ("everything", "everything but the classifier")
    head = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    found = set()
    for name, module in net.named_modules():
        if any(isinstance(module, kinds[part]) for part in parts) or (
            not parts and (trains == "everything" or name != head)
        ):
            found |= {f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)}
    return found


@claim(lambda subject: subject.trains)
def it_trains_what_its_card_says(subject: Subject) -> None:
    adapter = subject.build()
    (net,) = (net for role, net in adapter.networks.items() if role in ("model", "student"))
    trained = {id(p) for group in adapter.optimizer.param_groups for p in group["params"]}
    ours = {key for key, p in net.named_parameters() if id(p) in trained}
    assert ours
    assert ours <= _declared(net, find_method(subject.name).card.trains)


@claim(lambda subject: subject.trains)
def adapting_changes_what_is_trained_and_nothing_else(subject: Subject) -> None:
    adapter = subject.build(lr=0.01)
    before = snapshot(adapter)
    for batch in subject.stream():
        adapter(batch)
    changed = {
        key
        for key, value in snapshot(adapter).items()
        if not key.startswith("memory.") and not torch.equal(value, before[key])
    }
    trained = {id(p) for group in adapter.optimizer.param_groups for p in group["params"]}
    free = {
        f"{role}.{key}"
        for role, net in adapter.networks.items()
        for key, p in net.named_parameters()
        if role in subject.promise.averaged or id(p) in trained
    }
    assert changed & free
    statistics = {key for key in changed if "running" in key or "tracked" in key}
    assert not statistics or subject.promise.moves_statistics
    assert changed - statistics <= free


@claim()
def reset_is_bit_exact(subject: Subject) -> None:
    adapter = subject.build(seed=3)
    before = snapshot(adapter)
    first = [adapter(batch) for batch in subject.stream()]
    adapter.reset()
    assert same(snapshot(adapter), before)
    assert adapter.steps == 0
    again = [adapter(batch) for batch in subject.stream()]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@claim()
def resumed_stream_equals_uninterrupted_stream(subject: Subject) -> None:
    whole, first = subject.build(seed=3), subject.build(seed=3)
    expected = [whole(batch) for batch in subject.stream()]
    for batch in subject.stream()[:2]:
        first(batch)
    state = first.state_dict()
    model = subject.network(seed=0 if "source" in state else 9)
    second = subject.build(model, seed=8)  # another seed and, unless the state leaves them out, other weights
    second.load_state_dict(state)
    resumed = [second(batch) for batch in subject.stream()[2:]]
    assert all(torch.equal(a, b) for a, b in zip(expected[2:], resumed, strict=True))
    assert second.steps == 4
    assert same(snapshot(second), snapshot(whole))
    second.reset()
    assert torch.equal(second(subject.stream()[0]), expected[0])


@claim()
def random_numbers_of_others_are_not_disturbed(subject: Subject) -> None:
    model, batch = subject.network(), subject.images()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    adapter = subject.build(model)  # and prepare it
    first = adapter(batch)
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert before[0] == after[0]
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert torch.equal(before[2], after[2])
    torch.manual_seed(99)
    assert torch.equal(subject.build(model)(batch), first)
    adapter.reset()
    assert torch.equal(adapter(batch), first)


@claim()
def the_callers_model_and_modes_are_not_changed(subject: Subject) -> None:
    model = subject.network().train()
    if find_method(subject.name).needs_variational:
        model = to_variational(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    adapter = subject.build(model)
    first = adapter(subject.images())
    assert model.training
    assert same(before, model.state_dict())
    assert torch.equal(first, subject.build(model.eval())(subject.images()))


def check_grad_mode(subject: Subject, context: Callable[[], Any]) -> None:
    """The caller's grad mode does not matter."""
    expected, adapter = subject.build(), subject.build()
    for batch in subject.stream(2):
        with context():
            output = adapter(batch.clone())
        assert torch.equal(output, expected(batch))


@claim()
def building_resetting_and_resuming_work_inside_inference_mode(subject: Subject) -> None:
    expected, state = subject.build(), subject.build().state_dict()
    with torch.inference_mode():
        adapter = subject.build()
        adapter.reset()
        adapter.load_state_dict(state)
    for seed in range(2):
        assert torch.equal(adapter(subject.images(seed=seed)), expected(subject.images(seed=seed)))


@claim()
def the_callers_images_get_no_gradient(subject: Subject) -> None:
    batch = subject.images().requires_grad_()
    subject.build()(batch)
    assert batch.grad is None


@claim(lambda subject: subject.trains)
def an_interrupted_step_does_not_spoil_the_next(subject: Subject) -> None:
    adapter, clean = subject.build(), subject.build()
    for parameter in adapter.optimizer.param_groups[0]["params"]:
        parameter.grad = torch.full_like(parameter, 1e3)  # as an exception in the middle of backward leaves
    assert torch.equal(adapter(subject.images()), clean(subject.images()))
    assert same(snapshot(adapter), snapshot(clean))


@claim()
def gradients_never_reach_source_or_teacher_and_none_are_left(subject: Subject) -> None:
    adapter = subject.build()
    adapter(subject.images())
    for net in (adapter.start, *adapter.networks.values()):
        assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(p.requires_grad for p in adapter.start.parameters())
    for role in set(subject.promise.averaged) & set(adapter.networks):
        assert not any(p.requires_grad for p in adapter.networks[role].parameters())


@claim(lambda subject: subject.promise.single is not None)
def a_single_image_is_normalised_by_the_source_statistics(subject: Subject) -> None:
    assert subject.promise.single is not None
    model, image = subject.network(), subject.images(1)
    adapter = subject.build(model, **subject.promise.single)
    assert torch.allclose(adapter(image), model(image).log_softmax(-1), atol=1e-6)


class Fragile(nn.Module):
    """A network whose output overflows on a bright first pixel."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1, 0, 0] > 0.99, float("inf"), 1.0) * self.body(x)


def _good_and_bad(subject: Subject) -> tuple[Tensor, Tensor]:
    good = subject.images() * 0.4  # dark enough for every view of it
    bad = good.clone()
    bad[0, 0, 0, 0] = 1.0
    return good, bad


@claim(lambda subject: subject.trains)
def a_loss_that_is_not_finite_changes_nothing_and_is_reported(subject: Subject) -> None:
    adapter = subject.build(Fragile(subject.network()))
    good, bad = _good_and_bad(subject)
    adapter(good)
    before = snapshot(adapter)
    optimizer = adapter.state_dict()["optimizer"]
    adapter(bad)
    assert adapter.last["skipped"] is True
    assert adapter.skipped == 1
    assert same(snapshot(adapter), before)
    after = adapter.state_dict()["optimizer"]
    for index, values in optimizer["state"].items():
        assert all(torch.equal(values[key], after["state"][index][key]) for key in values)
    assert adapter(good).isfinite().all()
    assert adapter.last["skipped"] is False


@claim(lambda subject: subject.trains)
def a_first_loss_that_is_not_finite_changes_nothing(subject: Subject) -> None:
    adapter, untouched = (subject.build(Fragile(subject.network())) for _ in range(2))
    good, bad = _good_and_bad(subject)
    adapter(bad)
    assert adapter.skipped == 1
    untouched._rng.load_state_dict(adapter._rng.state_dict())  # numbers were drawn for the bad batch, too
    for _ in range(2):
        assert torch.equal(adapter(good), untouched(good))
    assert same(snapshot(adapter), snapshot(untouched))


BAD_INPUT: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "not a tensor": (lambda x: x.numpy(), TypeError, "torch.from_numpy"),
    "bytes": (lambda x: (255 * x).byte(), TypeError, r"float\(\) / 255"),
    "integers": (lambda x: x.long(), TypeError, "floats"),
    "not scaled": (lambda x: 255 * x, ValueError, "Divide by 255"),
    "normalised": (lambda x: (x - 0.5) / 0.5, ValueError, "normalisation"),
    "not a number": (lambda x: x.masked_fill(x > 0.5, float("nan")), ValueError, "NaN"),
    "infinite": (lambda x: x.masked_fill(x > 0.5, float("inf")), ValueError, "infinity"),
    "empty": (lambda x: x[:0], ValueError, "empty"),
    "single image": (lambda x: x[0], ValueError, "unsqueeze"),
    "wrong channels": (lambda x: x[:, :2], ValueError, r"\(2, 8, 8\)"),
}


def check_bad_input(subject: Subject, case: str) -> None:
    """Bad input is refused before any state changes."""
    spoil, error, text = BAD_INPUT[case]
    adapter, untouched = subject.build(), subject.build()
    adapter(subject.images())
    untouched(subject.images())
    with pytest.raises(error, match=text):
        adapter(spoil(subject.images(seed=1)))
    assert same(snapshot(adapter), snapshot(untouched))
    assert torch.equal(adapter(subject.images(seed=2)), untouched(subject.images(seed=2)))
    assert adapter.steps == 2


@claim()
def a_state_of_another_network_method_or_setting_is_refused(subject: Subject) -> None:
    adapter = subject.build()
    adapter(subject.images())
    before = snapshot(adapter)
    with pytest.raises(ValueError, match="another network"):
        adapter.load_state_dict(subject.build(subject.network(classes=7)).state_dict())
    other = "bn" if subject.name == "source" else "source"
    with pytest.raises(ValueError, match=f"one of {other}"):
        adapter.load_state_dict(subject.other(other).state_dict())
    with pytest.raises(ValueError, match="missing"):
        adapter.load_state_dict({"method": subject.name})
    with pytest.raises(ValueError, match="counters"):
        adapter.load_state_dict(subject.build(subject.network(seed=5)).state_dict() | {"counters": {}})
    if subject.trains:
        with pytest.raises(ValueError, match=r"lr=0\.5"):
            adapter.load_state_dict(subject.build(lr=0.5).state_dict())
    assert same(snapshot(adapter), before)


@claim()
def predict_gives_what_the_next_call_returns_and_changes_nothing(subject: Subject) -> None:
    adapter, untouched = subject.build(), subject.build()
    for batch in subject.stream(2):
        adapter(batch), untouched(batch)
    last, before = adapter.last, torch.get_rng_state()
    batch = subject.images(seed=9)
    found = [adapter.predict(batch, samples=2, coverage=0.5) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert adapter.last is last
    assert torch.equal(found[0].probabilities, found[1].probabilities)
    log_probs = adapter(batch)
    assert torch.equal(log_probs, untouched(batch))
    assert torch.equal(found[0].probabilities, log_probs.exp())
    assert same(snapshot(adapter), snapshot(untouched))
    variational = find_method(subject.name).needs_variational
    assert (found[0].alpha is not None) == variational
    if not variational:
        assert torch.allclose(found[0].predictive_entropy, found[0].expected_entropy, atol=1e-6)
        assert found[0].mutual_information.max() < 1e-6
    assert adapter.predict(subject.images(1)).probabilities.shape == (1, 4)
    with pytest.raises(ValueError, match="Divide by 255"):
        adapter.predict(255 * subject.images())


@claim()
def passes_are_counted(subject: Subject) -> None:
    adapter = subject.build()
    adapter(subject.images())
    assert (adapter.last["forwards"], adapter.last["backwards"]) == subject.promise.passes
