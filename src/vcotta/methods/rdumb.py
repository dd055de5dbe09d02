"""RDumb: ETA, restarted every thousand batches (Press et al., NeurIPS 2023)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vcotta._util.validation import Count
from vcotta.methods.card import Card
from vcotta.methods.parts.reliable import ETA, ETAConfig
from vcotta.methods.registry import register_method

__all__ = ["RDumb", "RDumbConfig"]


@dataclass(frozen=True)
class RDumbConfig(ETAConfig):
    """Settings of RDumb; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        period: Batches from one restart to the next (1000). The other fields are those of `ETAConfig`.
    """

    period: Count = 1000


@register_method
class RDumb(ETA):
    """Adapt as `ETA` does, and restart every ``period`` batches.

    Parameters, optimiser and running mean prediction return to their start, as in the official code. The standard
    stream of CIFAR-C has 750 batches of 200 images: there RDumb is ETA.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = RDumb(net, RDumbConfig(entropy_margin=1.1, similarity_margin=1.1, lr=0.1, period=2))
        >>> images = torch.rand(4, 3, 8, 8)
        >>> first, second, third = (adapter(images) for _ in range(3))
        >>> torch.equal(first, second), torch.equal(first, third)
        (False, True)
    """

    name = "rdumb"
    summary = "entropy minimisation on reliable, novel samples; periodic restart"
    card = Card("NeurIPS 2023", "normalisation", "nothing", "1 forward, 1 backward", "official code", distributed=True)
    Config = RDumbConfig
    datasets: ClassVar = {
        "imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "similarity_margin": 0.05},
        "digits": {"lr": 1e-2},
    }

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Restart after every ``period`` batches, then predict and adapt."""
        if self.steps and self.steps % self.config.period == 0:
            self.memory = {}
            self.setup(copy.deepcopy(self.start))
        return super().predict_and_adapt(images)
