"""COME: entropy minimisation with a share of belief for what is not known (Zhang et al., ICLR 2025)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vcotta._util.validation import NonNegative
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.reliable import NormalisationAdapter
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName

__all__ = ["COME", "COMEConfig", "opinion_entropy"]


@dataclass(frozen=True)
class COMEConfig(StreamSettings):
    """Settings of COME; ImageNet-C's from the official code, which has none for CIFAR: there they are TENT's.

    Attributes:
        lr: Step size (CIFAR 1e-3; ImageNet-C 2.5e-4 for ResNet-50, a vision transformer takes 1e-3 for batches of 64).
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"


@register_method
class COME(NormalisationAdapter):
    r"""Minimise the entropy of opinions, in which a share of the belief stays uncertain.

    The logits z of an image, C of them, are evidence for the classes. Beliefs and uncertainty sum to one,

    .. math::
        b_c = \frac{e^{z_c}}{\sum_j e^{z_j} + C}, \qquad u = \frac{C}{\sum_j e^{z_j} + C}, \qquad
        L = -\frac{1}{B}\sum_i \left(u \log u + \sum_c b_c \log b_c\right)_i

    and L is minimised over scale and shift of the normalisation layers. Its gradient turns z but does not lengthen it,
    so that the network does not become sure by scaling its logits. This is TENT with COME's entropy, the form that the
    official README shows as the example; predictions are softmax(z), from before the step.

    Differs from the official code: the constant beside the sums is the number of classes C, as in the paper, not always
    1000; large logits do not overflow, and the small constant inside the logarithm, 1e-7, is left out.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> COME(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "come"
    summary = "entropy minimisation in which a share of the belief stays uncertain"
    card = Card("ICLR 2025", "normalisation", "nothing", "1 forward, 1 backward", "official code", distributed=True)
    Config = COMEConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4, "optimizer": "momentum"}, "digits": {"lr": 3e-3}}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the mean entropy of the opinions."""
        logits = self.logits(self.networks["model"], images)
        if self.optimizer is not None:
            self.minimise(opinion_entropy(logits).mean())
        return logits.log_softmax(-1)


def opinion_entropy(logits: Tensor) -> Tensor:
    r"""Entropy of beliefs and uncertainty, one value per sample; its gradient is orthogonal to the logits.

    It is the entropy of a softmax over one more class, whose logit is log C.

    Example:
        >>> opinion_entropy(torch.zeros(1, 4)).exp()  # no evidence: uncertainty 1/2, beliefs 1/8
        tensor([4.])
    """
    length = logits.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(logits.dtype).tiny)
    turned = logits / length * length.detach()
    ignorance = torch.full_like(turned[:, :1], math.log(logits.shape[-1]))
    log_shares = torch.cat([turned, ignorance], -1).log_softmax(-1)
    return -(log_shares.exp() * log_shares).sum(-1)
