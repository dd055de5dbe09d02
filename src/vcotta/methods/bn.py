"""BN: statistics of the test batch in every BatchNorm layer (Schneider et al., 2020; Nado et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts

__all__ = ["BN", "BNConfig"]


@dataclass(frozen=True)
class BNConfig:
    """Nothing to set."""


class BN(Adapter):
    """Mean and biased variance of the current batch replace the source's; nothing is trained and nothing remembered.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> BN(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "bn"
    summary = "batch statistics, nothing trained"
    facts = Facts("NeurIPS 2020", "nothing", "nothing", "1 forward", "official code")
    Config = BNConfig

    def setup(self, model: nn.Module) -> None:
        """Keep nothing beside the start network."""

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with the statistics of the batch."""
        with torch.no_grad():
            return self.logits(self.start, images).log_softmax(-1)
