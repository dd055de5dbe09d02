"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery (Niu et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vcotta.distributed import average
from vcotta.fields import check_fields
from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts
from vcotta.methods.losses import entropy
from vcotta.methods.reliable import entropy_ceiling, is_below, masked_mean, train_early_normalisation

__all__ = ["SAR", "SARConfig"]

_MEMORY = 0.9  # of the running loss, as in the official code


@dataclass(frozen=True)
class SARConfig:
    """Settings of SAR; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size of SGD with momentum 0.9 (CIFAR 1e-3; ImageNet-C 2.5e-4 for ResNet-50 and batches of 64, a vision
            transformer takes 1e-3).
        entropy_margin: E_0 as a share of log C: only samples of lower entropy are learned from (0.4).
        rho: Length of the step uphill, to where the gradient is taken (0.05).
        reset_below: e_m: the network returns to the source when the running loss falls below it (0.2).
    """

    lr: float = 1e-3
    entropy_margin: float = 0.4
    rho: float = 0.05
    reset_below: float = 0.2

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "entropy_margin", "rho", "reset_below"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")


class SAR(Adapter):
    r"""Minimise the entropy of sure samples where the loss is worst nearby, and start anew after a collapse.

    With S the samples of entropy below :math:`E_0`, and S' those of them that stay below it at the perturbed weights,

    .. math::
        \hat\epsilon = \rho\, g / \lVert g \rVert_2, \quad g = \nabla_\theta \frac{1}{|S|}\sum_{i \in S} H_i(\theta),
        \qquad L = \frac{1}{|S'|}\sum_{i \in S'} H_i(\theta + \hat\epsilon)

    over scale and shift of the early normalisation layers (see `train_early_normalisation`). SGD takes the gradient of
    L from :math:`\theta`, without Nesterov's momentum. When the running mean of L, 0.9 old + 0.1 new, falls below
    ``reset_below``, weights and momentum return to the source's. ``memory["loss"]`` is that mean, infinite while there
    is none. With few classes entropies are small, and on CIFAR10-C it returns nearly every batch: the prediction is
    then that of batch statistics alone.

    Differs from the official code, as the re-implementation does, in that the running mean is really forgotten when the
    network returns; there the old value is written back and the network returns again and again. An empty S or S' takes
    no step; there it gives NaN.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = SAR(net, SARConfig(entropy_margin=1.1))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"], adapter.last["returned"]
        (2, 2, False)
    """

    name = "sar"
    summary = "sharpness-aware entropy minimisation on reliable samples"
    facts = Facts("ICLR 2023", "normalisation", "nothing", "2 forwards, 2 backwards", "official code", distributed=True)
    Config = SARConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4}, "digits": {"lr": 1e-2}}

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the early normalisation layers require gradients, nothing else."""
        trained = train_early_normalisation(model, "SAR")
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, "momentum", self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step from the gradient at the perturbed weights."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        if self.optimizer is not None:
            self._learn(images, log_probs, self.optimizer)
        return log_probs

    def _learn(self, images: Tensor, log_probs: Tensor, optimizer: torch.optim.Optimizer) -> None:
        entropies = entropy(log_probs)
        ceiling = entropy_ceiling(self.config.entropy_margin, log_probs)
        reliable = is_below(entropies.detach(), ceiling)
        with _uphill(optimizer, masked_mean(entropies, reliable), self.config.rho):
            self.note(backwards=1)
            entropies = entropy(self.logits(self.networks["model"], images).log_softmax(-1))
            kept = reliable & is_below(entropies.detach(), ceiling)
            loss = masked_mean(entropies, kept)
            done = self.minimise(loss, when=kept.any())
        self._recover(loss.detach(), done, optimizer)
        self.note(kept=kept.float().mean())

    @torch.no_grad()
    def _recover(self, loss: Tensor, done: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Follow the loss, and return to the source if it collapsed; the host need not know."""
        past = self.memory.get("loss", torch.full_like(loss, torch.inf))
        moved = torch.where(past.isinf(), loss, _MEMORY * past + (1 - _MEMORY) * loss)
        now = torch.where(done, moved, past)
        collapsed = now < self.config.reset_below
        for ours, source in zip(self.networks["model"].parameters(), self.start.parameters(), strict=True):
            if ours.requires_grad:
                ours.copy_(torch.where(collapsed, source, ours))
        for state in optimizer.state.values():
            state["momentum_buffer"].masked_fill_(collapsed, 0)
        self.memory["loss"] = now.masked_fill(collapsed, torch.inf)
        self.note(returned=collapsed)


@contextmanager
def _uphill(optimizer: torch.optim.Optimizer, loss: Tensor, rho: float) -> Iterator[None]:
    """Within the block the weights are where the loss is worst nearby; the optimiser steps from where they were."""
    weights: list[Tensor] = optimizer.param_groups[0]["params"]
    kept = [weight.detach().clone() for weight in weights]
    gradients = average(torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True))

    @torch.no_grad()
    def put_back(*_: Any) -> None:
        torch._foreach_copy_(weights, kept)

    with torch.no_grad():
        scale = rho / (nn.utils.get_total_norm(gradients) + 1e-12)
        torch._foreach_add_(weights, torch._foreach_mul(gradients, scale))
    hook = optimizer.register_step_pre_hook(put_back)
    try:
        yield
    except BaseException:
        put_back()
        raise
    finally:
        hook.remove()
