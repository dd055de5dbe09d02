"""Optimisers by name, and their state back from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from vcotta._util.errors import unknown_name

__all__ = ["AdamFirstStep", "OptimizerName", "finite_step", "load_optimizer", "make_optimizer", "step_scale"]

OptimizerName = Literal["adam", "sgd", "momentum"]
"""``adam`` with torch's defaults; ``sgd`` with Nesterov momentum 0.9, both as the CoTTA line of work uses them; or
``momentum``, SGD with the plain momentum of 0.9 of the official code of EATA, SAR, RDumb and DeYO."""


def make_optimizer(
    parameters: Iterable[Tensor],
    name: OptimizerName,
    lr: float,
    scales: Sequence[float] | None = None,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Make an optimiser that can skip a step on the device (``found_inf``).

    ``scales`` multiply the step size, one for each parameter; ``weight_decay`` is an L2 penalty.
    """
    groups: list[Tensor] | list[dict[str, Any]] = list(parameters)
    if scales is not None:
        groups = [{"params": [p], "lr": lr * scale} for p, scale in zip(groups, scales, strict=True)]
    if name == "adam":
        return torch.optim.Adam(groups, lr=lr, weight_decay=weight_decay, fused=True)
    if name not in ("sgd", "momentum"):
        raise unknown_name("optimizer", name, get_args(OptimizerName))
    sgd = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=name == "sgd", weight_decay=weight_decay, fused=True)
    for parameter in (p for group in sgd.param_groups for p in group["params"]):
        # torch makes this buffer at the first step, and leaves it unfilled if that step is skipped.
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def step_scale(tensor: Tensor) -> float:
    """Root mean square, the unit of relative steps; at least 1e-3, so that a bias of zero can leave it."""
    return max(tensor.detach().square().mean().sqrt().item(), 1e-3)


def finite_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """One step, skipped if loss or gradient is not finite; returns whether it was taken, as a scalar on the device."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    done = loss.detach().isfinite() & nn.utils.get_total_norm(gradients).isfinite()
    optimizer.found_inf = (~done).float()  # type: ignore[attr-defined]  # the fused optimisers' way to skip a step
    optimizer.step()
    return done


class AdamFirstStep(torch.optim.Optimizer):
    """The first step of a new Adam, every time: rate * g / (|g| + eps), with a rate for each parameter tensor."""

    rates: Tensor
    found_inf: Tensor  # above 0 where no step may be taken, as for torch's fused optimisers

    def __init__(self, parameters: Iterable[Tensor], weight_decay: float, eps: float = 1e-8) -> None:
        super().__init__(parameters, {"weight_decay": weight_decay, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every tensor that has a gradient, unless ``found_inf`` forbids it."""
        (group,) = self.param_groups
        trained = [(p, rate) for p, rate in zip(group["params"], self.rates, strict=True) if p.grad is not None]
        tensors = [p for p, _ in trained]
        gradients = torch._foreach_add([p.grad for p in tensors], tensors, alpha=group["weight_decay"])
        steps = torch._foreach_div(gradients, torch._foreach_add(torch._foreach_abs(gradients), group["eps"]))
        taken = self.found_inf == 0
        moves = [torch.where(taken, -rate * step, 0.0) for (_, rate), step in zip(trained, steps, strict=True)]
        torch._foreach_add_(tensors, moves)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore an optimiser from its ``state_dict``, with every moment laid out in memory as its parameter is.

    Files hold tensors row by row, while weights of convolutions may be ``channels_last``. A fused optimiser reads
    weight, gradient and moments in memory order: with different orders it would pair the wrong numbers.
    """
    optimizer.load_state_dict(state)
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter, dtype=moment.dtype, requires_grad=False).copy_(moment)
