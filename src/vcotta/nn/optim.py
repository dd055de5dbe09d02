"""Optimisers by name, and their state back from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from vcotta._util.errors import unknown_name

__all__ = [
    "AdamFirstStep",
    "OptimizerName",
    "ScaledAdam",
    "ScaledSGD",
    "finite_step",
    "load_optimizer",
    "make_optimizer",
    "one_group",
    "step_scale",
]

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
    scaled = scales is not None
    if scales is not None:
        if len(groups) != len(scales):
            raise ValueError(f"Expected a scale for each of {len(groups)} parameters, but got {len(scales)} scales.")
        groups = [{"params": groups, "scales": [float(scale) for scale in scales]}]
    settings: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": True}
    if name == "adam":
        return (ScaledAdam if scaled else torch.optim.Adam)(groups, **settings)
    if name not in ("sgd", "momentum"):
        raise unknown_name("optimizer", name, get_args(OptimizerName))
    made = (ScaledSGD if scaled else torch.optim.SGD)(groups, momentum=0.9, nesterov=name == "sgd", **settings)
    for parameter in (p for group in made.param_groups for p in group["params"]):
        # torch makes this buffer at the first step, and leaves it unfilled if that step is skipped.
        made.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return made


class ScaledAdam(torch.optim.Adam):
    """torch's fused Adam with a step size for each tensor, ``lr`` times its one of the ``scales`` of the group.

    All tensors step together, in a few kernels, where torch needs a parameter group, and a kernel, for each step size.
    The kernel writes its steps to zeros of the tensors' size, which are scaled and added.
    """

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every tensor that has a gradient, unless ``found_inf`` forbids it."""
        for group in self.param_groups:
            tensors, scales, gradients = _with_gradient(group)
            for tensor in tensors:
                if not self.state[tensor]:
                    new = {"step": torch.zeros((), dtype=torch.float32, device=tensor.device)}
                    new |= {name: torch.zeros_like(tensor) for name in ("exp_avg", "exp_avg_sq")}
                    self.state[tensor] = new
            first, second, counts = (
                [self.state[tensor][name] for tensor in tensors] for name in ("exp_avg", "exp_avg_sq", "step")
            )
            moves = _zeros_like(tensors)
            adam(
                moves,
                gradients,
                first,
                second,
                [],
                counts,
                fused=True,
                found_inf=self.found_inf,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=0.0,
                eps=group["eps"],
                maximize=False,
            )
            _add_scaled(tensors, moves, scales)


class ScaledSGD(torch.optim.SGD):
    """torch's fused SGD with a step size for each tensor, as `ScaledAdam`."""

    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every tensor that has a gradient, unless ``found_inf`` forbids it."""
        for group in self.param_groups:
            tensors, scales, gradients = _with_gradient(group)
            moves = _zeros_like(tensors)
            sgd(
                moves,
                gradients,
                [self.state[tensor]["momentum_buffer"] for tensor in tensors],
                fused=True,
                found_inf=self.found_inf,
                weight_decay=0.0,
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=0.0,
                nesterov=group["nesterov"],
                maximize=False,
            )
            _add_scaled(tensors, moves, scales)


def _with_gradient(group: dict[str, Any]) -> tuple[list[Tensor], list[float], list[Tensor]]:
    """The tensors of a group that have a gradient, their scales, and their gradients with the L2 penalty's."""
    pairs = [(p, scale) for p, scale in zip(group["params"], group["scales"], strict=True) if p.grad is not None]
    tensors = [tensor for tensor, _ in pairs]
    gradients = [tensor.grad for tensor in tensors]
    if group["weight_decay"]:
        gradients = list(torch._foreach_add(gradients, tensors, alpha=group["weight_decay"]))
    return tensors, [scale for _, scale in pairs], gradients


def _zeros_like(tensors: list[Tensor]) -> list[Tensor]:
    """Zeros in the shape and layout of each tensor, filled together."""
    zeros = [torch.empty_like(tensor) for tensor in tensors]
    if zeros:
        torch._foreach_zero_(zeros)
    return zeros


def _add_scaled(tensors: list[Tensor], moves: list[Tensor], scales: list[float]) -> None:
    if tensors:
        torch._foreach_mul_(moves, scales)
        torch._foreach_add_(tensors, moves)


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
    optimizer.load_state_dict(one_group(optimizer, state))
    for parameter, moments in optimizer.state.items():
        for name, moment in moments.items():
            if isinstance(moment, Tensor) and moment.shape == parameter.shape and moment.stride() != parameter.stride():
                moments[name] = torch.empty_like(parameter, dtype=moment.dtype, requires_grad=False).copy_(moment)


def one_group(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimiser's state in the form of today: of tensors with scales, earlier versions made a group each."""
    own, saved = optimizer.param_groups[0], state["param_groups"]
    if "scales" not in own or "scales" in saved[0]:
        return state
    places = [place for group in saved for place in group["params"]]
    kept = {name: own[name] for name in ("lr", "initial_lr", "scales") if name in own}
    return state | {"param_groups": [{**saved[0], **kept, "params": places}]}
