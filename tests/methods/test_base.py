"""What methods are written with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vcotta
from vcotta.methods import TENT, TENTConfig


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_first_step_that_is_not_taken_leaves_nothing_behind(optimizer, tiny, images) -> None:
    def after(first: bool) -> list[torch.Tensor]:
        adapter = TENT(tiny(), TENTConfig(lr=0.1, optimizer=optimizer))
        adapter._notes = {"forwards": 0, "backwards": 0, "skipped": False}
        for seed in range(0 if first else 1, 3):
            loss = adapter.logits(adapter.networks["model"], images(seed=seed)).square().mean()
            adapter.minimise(loss, when=torch.tensor(seed > 0))
            assert not adapter._notes["skipped"]  # nothing to learn is no failure
        return [p.detach().clone() for p in adapter.networks["model"].parameters()]

    assert all(torch.equal(a, b) for a, b in zip(after(first=True), after(first=False), strict=True))


def test_scales_multiply_the_step_of_each_tensor(tiny) -> None:
    adapter = TENT(tiny())
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    adapter.make_optimizer(parameters, "adam", 0.1, scales=[1.0, 0.5])
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    adapter.optimizer.step()
    assert torch.allclose(parameters[0], torch.full((3,), 0.9))
    assert torch.allclose(parameters[1], torch.full((3,), 0.95))


def test_parameter_distance_is_relative_to_the_start_and_zero_at_it(tiny, images) -> None:
    adapter = TENT(tiny(), TENTConfig(lr=0.1))
    assert adapter.parameter_distance() == 0
    adapter(images())
    pairs = list(zip(adapter.networks["model"].parameters(), adapter.start.parameters(), strict=True))
    now, start = (torch.cat([pair[side].detach().flatten() for pair in pairs]) for side in (0, 1))
    assert adapter.parameter_distance() == pytest.approx(((now - start).norm() / start.norm()).item(), rel=1e-5)
    assert adapter.parameter_distance() > 0


class WithoutGradient(nn.Module):
    """A network whose forward pass runs without gradient."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    @torch.no_grad()
    def forward(self, images):
        return self.net(images)


@pytest.mark.parametrize("name", ["tent", "cotta", "sar", "rdumb", "vcotta"])
def test_a_network_whose_outputs_have_no_gradient_is_refused_with_what_to_do(name, tiny, images) -> None:
    net = WithoutGradient(tiny())
    adapter = vcotta.build_adapter(name, vcotta.to_variational(net) if name == "vcotta" else net)
    with pytest.raises(ValueError, match=r"outputs of WithoutGradient .*gradient.* torch\.no_grad\(\)"):
        adapter(images())
    assert vcotta.build_adapter("bn", net)(images()).shape == (6, 4)
