"""EATA: reliable and novel samples, parameters tied to the source's (Niu et al., ICML 2022)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.methods.base import OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.reliable import ETA, ETAConfig, masked_mean

__all__ = ["EATA", "EATAConfig"]


@dataclass(frozen=True)
class EATAConfig(ETAConfig):
    """Settings of EATA; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4). The authors' own for CIFAR is not in their code.
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C (the re-implementation has ``sgd``).
        entropy_margin: E_0 as a share of log C: only samples of lower entropy are learned from (0.4).
        similarity_margin: epsilon: only samples are whose prediction has a smaller cosine with the running mean
            prediction (CIFAR10-C 0.4, CIFAR100-C 0.1, ImageNet-C 0.05).
        fisher_weight: beta, weight of the penalty (CIFAR 1, ImageNet-C 2000). 0 is the paper's ETA, which needs no
            source data.
        fisher_images: Source images, without their labels, that the penalty is learned from (2000).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: float = 0.4
    similarity_margin: float = 0.4
    fisher_weight: float = 1.0
    fisher_images: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fisher_weight < 0:
            raise ValueError(f"Expected `fisher_weight` to be at least 0, but got {self.fisher_weight}.")
        if self.fisher_images < 1:
            raise ValueError(f"Expected `fisher_images` to be at least 1, but got {self.fisher_images}.")


class EATA(ETA):
    r"""Learn from samples that are sure and not like the others, and stay near the source where it matters.

    Over scale and shift of the normalisation layers, with S as in `ETA`,

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} e^{E_0 - H_i} H_i + \beta \sum_j F_j (\theta_j - \theta^0_j)^2

    is minimised. F is the Fisher information on source images under the network's own labels: the square of a batch's
    mean gradient, averaged over the batches (their size is in it: the square of each sample's gradient would want
    another weight). Batches are taken as they come, a short one counting as much as a long one; one whose gradient is
    not finite is left out. If no sample counts, no step is taken, by the penalty neither. With ``fisher_weight=0`` this
    is ETA, and the adapter's ``needs_source`` is False.

    Differs from the official code in that `reset` forgets the running mean prediction too, and in taking LayerNorm and
    GroupNorm for normalisation layers beside BatchNorm2d.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = EATA(net, EATAConfig(entropy_margin=1.1))
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.zeros(8))])
        >>> adapter.prepared["fisher"].shape
        torch.Size([4])
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["kept"]
        1.0
    """

    name = "eata"
    summary = "entropy minimisation on reliable, novel samples; Fisher penalty"
    facts = Facts(
        "ICML 2022", "normalisation", "2000 images", "1 forward, 1 backward", "official code", distributed=True
    )
    Config = EATAConfig
    datasets: ClassVar = {
        "cifar100": {"similarity_margin": 0.1},
        "imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "similarity_margin": 0.05, "fisher_weight": 2000.0},
        "digits": {"lr": 1e-2},
    }

    @property
    def needs_source(self) -> bool:  # type: ignore[override]
        """Whether there is a penalty to be learned; of the class itself this is true."""
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

    def penalty(self) -> Tensor | None:
        """Squared distance from the source, weighted by the Fisher information."""
        if not self.needs_source:
            return None
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
