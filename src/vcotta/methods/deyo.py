"""DeYO: samples whose prediction hangs on the shape of the object (Lee et al., ICLR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.losses import entropy
from vcotta.methods.reliable import entropy_ceiling, is_below, masked_mean, train_early_normalisation

__all__ = ["DeYO", "DeYOConfig"]


@dataclass(frozen=True)
class DeYOConfig:
    """Settings of DeYO; ImageNet-C's from the official code, CIFAR's from the re-implementation by Döbler et al.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4; a vision transformer takes 1e-3 for batches of 64).
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C (the re-implementation has ``sgd``).
        entropy_margin: Only samples of entropy below this share of log C are looked at (0.5).
        weight_margin: E_0 in the weights, as a share of log C (0.4).
        drop: tau: of these only samples are learned from whose predicted class loses more probability than this when
            the patches are shuffled (ImageNet-C 0.3, official script for ResNet-50; CIFAR 0.2, re-implementation, the
            authors having none).
        patches: Patches along each side of the image (4).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: float = 0.5
    weight_margin: float = 0.4
    drop: float = 0.2
    patches: int = 4

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "entropy_margin", "weight_margin"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        if not -1 <= self.drop <= 1:
            raise ValueError(f"Expected `drop` to lie in [-1, 1], but got {self.drop}.")
        if self.patches < 1:
            raise ValueError(f"Expected `patches` to be at least 1, but got {self.patches}.")


class DeYO(Adapter):
    r"""Learn from samples that are sure, and no longer so when the object in them is destroyed.

    Of the samples of entropy below ``entropy_margin``, those are kept, S, whose predicted class y loses more than tau
    when the image's patches are shuffled: :math:`D = p_y(x) - p_y(x') > \tau`. With them

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} \left(e^{E_0 - H_i} + e^{D_i}\right) H_i

    is minimised over scale and shift of the early normalisation layers (see `train_early_normalisation`), the weights
    being constants.

    As in the official code only the sure samples are shuffled and passed again, and BatchNorm uses the statistics of
    that part, so the host waits to know them. A single one of them is normalised by the source's statistics here, as
    every batch of one. The official code's other ways to destroy an object (a grey square, shuffled pixels) are left
    out. Sides that patches do not divide are resized and back, each by itself; the official code knows squares alone.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = DeYO(net, DeYOConfig(entropy_margin=1.1))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (2, 1)
    """

    name = "deyo"
    summary = "entropy minimisation on samples that hang on the object's shape"
    facts = Facts("ICLR 2024", "normalisation", "nothing", "2 forwards, 1 backward", "official code", distributed=True)
    Config = DeYOConfig
    datasets: ClassVar = {"imagenet": {"lr": 2.5e-4, "optimizer": "momentum", "drop": 0.3}, "digits": {"lr": 1e-2}}

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the early normalisation layers require gradients, nothing else."""
        trained = train_early_normalisation(model, "DeYO")
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the samples that count."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        if self.optimizer is not None:
            self._learn(images, log_probs)
        return log_probs

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
        """How much probability the predicted classes lose when the patches are shuffled."""
        shuffled = self.runtime.place_images(shuffle_patches(images, self.config.patches))
        after = self.logits(self.networks["model"], shuffled).log_softmax(-1)
        before, predicted = log_probs.max(-1, keepdim=True)
        return (before.exp() - after.gather(1, predicted).exp()).squeeze(1)


def shuffle_patches(images: Tensor, patches: int) -> Tensor:
    """Cut each image into ``patches`` x ``patches`` and put them together in a random order of its own.

    Example:
        >>> shuffle_patches(torch.rand(2, 3, 32, 50), 4).shape
        torch.Size([2, 3, 32, 50])
    """
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
