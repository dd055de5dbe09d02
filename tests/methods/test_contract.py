"""What every method promises, checked for each of them in the same words."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import vcotta
from vcotta import build_adapter, list_methods, to_variational

from .promises import PROMISES

METHODS = list_methods()
TRAINED = [name for name in METHODS if vcotta.methods.METHODS[name].facts.trains != "nothing"]


def build(name: str, model: nn.Module, **options) -> vcotta.Adapter:
    method = vcotta.methods.METHODS[name]
    if method.needs_variational and not vcotta.bayes.is_variational(model):
        model = to_variational(model)
    if method.needs_source:
        draws = torch.Generator().manual_seed(0)
        classes = [module for module in model.modules() if isinstance(module, nn.Linear)][-1].out_features
        labels = torch.arange(24) % classes
        options["source"] = [(torch.rand(24, 3, 8, 8, generator=draws), labels) for _ in range(2)]
    return build_adapter(name, model, **(PROMISES[name].options | options))


def test_every_method_has_a_promise_and_facts() -> None:
    assert list(PROMISES) == METHODS
    assert all(vcotta.methods.METHODS[name].facts.venue for name in METHODS)


def stream(images, batches: int = 4):
    return [images(n=6, seed=seed) for seed in range(batches)]


def snapshot(adapter: vcotta.Adapter) -> dict[str, torch.Tensor]:
    state = adapter.state_dict()
    tensors = {f"{role}.{key}": value for role, net in state["networks"].items() for key, value in net.items()}
    return tensors | {f"memory.{key}": value for key, value in state["memory"].items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", [name for name in METHODS if vcotta.methods.METHODS[name].needs_source])
def test_source_images_of_another_network_are_refused(name, tiny) -> None:
    with pytest.raises(ValueError, match="does not take images of shape"):
        build_adapter(name, tiny(), source=[(torch.rand(8, 1, 8, 8), torch.arange(8) % 4)])


@pytest.mark.parametrize("name", ["vcotta", "petal", "rmt", "santa", "obao"])
def test_source_labels_of_another_network_are_refused_by_those_who_use_them(name, tiny) -> None:
    with pytest.raises(ValueError, match="0 to 3, one for each output of the network, but got 0 to 7"):
        build_adapter(name, tiny(), source=[(torch.rand(8, 3, 8, 8), torch.arange(8))])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("size", [(8, 8), (8, 14), (11, 7)])
@pytest.mark.filterwarnings("ignore:TinyNet has no normalisation layer")
def test_outputs_are_log_probabilities_for_any_network_and_image_size(name, norm, size, tiny, images) -> None:
    adapter = build(name, tiny(norm))
    for seed, n in enumerate((6, 1, 3)):  # full batch, single image, short last batch
        output = adapter(images(n, seed, size=size))
        assert output.shape == (n, 4)
        assert output.isfinite().all()
        assert torch.allclose(output.exp().sum(-1), torch.ones(n), atol=1e-5)
        assert not output.requires_grad
    assert adapter.steps == 3
    assert adapter.skipped == 0


@pytest.mark.parametrize("name", [name for name in METHODS if PROMISES[name].before])
def test_the_first_prediction_comes_from_before_any_update(name, tiny, images) -> None:
    still, eager = build(name, tiny(), **_lr(name, 0.0)), build(name, tiny(), **_lr(name, 0.1))
    assert torch.equal(still(images()), eager(images()))


def _lr(name: str, lr: float) -> dict[str, float]:
    return {"lr": lr} if name in TRAINED else {}


@pytest.mark.parametrize("name", [name for name in METHODS if PROMISES[name].still])
def test_without_a_step_a_method_is_its_fixed_point(name, tiny, images) -> None:
    promise = PROMISES[name]
    adapter, fixed = build(name, tiny(), lr=0.0, **promise.still_options), build(promise.still, tiny())
    for batch in stream(images):
        assert torch.allclose(adapter(batch), fixed(batch), atol=1e-5)


def _declared(net: nn.Module, trains: str) -> set[str]:
    """The parameters that a method's facts allow it to train."""
    norm = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
    kinds = {"convolutions": (nn.Conv2d,), "normalisation": norm}
    parts = trains.split(", ") if trains in ("normalisation", "convolutions, normalisation") else []
    assert parts or trains in ("everything", "everything but the classifier")
    head = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)][-1]
    found = set()
    for name, module in net.named_modules():
        if any(isinstance(module, kinds[part]) for part in parts) or (
            not parts and (trains == "everything" or name != head)
        ):
            found |= {f"{name}.{key}" for key, _ in module.named_parameters(recurse=False)}
    return found


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_trained_is_what_the_facts_tell(name, tiny) -> None:
    model = tiny()
    adapter = build(name, model)
    (net,) = (net for role, net in adapter.networks.items() if role in ("model", "student"))
    trained = {id(p) for group in adapter.optimizer.param_groups for p in group["params"]}
    ours = {key for key, p in net.named_parameters() if id(p) in trained}
    assert ours
    assert ours <= _declared(net, vcotta.methods.METHODS[name].facts.trains)


@pytest.mark.parametrize("name", TRAINED)
def test_adapting_changes_what_is_trained_and_nothing_else(name, tiny, images) -> None:
    adapter = build(name, tiny(), lr=0.01)
    before = snapshot(adapter)
    for batch in stream(images):
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
        if role in PROMISES[name].averaged or id(p) in trained
    }
    assert changed & free
    statistics = {key for key in changed if "running" in key or "tracked" in key}
    assert not statistics or PROMISES[name].moves_statistics
    assert changed - statistics <= free


@pytest.mark.parametrize("name", METHODS)
def test_reset_is_bit_exact(name, tiny, images) -> None:
    adapter = build(name, tiny(), seed=3)
    before = snapshot(adapter)
    first = [adapter(batch) for batch in stream(images)]
    adapter.reset()
    assert same(snapshot(adapter), before)
    assert adapter.steps == 0
    again = [adapter(batch) for batch in stream(images)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_resumed_stream_equals_uninterrupted_stream(name, tiny, images) -> None:
    whole, first = build(name, tiny(), seed=3), build(name, tiny(), seed=3)
    expected = [whole(batch) for batch in stream(images)]
    for batch in stream(images)[:2]:
        first(batch)
    second = build(name, tiny(seed=9), seed=8)  # other weights and another seed: all of it comes from the state
    second.load_state_dict(first.state_dict())
    resumed = [second(batch) for batch in stream(images)[2:]]
    assert all(torch.equal(a, b) for a, b in zip(expected[2:], resumed, strict=True))
    assert second.steps == 4
    assert same(snapshot(second), snapshot(whole))
    second.reset()
    assert torch.equal(second(stream(images)[0]), expected[0])


@pytest.mark.parametrize("name", METHODS)
def test_nobody_elses_random_numbers_are_disturbed(name, tiny, images) -> None:
    model, batch = tiny(), images()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    adapter = build(name, model)  # and prepare it
    first = adapter(batch)
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert before[0] == after[0]
    assert all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert torch.equal(before[2], after[2])
    torch.manual_seed(99)
    assert torch.equal(build(name, model)(batch), first)
    adapter.reset()
    assert torch.equal(adapter(batch), first)


@pytest.mark.parametrize("name", METHODS)
def test_the_callers_model_and_modes_are_left_alone(name, tiny, images) -> None:
    model = tiny().train()
    if name == "vcotta":
        model = to_variational(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    adapter = build(name, model)
    first = adapter(images())
    assert model.training
    assert same(before, model.state_dict())
    assert torch.equal(first, build(name, model.eval())(images()))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(name, context, tiny, images) -> None:
    expected = build(name, tiny())
    adapter = build(name, tiny())
    for batch in stream(images, 2):
        with context():
            output = adapter(batch.clone())
        assert torch.equal(output, expected(batch))


@pytest.mark.parametrize("name", METHODS)
def test_building_resetting_and_resuming_inside_inference_mode_do_no_harm(name, tiny, images) -> None:
    expected, state = build(name, tiny()), build(name, tiny()).state_dict()
    with torch.inference_mode():
        adapter = build(name, tiny())
        adapter.reset()
        adapter.load_state_dict(state)
    for seed in range(2):
        assert torch.equal(adapter(images(seed=seed)), expected(images(seed=seed)))


@pytest.mark.parametrize("name", METHODS)
def test_the_callers_images_get_no_gradient(name, tiny, images) -> None:
    batch = images().requires_grad_()
    build(name, tiny())(batch)
    assert batch.grad is None


@pytest.mark.parametrize("name", TRAINED)
def test_an_interrupted_step_does_not_spoil_the_next(name, tiny, images) -> None:
    adapter, clean = build(name, tiny()), build(name, tiny())
    for parameter in adapter.optimizer.param_groups[0]["params"]:
        parameter.grad = torch.full_like(parameter, 1e3)  # what an exception in the middle of backward leaves
    assert torch.equal(adapter(images()), clean(images()))
    assert same(snapshot(adapter), snapshot(clean))


@pytest.mark.parametrize("name", METHODS)
def test_gradients_never_reach_source_or_teacher_and_none_are_left(name, tiny, images) -> None:
    adapter = build(name, tiny())
    adapter(images())
    for net in (adapter.start, *adapter.networks.values()):
        assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(p.requires_grad for p in adapter.start.parameters())
    for role in set(PROMISES[name].averaged) & set(adapter.networks):
        assert not any(p.requires_grad for p in adapter.networks[role].parameters())


@pytest.mark.parametrize("name", [name for name in METHODS if PROMISES[name].single is not None])
def test_a_single_image_is_normalised_by_the_source_statistics(name, tiny, images) -> None:
    model, image = tiny(), images(1)
    adapter = build(name, model, **PROMISES[name].single)
    assert torch.allclose(adapter(image), model(image).log_softmax(-1), atol=1e-6)


class Fragile(nn.Module):
    """A network whose output overflows on a bright first pixel."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return torch.where(x[:, :1, 0, 0] > 0.99, float("inf"), 1.0) * self.body(x)


@pytest.mark.parametrize("name", TRAINED)
def test_a_loss_that_is_not_finite_leaves_the_weights_and_is_reported(name, tiny, images) -> None:
    adapter = build(name, Fragile(tiny()))
    batch = images() * 0.4  # dark enough for every view of it
    adapter(batch)
    before = snapshot(adapter)
    optimizer = adapter.state_dict()["optimizer"]
    bad = batch.clone()
    bad[0, 0, 0, 0] = 1.0
    adapter(bad)
    assert adapter.last["skipped"] is True
    assert adapter.skipped == 1
    assert same(snapshot(adapter), before)
    after = adapter.state_dict()["optimizer"]
    for index, values in optimizer["state"].items():
        assert all(torch.equal(values[key], after["state"][index][key]) for key in values)
    assert adapter(batch).isfinite().all()
    assert adapter.last["skipped"] is False


@pytest.mark.parametrize("name", TRAINED)
def test_a_first_loss_that_is_not_finite_leaves_nothing_behind(name, tiny, images) -> None:
    adapter, untouched = (build(name, Fragile(tiny())) for _ in range(2))
    batch = images() * 0.4
    bad = batch.clone()
    bad[0, 0, 0, 0] = 1.0
    adapter(bad)
    assert adapter.skipped == 1
    untouched._rng.load_state_dict(adapter._rng.state_dict())  # draws were made for the bad one, too
    for _ in range(2):
        assert torch.equal(adapter(batch), untouched(batch))
    assert same(snapshot(adapter), snapshot(untouched))


BAD = {
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


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_any_state_changes(name, case, tiny, images) -> None:
    spoil, error, text = BAD[case]
    adapter, untouched = build(name, tiny()), build(name, tiny())
    adapter(images())
    untouched(images())
    with pytest.raises(error, match=text):
        adapter(spoil(images(seed=1)))
    assert same(snapshot(adapter), snapshot(untouched))
    assert torch.equal(adapter(images(seed=2)), untouched(images(seed=2)))
    assert adapter.steps == 2


@pytest.mark.parametrize("name", METHODS)
def test_a_state_of_another_network_method_or_setting_is_refused(name, tiny, images) -> None:
    adapter = build(name, tiny())
    adapter(images())
    before = snapshot(adapter)
    with pytest.raises(ValueError, match="another network"):
        adapter.load_state_dict(build(name, tiny(classes=7)).state_dict())
    other = "bn" if name == "source" else "source"
    with pytest.raises(ValueError, match=f"one of {other}"):
        adapter.load_state_dict(build(other, tiny()).state_dict())
    with pytest.raises(ValueError, match="missing"):
        adapter.load_state_dict({"method": name})
    with pytest.raises(ValueError, match="counters"):
        adapter.load_state_dict(build(name, tiny(seed=5)).state_dict() | {"counters": {}})
    if _lr(name, 1.0):
        with pytest.raises(ValueError, match=r"lr=0\.5"):
            adapter.load_state_dict(build(name, tiny(), lr=0.5).state_dict())
    assert same(snapshot(adapter), before)


@pytest.mark.parametrize("name", METHODS)
def test_predicting_says_what_the_next_call_answers_and_changes_nothing(name, tiny, images) -> None:
    adapter, untouched = build(name, tiny()), build(name, tiny())
    for batch in stream(images, 2):
        adapter(batch), untouched(batch)
    last, before = adapter.last, torch.get_rng_state()
    found = [adapter.predict(images(seed=9), samples=2, coverage=0.5) for _ in range(2)]
    assert torch.equal(before, torch.get_rng_state())
    assert adapter.last is last
    assert torch.equal(found[0].probabilities, found[1].probabilities)
    answer = adapter(images(seed=9))
    assert torch.equal(answer, untouched(images(seed=9)))
    assert torch.equal(found[0].probabilities, answer.exp())
    assert same(snapshot(adapter), snapshot(untouched))
    assert (found[0].alpha is not None) == (name == "vcotta")
    if name != "vcotta":
        assert torch.equal(found[0].predictive_entropy, found[0].expected_entropy)
        assert not found[0].mutual_information.any()
    single = adapter.predict(images(1))
    assert single.probabilities.shape == (1, 4)
    with pytest.raises(ValueError, match="Divide by 255"):
        adapter.predict(255 * images())


@pytest.mark.parametrize("name", METHODS)
def test_passes_are_counted(name, tiny, images) -> None:
    adapter = build(name, tiny())
    adapter(images())
    assert (adapter.last["forwards"], adapter.last["backwards"]) == PROMISES[name].passes


def test_a_refused_state_leaves_a_method_that_was_not_prepared_as_it_was(tiny, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    prepared = build_adapter("cotta", tiny(), source=source, views=2)
    adapter = build_adapter("cotta", tiny(), views=2)
    adapter(images())
    before, threshold = snapshot(adapter), adapter.threshold
    with pytest.raises(ValueError, match="another network"):
        adapter.load_state_dict(build_adapter("cotta", tiny(classes=7), source=source, views=2).state_dict())
    assert same(snapshot(adapter), before)
    assert (adapter.steps, adapter.threshold) == (1, threshold)
    adapter.load_state_dict(prepared.state_dict())
    assert adapter.threshold == prepared.threshold != threshold


def test_preparing_twice_is_preparing_once_and_draws_from_nobody_else(tiny, images) -> None:
    source = [(images(24), torch.arange(24) % 4)]
    model, before = tiny(), torch.get_rng_state()
    adapter = build_adapter("rmt", model, source=source, warm_up_images=24, replay=1.0, replay_images=8)  # drawn
    assert torch.equal(before, torch.get_rng_state())
    once = {name: tensor.clone() for name, tensor in adapter.prepared.items()}
    adapter.prepare(source)
    assert same(once, adapter.prepared)
