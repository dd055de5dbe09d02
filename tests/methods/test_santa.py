from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import BN, SANTA, SANTAConfig, build_adapter, configure, santa


@pytest.fixture
def prepared(tiny, images):
    def make(model: nn.Module | None = None, runtime: Runtime | None = None, **options):
        source = [(images(12, seed), torch.arange(12) % 4) for seed in range(2)]
        return build_adapter("santa", model or tiny(), source=source, runtime=runtime, **options)

    return make


def parameters(adapter, role: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks[role].parameters()]


def features(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What the classifier of a tiny network reads, under the statistics of the batch."""
    net.train()
    x = net.norm1(net.conv1(x)).relu()
    return net.norm2(net.conv2(x)).relu().mean((2, 3))


def contrast(projector: nn.Module, views: list[torch.Tensor], temperature: float) -> torch.Tensor:
    """The contrastive loss, vector by vector; those of an image are as far apart as there are images."""
    v, n = F.normalize(projector(torch.cat(views)), dim=1), len(views[0])
    losses = []
    for u in range(len(v)):
        others = [k for k in range(len(v)) if k != u]
        scores = (v[others] @ v[u] / temperature).exp()
        losses += [-(scores[i] / scores.sum()).log() for i, k in enumerate(others) if k % n == u % n]
    return torch.stack(losses).mean()


def test_the_first_prediction_is_that_of_bn_for_any_step(prepared, tiny, images) -> None:
    assert torch.equal(prepared(lr=0.5)(images()), BN(tiny())(images()))


def test_a_step_is_that_of_the_formulas(prepared, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(santa, "random_view", lambda images, flip: 1 - images.flip(-1))
    source = tiny()
    source.fc.weight.data.mul_(50)  # so that predictions are not all the same
    settings = {"lr": 0.01, "optimizer": "sgd", "anchor": 2.0, "contrast": 0.5, "temperature": 0.3}
    adapter = prepared(source, Runtime(precision="fp64"), **settings)
    adapter(images(seed=1))  # from here on the model is not the anchor
    model, projector = (copy.deepcopy(adapter.networks[role]) for role in ("model", "projector"))
    trained = [p for p in [*model.parameters(), *projector.parameters()] if p.requires_grad]
    sgd = torch.optim.SGD(trained, lr=0.01, momentum=0.9, nesterov=True)
    sgd.load_state_dict(copy.deepcopy(adapter.optimizer.state_dict()))

    x, prototypes = images().double(), adapter.prepared["prototypes"]
    h, h_view = features(model, x), features(model, 1 - x.flip(-1))
    p, p_view = model.fc(h).softmax(1), model.fc(h_view).softmax(1)
    log_a = source.double().fc(features(source, x)).log_softmax(1).detach()
    anchoring = (-0.5 * p * log_a - 0.5 * p_view * log_a).sum(1).mean()
    nearest, of_view = (F.cosine_similarity(f[:, None], prototypes, dim=-1).argmax(1) for f in (h, h_view))
    assert not torch.equal(nearest, of_view)
    loss = 2 * anchoring + 0.5 * contrast(projector, [prototypes[nearest], h, h_view], 0.3)
    loss.backward()
    sgd.step()

    assert torch.allclose(adapter(images()), p.log(), atol=1e-9)
    assert adapter.last["anchoring"] == pytest.approx(anchoring.item(), abs=1e-9)
    assert adapter.last["loss"] == pytest.approx(loss.item(), abs=1e-9)
    for role, expected in (("model", model), ("projector", projector)):
        for ours, theirs in zip(parameters(adapter, role), expected.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-9)


def test_only_normalisation_and_projector_move_and_prototypes_never(prepared, images) -> None:
    adapter = prepared(lr=0.01)
    prototypes, projector = adapter.prepared["prototypes"].clone(), parameters(adapter, "projector")
    for seed in range(3):
        adapter(images(seed=seed))
    model = adapter.networks["model"]
    for layer, moved in (("conv1", False), ("norm1", True), ("conv2", False), ("norm2", True), ("fc", False)):
        same = torch.equal(getattr(model, layer).weight, getattr(adapter.start, layer).weight)
        assert same is not moved
    assert not any(map(torch.equal, projector, parameters(adapter, "projector")))
    assert torch.equal(prototypes, adapter.prepared["prototypes"])


def test_without_contrast_the_projector_is_not_trained(prepared, images) -> None:
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


def test_prototypes_that_are_not_finite_are_refused(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.methods.santa.source_prototypes", lambda *_: torch.full((4, 8), torch.nan))
    with pytest.raises(ValueError, match=r"santa learns from source data to be finite, but its prototypes hold NaN"):
        build_adapter("santa", tiny(), source=[(images(12), torch.arange(12) % 4)])


def test_santa_must_be_prepared_on_source_data(tiny, images) -> None:
    with pytest.raises(ValueError, match="class prototypes"):
        SANTA(tiny())(images())


@pytest.mark.filterwarnings("ignore:TinyNet has no normalisation layer")
def test_a_network_without_normalisation_is_not_adapted(tiny, images) -> None:
    source = [(images(12), torch.arange(12) % 4)]
    adapter = build_adapter("santa", tiny("none"), source=source)
    adapter(images())
    assert adapter.optimizer is None
    assert (adapter.last["forwards"], adapter.last["backwards"]) == (1, 0)


def test_settings_by_data_set_and_wrong_ones() -> None:
    assert SANTAConfig() == SANTAConfig(lr=1e-3, optimizer="adam", anchor=1.0, contrast=1.0, temperature=0.1)
    assert configure("santa", dataset="imagenet") == SANTAConfig(lr=0.01, optimizer="sgd")
    for wrong in ({"lr": -1.0}, {"anchor": -1.0}, {"contrast": -0.1}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SANTAConfig(**wrong)
