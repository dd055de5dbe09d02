"""RDumb: ETA, restarted every thousand batches (Press et al., NeurIPS 2023)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vcotta.methods.base import OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.reliable import ETA, ETAConfig

__all__ = ["RDumb", "RDumbConfig"]


@dataclass(frozen=True)
class RDumbConfig(ETAConfig):
    """Settings of RDumb; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C (the re-implementation has ``sgd``).
        entropy_margin: E_0 as a share of log C: only samples of lower entropy are learned from (0.4).
        similarity_margin: Only samples are whose prediction has a smaller cosine with the running mean prediction
            (CIFAR 0.4, ImageNet-C 0.05).
        period: Batches from one restart to the next (1000).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: float = 0.4
    similarity_margin: float = 0.4
    period: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period < 1:
            raise ValueError(f"Expected `period` to be at least 1, but got {self.period}.")


class RDumb(ETA):
    r"""Adapt as `ETA` does, and every ``period`` batches forget everything that was learned.

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} e^{E_0 - H_i} H_i

    over the sure and novel samples S. Parameters, the optimiser's moments and the running mean prediction are put back
    before the batch after each ``period``, as in the official code. The standard stream of CIFAR-C has 750 batches of
    200 images: there RDumb is ETA.

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
    facts = Facts(
        "NeurIPS 2023", "normalisation", "nothing", "1 forward, 1 backward", "official code", distributed=True
    )
    Config = RDumbConfig
    datasets: ClassVar = {
        "imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "similarity_margin": 0.05},
        "digits": {"lr": 1e-2},
    }

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Restart if it is time to, then predict and adapt."""
        if self.steps and self.steps % self.config.period == 0:
            self.memory = {}
            self.setup(copy.deepcopy(self.start))
        return super().predict_and_adapt(images)
