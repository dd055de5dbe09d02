from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vcotta.methods import BN, SAR, SARConfig
from vcotta.methods.parts.losses import entropy


def trained(adapter) -> list[torch.Tensor]:
    return [p for p in adapter.networks["model"].parameters() if p.requires_grad]


def copies(adapter) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trained(adapter)]


def weights_at_each_pass(adapter, monkeypatch) -> list[list[torch.Tensor]]:
    seen, logits = [], adapter.logits

    def watch(net, images, **options):
        seen.append(copies(adapter))
        return logits(net, images, **options)

    monkeypatch.setattr(adapter, "logits", watch)
    return seen


def test_the_second_pass_is_rho_away_uphill(tiny, images, monkeypatch) -> None:
    adapter = SAR(tiny(), SARConfig(entropy_margin=1.1, rho=0.03))
    seen = weights_at_each_pass(adapter, monkeypatch)
    adapter(images())
    here, there = (torch.cat([w.flatten() for w in weights]) for weights in seen)
    assert (there - here).norm() == pytest.approx(0.03, rel=1e-3)


def test_without_a_step_the_perturbation_is_removed_exactly(tiny, images) -> None:
    adapter = SAR(tiny(), SARConfig(lr=0.0, entropy_margin=1.1, rho=0.5))
    before = copies(adapter)
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), BN(tiny())(images(seed=seed)))
    assert all(map(torch.equal, before, copies(adapter)))


def test_an_error_in_the_middle_removes_the_perturbation_too(tiny, images, monkeypatch) -> None:
    adapter = SAR(tiny(), SARConfig(entropy_margin=1.1))
    before = copies(adapter)

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(adapter, "minimise", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        adapter(images())
    assert all(map(torch.equal, before, copies(adapter)))
    monkeypatch.undo()
    assert torch.equal(adapter(images()), SAR(tiny(), SARConfig(entropy_margin=1.1))(images()))


@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_the_steps_are_those_of_sharpness_aware_sgd_on_reliable_samples(rho, tiny, images) -> None:
    def make() -> nn.Module:
        model = tiny()
        with torch.no_grad():
            model.fc.weight.mul_(6)  # entropies of all sizes
        return model

    adapter = SAR(make(), SARConfig(lr=0.1, rho=rho, entropy_margin=0.7, reset_below=0.0))
    net = make().train().requires_grad_(False)
    norms = [p.requires_grad_(True) for norm in (net.norm1, net.norm2) for p in norm.parameters()]
    sgd = torch.optim.SGD(norms, lr=0.1, momentum=0.9)
    ceiling = 0.7 * math.log(4)
    for seed in range(4):
        x = images(30, seed)
        adapter(x)
        h = entropy(net(x).log_softmax(-1))
        first = h.detach() < ceiling
        gradients = torch.autograd.grad(h[first].mean(), norms)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        steps = [rho * g / norm for g in gradients]
        with torch.no_grad():
            for p, step in zip(norms, steps, strict=True):
                p.add_(step)
        h = entropy(net(x).log_softmax(-1))
        second = first & (h.detach() < ceiling)
        assert 0 < second.sum() < 30
        assert adapter.last["kept"] == pytest.approx(second.float().mean().item())
        loss = h[second].mean()
        sgd.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p, step in zip(norms, steps, strict=True):
                p.sub_(step)
        sgd.step()
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-3)
    for ours, theirs in zip(trained(adapter), norms, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_an_empty_selection_takes_no_step(tiny, images) -> None:
    adapter, fresh = (SAR(tiny(), SARConfig(entropy_margin=margin, lr=0.1)) for margin in (0.0, 1.1))
    before = copies(adapter)
    adapter(images())
    assert all(map(torch.equal, before, copies(adapter)))
    assert adapter.memory["loss"] == torch.inf
    assert adapter.last["skipped"] is False
    assert not any(state["momentum_buffer"].any() for state in adapter.optimizer.state.values())
    assert fresh(images()).isfinite().all()


def test_the_running_loss_starts_with_the_first_and_then_moves_by_a_tenth(tiny, images) -> None:
    adapter = SAR(tiny(), SARConfig(entropy_margin=1.1, reset_below=0.0))
    adapter(images())
    first = adapter.last["loss"]
    assert adapter.memory["loss"] == pytest.approx(first)
    adapter(images(seed=1))
    assert adapter.memory["loss"] == pytest.approx(0.9 * first + 0.1 * adapter.last["loss"])


def test_a_collapsed_loss_returns_weights_and_momentum_to_the_source_bit_for_bit(tiny, images) -> None:
    adapter = SAR(tiny(), SARConfig(entropy_margin=1.1, lr=0.1))
    before = copies(adapter)
    adapter(images())
    assert adapter.last["returned"] is False
    assert not all(map(torch.equal, before, copies(adapter)))
    adapter.memory["loss"] = torch.tensor(0.01)
    adapter(images(seed=1))
    assert adapter.last["returned"] is True
    assert all(map(torch.equal, before, copies(adapter)))
    assert adapter.memory["loss"] == torch.inf  # really forgotten: it does not return again on the next batch
    fresh = SAR(tiny(), SARConfig(entropy_margin=1.1, lr=0.1))
    for seed in (2, 3):
        assert torch.equal(adapter(images(seed=seed)), fresh(images(seed=seed)))
    assert adapter.last["returned"] is False


def test_a_return_to_the_source_clears_the_momentum(tiny, images) -> None:
    adapter = SAR(tiny(), SARConfig(entropy_margin=1.1, lr=0.1))
    adapter(images())
    assert all(state["momentum_buffer"].any() for state in adapter.optimizer.state.values())
    adapter.memory["loss"] = torch.tensor(0.01)
    adapter(images(seed=1))
    assert adapter.last["returned"] is True
    assert not any(state["momentum_buffer"].any() for state in adapter.optimizer.state.values())


def test_the_last_stage_of_a_resnet_is_not_trained(images) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer3 = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
            self.layer4 = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

        def forward(self, x):
            return self.layer4(self.layer3(x).relu()).amax((2, 3))

    adapter = SAR(Net().eval(), SARConfig(entropy_margin=1.1, lr=0.1))
    adapter(images())
    changed = {
        name
        for name, tensor in adapter.networks["model"].state_dict().items()
        if not torch.equal(tensor, adapter.start.state_dict()[name])
    }
    assert changed == {"layer3.1.weight", "layer3.1.bias"}


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"rho": -0.1}, {"reset_below": -1.0}, {"entropy_margin": -1.0}, {"lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            SARConfig(**wrong)
