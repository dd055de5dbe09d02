from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vcotta import Runtime, build_adapter
from vcotta.methods import BN, BECoTTA, BECoTTAConfig, becotta
from vcotta.methods.becotta import PSEUDO_DOMAINS, Experts, synergy_loss


def prepared(model: nn.Module, precision: str = "fp32", **options: Any) -> BECoTTA:
    draws = torch.Generator().manual_seed(0)
    source = [(torch.rand(24, 3, 8, 8, generator=draws), torch.arange(24) % 4) for _ in range(2)]
    options = {"warm_up_epochs": 1, "margin": 1.1, "width": 4} | options
    return build_adapter("becotta", model, source=source, runtime=Runtime(precision=precision), **options)


@pytest.fixture
def no_noise(monkeypatch) -> None:
    monkeypatch.setattr(becotta, "current", lambda: SimpleNamespace(noise_like=torch.zeros_like))


def blend(experts: Experts, h: Tensor, domain: Tensor) -> Tensor:
    """The card's blend, image by image and expert by expert, without noise."""
    count, rank = experts.experts, experts.rank
    rows = []
    for image, which in zip(h, domain.tolist(), strict=True):
        scores = experts.router.weight[which * 2 * count : which * 2 * count + count] @ image.mean((1, 2))
        chosen = scores.argsort(descending=True)[: experts.active]
        row = image
        for expert, gate in zip(chosen.tolist(), scores[chosen].softmax(0), strict=True):
            own = slice(expert * rank, (expert + 1) * rank)
            hidden = torch.einsum("rc,chw->rhw", experts.down.weight[own, :, 0, 0], image)
            hidden = nn.functional.gelu(hidden + experts.down.bias[own, None, None])
            row = row + gate * torch.einsum("cr,rhw->chw", experts.up.weight[:, own, 0, 0], hidden)
        rows.append(row)
    return torch.stack(rows)


def test_steps_are_those_of_an_independent_computation(tiny, images, no_noise) -> None:
    seen = prepared(tiny(), "fp64", lr=0.0)(images(12))
    margin = -(seen.exp() * seen).sum(-1).median().item() * 1.001 / np.log(4)  # keeps about half of the images
    adapter = prepared(tiny(), "fp64", lr=0.01, restore=0.0, margin=margin)
    net = copy.deepcopy(tiny()).double()
    net.norm1.train(), net.norm2.train()
    model = adapter.networks["model"]
    experts = [copy.deepcopy(one) for one in model.experts]
    optimizer = torch.optim.Adam([p for one in experts for p in one.parameters()], lr=0.01)
    shares = []
    for seed in range(3):
        x = images(12, seed).double()
        domain = model.domains(x).argmax(-1)
        h = torch.relu(net.norm1(blend(experts[0], net.conv1(x), domain)))
        h = torch.relu(net.norm2(blend(experts[1], net.conv2(h), domain)))
        log_probs = net.fc(h.mean((2, 3))).log_softmax(-1)
        kept = -(log_probs.exp() * log_probs).sum(-1).detach() < margin * np.log(4)
        assert torch.allclose(adapter(images(12, seed)), log_probs, atol=1e-9)
        assert adapter.last["kept"] == pytest.approx(kept.double().mean().item())
        shares.append(adapter.last["kept"])
        optimizer.zero_grad()
        (-log_probs.amax(-1)[kept]).mean().backward()
        optimizer.step() if kept.any() else None
    assert 0 < shares[0] < 1
    for ours, theirs in zip(model.experts, experts, strict=True):
        for name, value in theirs.named_parameters():
            assert torch.allclose(dict(ours.named_parameters())[name], value, atol=1e-7), name


def test_experts_that_add_nothing_leave_the_network_as_it_is(tiny, images) -> None:
    adapter = prepared(tiny(), warm_up_lr=0.0)  # their last layer starts at zero
    assert torch.allclose(adapter(images()), BN(tiny())(images()), atol=1e-6)
    adapter(images())
    assert all(torch.equal(a, b) for a, b in zip(adapter.start.parameters(), tiny().parameters(), strict=True))
    assert not adapter.state_dict()["networks"]["start"]


def test_gates_add_up_to_1_and_as_many_as_are_active_are_not_zero() -> None:
    experts = Experts(8, 6, 3, 4)
    experts.domain = torch.tensor([0, 1, 2, 3])
    gates = experts.gates(torch.rand(4, 8, 5, 5))
    assert torch.allclose(gates.sum(-1), torch.ones(4))
    assert (gates > 0).sum(-1).tolist() == [3] * 4


def test_a_router_learns_through_the_gates_and_each_pseudo_domain_has_its_own(no_noise) -> None:
    experts = Experts(8, 6, 3, 4)
    nn.init.normal_(experts.up.weight)
    experts.domain = torch.tensor([2, 2])
    experts(torch.rand(2, 8, 3, 3), torch.rand(2, 8, 3, 3)).square().sum().backward()
    by_domain = experts.router.weight.grad.unflatten(0, (4, 2, 6))[:, 0].abs().sum((1, 2))
    assert (by_domain > 0).tolist() == [False, False, True, False]


def test_restoring_everything_returns_to_the_warm_up_and_nothing_to_the_step(tiny, images) -> None:
    found = {}
    for share in (0.0, 1.0):
        adapter = prepared(tiny(), lr=0.1, restore=share)
        adapter(images())
        ours, warmed = adapter.networks["model"].experts.parameters(), adapter.networks["warmed"].parameters()
        found[share] = all(torch.equal(a, b) for a, b in zip(ours, warmed, strict=True))
    assert found == {0.0: False, 1.0: True}


def test_the_synergy_loss_is_that_of_the_card_and_finite_for_equal_scores() -> None:
    matrix = np.random.default_rng(0).normal(size=(4, 6))
    scaled = (matrix - matrix.min()) / (matrix.max() - matrix.min())
    of_domains, of_experts = (np.exp(scaled.sum(axis)) for axis in (1, 0))
    of_domains, of_experts = of_domains / of_domains.sum() + 1e-4, of_experts / of_experts.sum() + 1e-4
    expected = -(scaled * np.log(scaled / np.outer(of_domains, of_experts) + 1e-4)).sum()
    assert synergy_loss(torch.tensor(matrix)).item() == pytest.approx(expected)
    constant = torch.ones(4, 6, requires_grad=True)
    synergy_loss(constant).backward()
    assert constant.grad.isfinite().all()


def test_the_warm_up_teaches_labels_and_pseudo_domains(tiny) -> None:
    draws, labels = torch.Generator().manual_seed(0), torch.arange(32) % 4
    patterns = torch.rand(4, 3, 8, 8, generator=draws)
    images = 0.8 * patterns[labels] + 0.2 * torch.rand(32, 3, 8, 8, generator=draws)
    losses, right = [], []
    for rate in (0.0, 0.02):
        adapter = BECoTTA(tiny(), BECoTTAConfig(warm_up_epochs=20, warm_up_lr=rate, width=2))
        adapter.prepare([(images, labels)])
        model = adapter.networks["model"]
        losses.append(nn.functional.nll_loss(adapter(images), labels).item())
        guesses = torch.stack([model.domains(change(images)).argmax(-1) for change in PSEUDO_DOMAINS.values()])
        right.append((guesses == torch.arange(4).unsqueeze(1)).float().mean().item())
    assert losses[1] < 0.95 * losses[0]
    assert right[1] > 0.6 > right[0]


def test_the_experts_are_as_wide_as_the_released_size(images) -> None:
    assert [Experts(width, 6, 3, 32).rank for width in (64, 128, 320, 512)] == [2, 4, 10, 16]
    assert Experts(8, 6, 3, 32).rank == 1


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"experts": 0}, {"active": 7}, {"restore": 2.0}, {"domain": -1.0}, {"warm_up_epochs": 0}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            BECoTTAConfig(**wrong)
