from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vcotta.methods import BN, ROID, ROIDConfig, build_adapter, configure, roid
from vcotta.methods.roid import certainty_and_diversity
from vcotta.nn.batch_norm import freeze_statistics, use_batch_statistics


def norm_parameters(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in net.named_parameters() if "norm" in name}


def identity(monkeypatch) -> None:
    """Let views be the images themselves."""

    def same(images, flip, kind):
        assert kind == "roid"
        return images

    monkeypatch.setattr(roid, "random_view", same)


def test_without_a_step_the_network_stays_at_the_source(tiny, images) -> None:
    adapter, bn = ROID(tiny(), ROIDConfig(lr=0.0, prior_correction="none")), BN(tiny())
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), bn(images(seed=seed)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(adapter.networks["model"].parameters(), adapter.start.parameters(), strict=True)
    )


def test_source_momentum_of_zero_returns_to_the_source_after_each_step(tiny, images) -> None:
    adapter = ROID(tiny(), ROIDConfig(source_momentum=0.0))
    for seed in range(2):
        adapter(images(seed=seed))
        for ours, source in zip(adapter.networks["model"].parameters(), adapter.start.parameters(), strict=True):
            assert torch.equal(ours, source)


def test_the_step_is_the_gradient_of_the_official_loss_and_then_the_pull(tiny, images, monkeypatch) -> None:
    identity(monkeypatch)
    x, lr, momentum = images(), 0.1, 0.9
    adapter = ROID(tiny(), ROIDConfig(lr=lr, optimizer="sgd", source_momentum=momentum))
    net = copy.deepcopy(tiny())
    freeze_statistics(net)
    use_batch_statistics(net, True)
    z = net(x)
    p = z.softmax(-1)
    weights = certainty_and_diversity(p.log(), torch.full((4,), 0.25), 1 / 3).detach()
    mask = weights > 0
    clipped = p.clamp(0, 0.99)
    slr = -(clipped * torch.log(clipped / (1 - clipped) + 1e-5)).sum(1)
    za = net(x[mask])
    q = za.softmax(-1)
    sce = -0.5 * (p[mask] * q.log()).sum(1) - 0.5 * (q * p[mask].log()).sum(1)
    loss = ((slr * weights)[mask].sum() + (sce * weights[mask]).sum()) / len(x)
    loss.backward()

    adapter(x)
    assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert 0 < mask.sum() < len(x)
    for name, p in net.named_parameters():
        if "norm" in name:
            moved = p - 1.9 * lr * p.grad  # Nesterov's first step
            expected = momentum * moved + (1 - momentum) * p
            assert torch.allclose(adapter.networks["model"].get_parameter(name), expected, atol=1e-4)


def test_only_normalisation_changes_and_the_average_stays_a_probability_vector(tiny, images) -> None:
    adapter = ROID(tiny(), ROIDConfig(lr=0.01))
    expected = torch.full((4,), 0.25)
    for seed in range(3):
        output = build_adapter("bn", adapter.networks["model"])(images(seed=seed))
        adapter(images(seed=seed))
        expected = 0.9 * expected + 0.1 * output.exp().mean(0)
        average = adapter.memory["average_prediction"]
        assert average.sum().item() == pytest.approx(1, abs=1e-5)
        assert torch.allclose(average, expected, atol=1e-5)
    for (name, ours), source in zip(
        adapter.networks["model"].named_parameters(), adapter.start.parameters(), strict=True
    ):
        assert torch.equal(ours, source) != ("norm" in name)


@pytest.mark.parametrize("batch", [1, 4])
def test_equal_predictions_take_no_step_and_are_still_pulled_to_the_source(batch, tiny, images) -> None:
    adapter = ROID(tiny(), ROIDConfig(lr=0.1))
    adapter(images())
    before, state = norm_parameters(adapter.networks["model"]), adapter.state_dict()["optimizer"]
    assert torch.isfinite(adapter(images(1).expand(batch, -1, -1, -1))).all()
    assert (adapter.last["backwards"], adapter.last["forwards"], adapter.last["kept"]) == (0, 1, 0)
    assert adapter.skipped == 0
    after = norm_parameters(adapter.networks["model"])
    sources = norm_parameters(adapter.start)
    for name in before:
        assert torch.allclose(after[name], 0.99 * before[name] + 0.01 * sources[name], atol=1e-6)
    for index, values in adapter.state_dict()["optimizer"]["state"].items():
        assert all(torch.equal(values[key], state["state"][index][key]) for key in values)


def test_the_returned_ranking_is_the_official_one(tiny, images) -> None:
    x = images(40)
    net = copy.deepcopy(tiny())
    freeze_statistics(net)
    use_batch_statistics(net, True)
    z = net(x).detach()
    prior = z.softmax(1).mean(0)
    smooth = max(1 / 40, 1 / 4) / prior.max()
    official = z * (prior + smooth) / (1 + smooth * 4)
    assert torch.equal(ROID(tiny())(x).argmax(-1), official.argmax(-1))


def test_settings_by_data_set_and_wrong_ones() -> None:
    assert configure("roid", dataset="imagenet") == ROIDConfig(lr=2.5e-4, optimizer="sgd")
    assert not configure("roid", dataset="digits").flip
    for wrong in (
        {"lr": -1.0},
        {"source_momentum": 1.1},
        {"probability_momentum": -0.1},
        {"temperature": 0.0},
        {"prior_correction": "logit"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ROIDConfig(**wrong)
