"""DeYO: learns from samples whose prediction depends on the object's shape (Lee et al., ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, between
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.reliable import NormalisationAdapter, entropy_ceiling, is_below, masked_mean
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName

__all__ = ["DeYO", "DeYOConfig"]


@dataclass(frozen=True)
class DeYOConfig(StreamSettings):
    """Settings of DeYO; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4; a vision transformer takes 1e-3 for batches of 64).
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C (the re-implementation has ``sgd``).
        entropy_margin: Share of log C below which the entropy of a sample must be (0.5).
        weight_margin: E_0 in the weights, as a share of log C (0.4).
        drop: tau: probability that the predicted class must lose when the patches are shuffled (ImageNet-C 0.3,
            official script for ResNet-50; CIFAR 0.2, re-implementation; the authors have none).
        patches: Patches along each side of the image (4).
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: NonNegative = 0.5
    weight_margin: NonNegative = 0.4
    drop: Annotated[float, between(-1, 1)] = 0.2
    patches: Count = 4


@register_method
class DeYO(NormalisationAdapter):
    r"""Learn from samples whose prediction is sure, and less so when the object's shape is destroyed.

    Of the samples of entropy below ``entropy_margin``, S holds those whose predicted class y loses more than tau when
    the image's patches are shuffled: :math:`D = p_y(x) - p_y(x') > \tau`. Scale and shift of the early normalisation
    layers (see `train_early_normalisation`) minimise

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} \left(e^{E_0 - H_i} + e^{D_i}\right) H_i

    with constant weights. As in the official code, only the sure samples are shuffled and passed again, and BatchNorm
    uses their statistics; the host waits to know them.

    Differs from the official code: a single sure sample is normalised by the source's statistics; the other ways to
    destroy an object (a grey square, shuffled pixels) are left out; images need not be square.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> DeYO(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "deyo"
    summary = "entropy minimisation on samples that depend on the object's shape"
    card = Card("ICLR 2024", "normalisation", "nothing", "2 forwards, 1 backward", "official code", distributed=True)
    Config = DeYOConfig
    early_only = True
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "drop": 0.3}, "digits": {"lr": 1e-2}}

    def _learn(self, images: Tensor, log_probs: Tensor) -> None:
        config = self.config
        entropies = entropy(log_probs)
        sure = is_below(entropies.detach(), entropy_ceiling(config.entropy_margin, log_probs)).nonzero().squeeze(1)
        self.note(kept=0.0)
        if not len(sure):
            return
        entropies = entropies[sure]
        drop = self._drop(images[sure], log_probs.detach()[sure])
        kept = is_below(-drop, -config.drop)
        weights = (entropy_ceiling(config.weight_margin, log_probs) - entropies.detach()).exp() + drop.exp()
        self.minimise(masked_mean(weights * entropies, kept), when=kept.any())
        self.note(kept=kept.sum() / len(images))

    @torch.no_grad()
    def _drop(self, images: Tensor, log_probs: Tensor) -> Tensor:
        """The probability that the predicted classes lose when the patches are shuffled."""
        shuffled = self.runtime.place_images(shuffle_patches(images, self.config.patches))
        after = self.logits(self.networks["model"], shuffled).log_softmax(-1)
        before, predicted = log_probs.max(-1, keepdim=True)
        return (before.exp() - after.gather(1, predicted).exp()).squeeze(1)


def shuffle_patches(images: Tensor, patches: int) -> Tensor:
    """Cut each image into ``patches`` x ``patches`` and reassemble them in a random order of its own."""
    sides = images.shape[-2:]
    even = [max(1, side // patches) * patches for side in sides]
    tiles = _resize(images, even).unflatten(3, (patches, -1)).unflatten(2, (patches, -1))
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (batch, patches^2, channels, height, width)
    order = torch.rand(tiles.shape[:2]).argsort(-1).to(images.device, non_blocking=True)
    tiles = tiles.gather(1, order.view(*order.shape, 1, 1, 1).expand_as(tiles))
    tiles = tiles.unflatten(1, (patches, patches)).permute(0, 3, 1, 4, 2, 5)
    return _resize(tiles.flatten(4, 5).flatten(2, 3), list(sides))


def _resize(images: Tensor, sides: list[int]) -> Tensor:
    if list(images.shape[-2:]) == sides:
        return images
    return F.interpolate(images, sides, mode="bilinear", antialias=True)
