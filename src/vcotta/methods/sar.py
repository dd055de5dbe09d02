"""SAR: sharpness-aware entropy minimisation on reliable samples, with recovery (Niu et al., ICLR 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.layers import train_early_normalisation
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.reliable import NormalisationAdapter, entropy_ceiling, is_below, masked_mean
from vcotta.methods.registry import register_method

__all__ = ["SAR", "SARConfig"]

_MEMORY = 0.9  # of the running loss, as in the official code


@dataclass(frozen=True)
class SARConfig(StreamSettings):
    """Settings of SAR; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size of SGD with momentum 0.9 (CIFAR 1e-3; ImageNet-C 2.5e-4 for ResNet-50 and batches of 64; a vision
            transformer takes 1e-3).
        entropy_margin: E_0 as a share of log C: only samples of lower entropy are learned from (0.4).
        rho: Length of the step uphill, to where the gradient is taken (0.05).
        reset_below: e_m: the network returns to the source when the running loss falls below it (0.2).
    """

    lr: NonNegative = 1e-3
    entropy_margin: NonNegative = 0.4
    rho: NonNegative = 0.05
    reset_below: NonNegative = 0.2


@register_method
class SAR(NormalisationAdapter):
    r"""Minimise the entropy of sure samples where the loss is worst nearby; return to the source after a collapse.

    With S the samples of entropy below :math:`E_0`, and S' those of them that stay below it at the perturbed weights,

    .. math::
        \hat\epsilon = \rho\, g / \lVert g \rVert_2, \quad g = \nabla_\theta \frac{1}{|S|}\sum_{i \in S} H_i(\theta),
        \qquad L = \frac{1}{|S'|}\sum_{i \in S'} H_i(\theta + \hat\epsilon)

    over scale and shift of the early normalisation layers (see `train_early_normalisation`). SGD steps from
    :math:`\theta` with the gradient of L and plain momentum. When the running mean of L, 0.9 old + 0.1 new, falls below
    ``reset_below``, the weights return to the source's and the momentum to zero. ``memory["loss"]`` is that mean,
    infinite while there is none.

    Whether the mean falls that low depends on the network: on CIFAR10-C it does for a WRN-28-10, whose error in the
    re-implementation equals that of batch statistics alone, while a less certain ResNet-20 may never return.

    Differs from the official code: a return clears the running mean, as the re-implementation by Döbler et al. does
    (the official code writes the old mean back, and so returns on every batch until it has risen), and the momentum,
    which the official code keeps; an empty S or S' takes no step (there the loss is NaN).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = SAR(net, SARConfig(entropy_margin=1.1))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["returned"]
        False
    """

    name = "sar"
    summary = "sharpness-aware entropy minimisation on reliable samples"
    card = Card("ICLR 2023", "normalisation", "nothing", "2 forwards, 2 backwards", "official code", distributed=True)
    Config = SARConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4}, "digits": {"lr": 1e-2}}

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the early normalisation layers require gradients, nothing else."""
        trained = train_early_normalisation(model, "SAR")
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, "momentum", self.config.lr)

    def _learn(self, images: Tensor, log_probs: Tensor) -> None:
        """One step from the gradient at the perturbed weights."""
        optimizer = self.optimizer
        assert optimizer is not None
        entropies = entropy(log_probs)
        ceiling = entropy_ceiling(self.config.entropy_margin, log_probs)
        reliable = is_below(entropies.detach(), ceiling)
        weights: list[Tensor] = optimizer.param_groups[0]["params"]
        with _uphill(optimizer, self.gradients(masked_mean(entropies, reliable), weights), self.config.rho):
            entropies = entropy(self.logits(self.networks["model"], images).log_softmax(-1))
            kept = reliable & is_below(entropies.detach(), ceiling)
            loss = masked_mean(entropies, kept)
            done = self.minimise(loss, when=kept.any())
        self._recover(loss.detach(), done, optimizer)
        self.note(kept=kept.float().mean())

    @torch.no_grad()
    def _recover(self, loss: Tensor, done: Tensor, optimizer: torch.optim.Optimizer) -> None:
        """Update the running loss, and return to the source if it collapsed, without waiting for the device."""
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
def _uphill(optimizer: torch.optim.Optimizer, gradients: list[Tensor], rho: float) -> Iterator[None]:
    """Inside the block the weights are ``rho`` up the gradient; the optimiser steps from where they were."""
    weights: list[Tensor] = optimizer.param_groups[0]["params"]
    kept = [weight.detach().clone() for weight in weights]

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
