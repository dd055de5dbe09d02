"""EATA: reliable and novel samples, parameters tied to the source's (Niu et al., ICML 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative
from vcotta.methods.card import Card
from vcotta.methods.parts.reliable import ETA, ETAConfig, masked_mean
from vcotta.methods.registry import register_method

__all__ = ["EATA", "EATAConfig"]


@dataclass(frozen=True)
class EATAConfig(ETAConfig):
    """Settings of EATA; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        fisher_weight: beta, weight of the penalty (CIFAR 1, ImageNet-C 2000). 0 is the paper's ETA, without source
            data. The other fields are those of `ETAConfig`.
        fisher_images: Source images, without labels, that the penalty is computed from (2000).
    """

    fisher_weight: NonNegative = 1.0
    fisher_images: Count = 2000


@register_method
class EATA(ETA):
    r"""Learn from samples that are sure and unlike the average, and stay near the source where it matters.

    Scale and shift of the normalisation layers minimise, with S as in `ETA`,

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} e^{E_0 - H_i} H_i + \beta \sum_j F_j (\theta_j - \theta^0_j)^2.

    F is the Fisher information on source images under the network's own labels: the square of a batch's mean gradient,
    averaged over the batches, so it depends on their size. A batch whose gradient is not finite is left out. If S is
    empty, no step is taken, not even by the penalty. With ``fisher_weight=0`` this is ETA.

    Differs from the official code: `reset` also clears the running mean prediction, and LayerNorm and GroupNorm count
    as normalisation layers beside BatchNorm2d.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = EATA(net, EATAConfig(entropy_margin=1.1))
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.zeros(8))])
        >>> adapter.prepared["fisher"].shape
        torch.Size([4])
    """

    name = "eata"
    summary = "entropy minimisation on reliable, novel samples; Fisher penalty"
    card = Card("ICML 2022", "normalisation", "2000 images", "1 forward, 1 backward", "official code", distributed=True)
    Config = EATAConfig
    datasets: ClassVar = {
        "cifar100": {"similarity_margin": 0.1},
        "imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "similarity_margin": 0.05, "fisher_weight": 2000.0},
        "digits": {"lr": 1e-2},
    }

    @property
    def needs_source(self) -> bool:  # type: ignore[override]
        """Whether there is a penalty to compute; True for the class itself."""
        return bool(self.config.fisher_weight > 0)

    @torch.enable_grad()
    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The Fisher information of the trained parameters, one after another in one vector."""
        if not self.needs_source:
            return {}
        squares, left = [], self.config.fisher_images
        for images, _ in source:
            squares.append(self._gradient(images[:left]).square())
            left -= len(images)
            if left <= 0:
                break
        fisher = torch.stack(squares)
        return {"fisher": masked_mean(fisher, fisher.isfinite().all(-1, keepdim=True))}

    def penalty(self) -> Tensor | float:
        """Squared distance from the source, weighted by the Fisher information."""
        if not self.needs_source:
            return 0.0
        distance = _vector(self._trained(self.networks["model"])) - _vector(self._trained(self.start))
        penalty: Tensor = self.config.fisher_weight * (self.prepared["fisher"] * distance.square()).sum()
        return penalty

    def _gradient(self, images: Tensor) -> Tensor:
        """Gradient of the cross-entropy with the predicted labels, as one vector."""
        model = self.networks["model"]
        if not (trained := self._trained(model)):
            return images.new_zeros(0)
        logits = self.logits(model, images)
        loss = F.cross_entropy(logits, logits.argmax(-1))
        return _vector(torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True))

    def _trained(self, net: nn.Module) -> list[Tensor]:
        """The parameters of a network that are trained in the model."""
        pairs = zip(net.parameters(), self.networks["model"].parameters(), strict=True)
        return [ours for ours, models in pairs if models.requires_grad]


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])
