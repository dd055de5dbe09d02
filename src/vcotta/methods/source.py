"""Source: the network as it is, the baseline of every method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.registry import register_method

__all__ = ["Source", "SourceConfig"]


@dataclass(frozen=True)
class SourceConfig:
    """Source has no settings."""


@register_method
class Source(Adapter):
    """No adaptation: eval mode and the source's running statistics; the state never changes.

    Example:
        >>> adapter = Source(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)))
        >>> adapter(torch.rand(3, 3, 4, 4)).shape
        torch.Size([3, 2])
    """

    name = "source"
    summary = "no adaptation"
    card = Card("-", "nothing", "nothing", "1 forward", "official code", distributed=True)
    Config = SourceConfig

    def setup(self, model: nn.Module) -> None:
        """Keep nothing but the start network."""

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with the running statistics of training."""
        with torch.no_grad():
            return self.logits(self.start, images, batch_statistics=False).log_softmax(-1)
