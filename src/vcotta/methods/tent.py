"""TENT: entropy minimisation on the normalisation layers (Wang et al., ICLR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vcotta._util.validation import NonNegative
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.reliable import NormalisationAdapter
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName

__all__ = ["TENT", "TENTConfig"]


@dataclass(frozen=True)
class TENTConfig(StreamSettings):
    """Settings of TENT; defaults for CIFAR from the official configuration.

    Attributes:
        lr: Step size (CIFAR10-C and CIFAR100-C 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"


@register_method
class TENT(NormalisationAdapter):
    """Minimise the mean entropy of the predictions over scale and shift of the normalisation layers.

    BatchNorm uses the batch's statistics. The prediction is the one whose entropy was minimised, from before the step.
    LayerNorm and GroupNorm count as normalisation layers too; the official code knows BatchNorm2d alone.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> TENT(net, TENTConfig(lr=1e-2))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "tent"
    summary = "entropy minimisation over normalisation layers"
    card = Card("ICLR 2021", "normalisation", "nothing", "1 forward, 1 backward", "official code", distributed=True)
    Config = TENTConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4, "optimizer": "sgd"}, "digits": {"lr": 1e-2}}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the mean entropy."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        loss = entropy(log_probs).mean()
        self.note(entropy=loss.detach())
        if self.optimizer is not None:
            self.minimise(loss)
        return log_probs
