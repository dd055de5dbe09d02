"""Continual-MAE: hide the patches that views change most (adaptive distribution masked autoencoders, CVPR 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.hog import BINS, cells_along, hog_of_patches
from vcotta.methods.parts.losses import cross_entropy
from vcotta.methods.parts.mean_teacher import restore_randomly
from vcotta.methods.parts.patches import Masked, make_masked
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_views

__all__ = ["ContinualMAE", "ContinualMAEConfig"]


@dataclass(frozen=True)
class ContinualMAEConfig(StreamSettings):
    """Settings of Continual-MAE; defaults from the official code, which is for a ViT-B/16 on CIFAR10-C alone.

    Attributes:
        lr: Step size (1e-5).
        optimizer: ``adam`` or ``sgd``.
        views: Augmented views that say how uncertain each patch is (10).
        mask: Share of an image's patches that is hidden (0.5).
        hog: Weight of the reconstruction (0.5).
        restore: Probability that a weight returns to its source value after a step (0.01).
        patch: Side of a patch in pixels for a network that is not a vision transformer (ours: 4, for ImageNet 32, as
            wide as a value of the last map of features of a WRN-28-10 or a ResNet-50).
        warm_up_images: Source images, without labels, at most, on which mask token and decoder are trained before the
            stream, in one pass (0).
        warm_up_lr: Step size of that training, by Adam (1e-3, ours).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-5
    optimizer: OptimizerName = "adam"
    views: NonNegativeInt = 10
    mask: UnitInterval = 0.5
    hog: NonNegative = 0.5
    restore: UnitInterval = 0.01
    patch: Count = 4
    warm_up_images: NonNegativeInt = 0
    warm_up_lr: NonNegative = 1e-3
    flip: bool = True


class Decoder(nn.Module):
    """The mask token, and a linear layer from the features of a patch to its histograms of gradients."""

    def __init__(self, masked: Masked) -> None:
        super().__init__()
        self.token = masked.token
        self.head = nn.Linear(masked.width, masked.channels * BINS * cells_along(masked.patch) ** 2)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)


@register_method
class ContinualMAE(Adapter):
    r"""Predict images as if nothing were hidden, and the hidden patches' gradients, where views differ most.

    A patch is as uncertain as the mean of its features varies over random views of the image. The half of an image's
    patches that is most uncertain is hidden behind a learned token. With the prediction q for the whole image, which is
    returned and carries no gradient, and p for the masked one, all weights, the token and a linear decoder minimise

    .. math:: L = \mathrm{CE}(q, p) + \tfrac12 \operatorname{mean}_{i\ \mathrm{hidden}} \|W h_i - HOG_i\|^2 / d,

    where :math:`h_i` are the features of a hidden patch and :math:`HOG_i` the d values of its histograms of gradients,
    see `hog_of_patches`. Then some weights return to the source's. There is no moving average: what predicts the whole
    image is the student itself, as in the official code, where the teacher is a copy made after every step.

    As there, of a vision transformer neither class token nor position embeddings are trained, and token and decoder
    start untrained; ``warm_up_images`` trains them before the stream, by the same loss with the network frozen. Images
    are taken as they are, where the official code enlarges those of CIFAR to 384 pixels, and a cell of a histogram is
    half a patch. Networks that are not vision transformers get masks of pixels, see `PixelMasked`; the official code
    has no such form and settings for CIFAR10-C alone, so this form and the other settings are ours.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> ContinualMAE(net, ContinualMAEConfig(views=2))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "continual-mae"
    summary = "uncertain patches masked, prediction and gradients restored"
    card = Card("CVPR 2024", "everything", "nothing", "N + 2 forwards, 1 backward", "official code", distributed=True)
    Config = ContinualMAEConfig
    datasets: ClassVar = {
        "imagenet": {"patch": 32},
        "digits": {"lr": 1e-4, "mask": 0.25, "views": 4, "flip": False},
    }

    masked: Masked

    @property
    def uses_source(self) -> bool:
        """Source images are needed for the training of token and decoder, if there is one."""
        return bool(self.config.warm_up_images)

    def setup(self, model: nn.Module) -> None:
        """Make token and decoder, as they were after the training on source images if there was one."""
        self.masked = make_masked(model, self.config.patch)
        decoder = self.runtime.place(Decoder(self.masked))
        with torch.no_grad():
            for name, parameter in decoder.named_parameters():
                parameter.copy_(self.prepared.get(name, parameter))
        self.networks = {"model": model, "decoder": decoder}
        model.requires_grad_(False)
        named = [parameter for name, parameter in model.named_parameters() if name.endswith(("weight", "bias"))]
        trained = [*(parameter.requires_grad_() for parameter in named), *decoder.parameters()]
        self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    @torch.enable_grad()
    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Mask token and decoder, trained on source images with the network frozen, if the settings ask for it."""
        left, decoder = self.config.warm_up_images, self.networks["decoder"]
        if not left:
            return {}
        self.networks["model"].requires_grad_(False)
        self.make_optimizer(decoder.parameters(), "adam", self.config.warm_up_lr)
        for images, _ in source:
            self.minimise(self._loss(images[:left])[1])
            left -= len(images)
            if left <= 0:
                break
        return {name: parameter.detach() for name, parameter in decoder.named_parameters()}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step towards the same prediction for the masked images, and restore."""
        if self.uses_source and "token" not in self.prepared:
            raise ValueError(
                "Expected continual-mae to be prepared on source images, as `warm_up_images` is "
                f"{self.config.warm_up_images}, but it was not. Give build_adapter(..., source=loader)."
            )
        log_probs, loss = self._loss(images)
        done = self.minimise(loss)
        restore_randomly(self.networks["model"], self.start, self.config.restore, done)
        return log_probs

    def _loss(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The prediction for whole images, and the loss."""
        hidden = self._most_uncertain(images)
        with torch.no_grad():
            whole = self.logits(self.networks["model"], images).log_softmax(-1)
        covered = self.runtime.place_images(self.masked.cover(images, hidden))
        with self.masked.features(images) as caught:
            log_probs = self.logits(self.masked, covered).log_softmax(-1)
        fit = cross_entropy(whole, log_probs).mean()
        histograms = hog_of_patches(images, self.masked.patch)
        decoded: Tensor = self.networks["decoder"].get_submodule("head")(caught[0].to(histograms))
        errors = (decoded - histograms).square().mean(-1)
        reconstruction = (hidden * errors).sum() / hidden.sum().clamp_min(1)
        self.note(fit=fit.detach(), reconstruction=reconstruction.detach())
        return whole, fit + self.config.hog * reconstruction

    @torch.no_grad()
    def _most_uncertain(self, images: Tensor) -> Tensor:
        """Which patches to hide, (batch, patches): those whose mean feature varies most over views."""
        views = random_views(images, self.config.views, flip=self.config.flip) if self.config.views else ()
        with self.masked.features(images) as caught:
            for view in views:
                self.logits(self.networks["model"], self.runtime.place_images(view))
        means = [features.mean(-1) for features in caught]
        rows, columns = self.masked.grid(images)
        blank = images.new_zeros(len(images), rows * columns)
        variances = torch.stack(means).var(0, correction=0) if means else torch.rand_like(blank)
        count = int(self.config.mask * rows * columns)
        return blank.scatter(1, variances.topk(count, dim=1).indices, 1) > 0
