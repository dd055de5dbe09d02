from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vcotta import Runtime
from vcotta.methods import BN, DVP, DVPConfig, dvp
from vcotta.methods.dvp import Prompts


def view_of(images: torch.Tensor, flip: bool = True) -> torch.Tensor:
    return images.flip(-1) ** 1.5


class Reference:
    """The step as its docstring describes it, in plain torch, for images of the size of the prompts."""

    def __init__(self, net: nn.Module, config: DVPConfig) -> None:
        self.config, self.net = config, copy.deepcopy(net).double().train().requires_grad_(False)
        zeros = [torch.zeros(config.size, config.size, dtype=torch.float64) for _ in range(7)]
        self.student, self.teacher = [zero.requires_grad_() for zero in zeros[:2]], zeros[2:4]
        self.importance, self.path, self.anchor = zeros[4:]
        self.confidence: float | None = None
        self.optimizer = torch.optim.SGD(self.student, lr=config.lr, momentum=0.9, nesterov=True)

    def step(self, x: torch.Tensor) -> tuple[torch.Tensor, bool, float]:
        """Log-probabilities, whether a domain begins, and the penalty."""
        config, (_, agnostic) = self.config, self.student
        target = self.net(x + sum(self.teacher)).softmax(1)
        confidence = target.amax(1).mean().item()
        begins = self.confidence is not None and abs(confidence - self.confidence) > config.shift
        if begins:
            moved = agnostic.detach() - self.anchor
            self.importance = self.importance + self.path.clamp_min(0) / (moved**2 + config.damping)
            self.path, self.anchor = torch.zeros_like(self.path), agnostic.detach().clone()
        self.confidence = confidence
        fit = -(target * self.net(view_of(x) + sum(self.student)).log_softmax(1)).sum(1).mean()
        (slope,) = torch.autograd.grad(fit, [agnostic], retain_graph=True)
        penalty = (self.importance * (agnostic - self.anchor) ** 2).sum()
        before = agnostic.detach().clone()
        self.optimizer.zero_grad()
        (fit + config.homeostasis * penalty).backward()
        self.optimizer.step()
        self.path = self.path - slope * (agnostic.detach() - before)
        self.teacher = [
            config.beta * old + (1 - config.beta) * new.detach()
            for old, new in zip(self.teacher, self.student, strict=True)
        ]
        return target.log(), begins, penalty.item()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_its_steps_are_those_of_the_reference(norm, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(dvp, "random_view", view_of)
    config = DVPConfig(lr=0.5, optimizer="sgd", size=8, beta=0.5, homeostasis=5.0, damping=1e-3, shift=0.02)
    net = tiny(norm)
    net.fc.weight.data.mul_(10)  # more or less sure, by batch
    adapter, reference = DVP(net, config, runtime=Runtime(precision="fp64")), Reference(net, config)
    began, penalties = [], []
    for seed in range(8):
        x = images(seed=seed).double() ** (6 if seed in (3, 4) else 1)
        expected, begins, penalty = reference.step(x)
        assert torch.allclose(adapter(x), expected, atol=1e-10)
        assert adapter.last["new_domain"] == begins
        assert adapter.last["penalty"] == pytest.approx(penalty, rel=1e-8, abs=1e-15)
        began.append(begins)
        penalties.append(penalty)
    assert 1 < sum(began) < 7, began
    assert max(penalties) > 0
    for role, theirs in (("student", reference.student), ("teacher", reference.teacher)):
        prompts = adapter.networks[role]
        for ours, own in zip((prompts.specific, prompts.agnostic), theirs, strict=True):
            assert torch.allclose(ours, own, atol=1e-10)
            assert ours.abs().max() > 0
    assert torch.allclose(adapter.memory["importance"], reference.importance, rtol=1e-8)
    assert adapter.memory["importance"].min() >= 0


def test_prompts_of_zero_predict_as_the_source_network(tiny, images) -> None:
    adapter = DVP(tiny(), DVPConfig())
    assert torch.allclose(adapter(images()), BN(tiny())(images()), atol=1e-6)


def test_the_network_never_changes_and_only_prompts_are_kept(tiny, images) -> None:
    net = tiny()
    adapter = DVP(net, DVPConfig(lr=0.1))
    for seed in range(3):
        adapter(images(seed=seed))
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in adapter.start.state_dict().items())
    sizes = [sum(p.numel() for p in network.parameters()) for network in adapter.networks.values()]
    assert sizes == [1800, 1800]  # the count of a later paper's table


@pytest.mark.parametrize("size", [(7, 5), (4, 4), (2, 3), (1, 6)])
def test_prompts_are_in_the_middle_of_larger_images_and_are_cut_for_smaller_ones(size) -> None:
    prompts = Prompts(4)
    prompts.specific.data.copy_(torch.arange(1.0, 17).view(4, 4))
    added = prompts(torch.zeros(2, 3, *size))
    assert added.shape == (2, 3, *size)
    tops = [(whole - 4) // 2 for whole in size]
    for row in range(size[0]):
        for column in range(size[1]):
            place = row - tops[0], column - tops[1]
            inside = all(0 <= one < 4 for one in place)
            expected = prompts.specific[place].item() if inside else 0
            assert added[:, :, row, column].unique().tolist() == [expected]


def test_the_penalty_is_zero_until_a_second_domain(tiny, images) -> None:
    adapter = DVP(tiny(), DVPConfig(lr=0.1, shift=1.0))
    for seed in range(3):
        adapter(images(seed=seed))
        assert (adapter.last["penalty"], adapter.last["new_domain"]) == (0, False)
    assert adapter.memory["path"].any()
    assert not adapter.memory["importance"].any()


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"size": 0}, {"beta": 1.5}, {"homeostasis": -1.0}, {"damping": 0.0}, {"shift": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            DVPConfig(**wrong)
