from __future__ import annotations

import pytest
import torch

from vcotta.methods import BN, SANTA, SANTAConfig, build_adapter, santa
from vcotta.methods.losses import cross_entropy, entropy


@pytest.fixture
def prepared(tiny, images):
    def make(**options):
        source = [(images(12, seed), torch.arange(12) % 4) for seed in range(2)]
        return build_adapter("santa", tiny(), source=source, **options)

    return make


def parameters(adapter, role: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks[role].parameters()]


def test_the_first_prediction_is_that_of_bn_for_any_step(prepared, tiny, images) -> None:
    assert torch.equal(prepared(lr=0.5)(images()), BN(tiny())(images()))


def test_the_anchor_stands_inside_the_logarithm(prepared, images, monkeypatch) -> None:
    monkeypatch.setattr(santa, "random_view", lambda images, flip: images.flip(-1))
    adapter = prepared(contrast=0.0, anchor=2.0)
    adapter(images(seed=1))
    model, anchor = adapter.networks["model"], adapter.start
    p, p_view = (adapter.logits(model, x).log_softmax(-1).exp() for x in (images(), images().flip(-1)))
    a = adapter.logits(anchor, images()).log_softmax(-1)
    expected = (-0.5 * p * a - 0.5 * p_view * a).sum(-1).mean()
    adapter(images())
    assert adapter.last["anchoring"] == pytest.approx(expected.item(), abs=1e-6)
    assert adapter.last["loss"] == pytest.approx(2 * expected.item(), abs=1e-6)
    distillation = (-0.5 * a.exp() * p.log() - 0.5 * a.exp() * p_view.log()).sum(-1).mean()
    assert abs(distillation - expected) > 1e-6


def test_the_anchoring_of_two_classes_is_linear_in_the_prediction() -> None:
    p, a = torch.tensor([0.3, 0.7]), torch.tensor([0.8, 0.2])
    value = cross_entropy(p.log(), a.log()).item()
    assert value == pytest.approx(-(0.3 * torch.tensor(0.8).log() + 0.7 * torch.tensor(0.2).log()).item())
    assert value != pytest.approx(cross_entropy(a.log(), p.log()).item(), abs=1e-2)


def test_at_first_the_anchoring_of_the_clean_images_is_their_entropy(prepared, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(santa, "random_view", lambda images, flip: images)
    adapter = prepared(contrast=0.0)
    expected = entropy(BN(tiny())(images())).mean().item()
    adapter(images())
    assert adapter.last["anchoring"] == pytest.approx(expected, abs=1e-5)


def test_only_normalisation_and_projector_move_and_prototypes_never(prepared, images) -> None:
    adapter = prepared(lr=0.01)
    prototypes = adapter.prepared["prototypes"].clone()
    for seed in range(3):
        adapter(images(seed=seed))
    model = adapter.networks["model"]
    for layer, moved in (("conv1", False), ("norm1", True), ("conv2", False), ("norm2", True), ("fc", False)):
        same = torch.equal(getattr(model, layer).weight, getattr(adapter.start, layer).weight)
        assert same is not moved
    assert torch.equal(prototypes, adapter.prepared["prototypes"])


def test_without_contrast_the_projector_rests(prepared, images) -> None:
    adapter = prepared(contrast=0.0, lr=0.01)
    before, model = parameters(adapter, "projector"), parameters(adapter, "model")
    adapter(images())
    assert all(map(torch.equal, before, parameters(adapter, "projector")))
    assert not all(map(torch.equal, model, parameters(adapter, "model")))


def test_without_weights_nothing_moves(prepared, images) -> None:
    adapter = prepared(contrast=0.0, anchor=0.0, lr=0.01)
    before = [p for role in ("model", "projector") for p in parameters(adapter, role)]
    adapter(images())
    assert all(map(torch.equal, before, [p for role in ("model", "projector") for p in parameters(adapter, role)]))


def test_the_source_is_read_once_and_never_at_test_time(tiny, images) -> None:
    source = ((images(12, seed), torch.arange(12) % 4) for seed in range(2))
    adapter = build_adapter("santa", tiny(), source=source)
    assert next(source, None) is None
    for seed in range(2):
        adapter(images(seed=seed))


def test_it_must_be_prepared(tiny, images) -> None:
    with pytest.raises(ValueError, match="class prototypes"):
        SANTA(tiny())(images())


@pytest.mark.filterwarnings("ignore:TinyNet has no normalisation layer")
def test_a_network_without_normalisation_is_not_adapted(tiny, images) -> None:
    source = [(images(12), torch.arange(12) % 4)]
    adapter = build_adapter("santa", tiny("none"), source=source)
    adapter(images())
    assert adapter.optimizer is None
    assert (adapter.last["forwards"], adapter.last["backwards"]) == (1, 0)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"lr": -1.0}, {"anchor": -1.0}, {"contrast": -0.1}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SANTAConfig(**wrong)
