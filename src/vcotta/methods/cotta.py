"""CoTTA: averaged teacher, averaged views, stochastic restoration (Wang et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from vcotta._util.validation import NonNegative, NonNegativeInt, UnitInterval
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import restore_randomly, update_teacher
from vcotta.methods.parts.view_average import ViewAveraging
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName

__all__ = ["CoTTA", "CoTTAConfig"]


@dataclass(frozen=True)
class CoTTAConfig(StreamSettings):
    """Settings of CoTTA; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        views: Augmented views averaged when the source is unsure (32).
        threshold: p_th: views are used when the source's mean confidence is below it (CIFAR10-C 0.92, CIFAR100-C 0.72,
            ImageNet-C 0.1). None: learned from source data where given, else 0.92.
        restore: Probability that a student's weight returns to its source value after a step (0.01; ImageNet-C 0.001).
        beta: Decay of the teacher's average (0.999).
        loss: ``ce`` (CIFAR) or the symmetric ``sce`` (ImageNet).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    views: NonNegativeInt = 32
    threshold: float | None = None
    restore: UnitInterval = 0.01
    beta: UnitInterval = 0.999
    loss: Literal["ce", "sce"] = "ce"
    flip: bool = True


@register_method
class CoTTA(ViewAveraging):
    """The student learns from its moving average, which averages over views of a batch the source is unsure of.

    The use of views follows the official code and not the paper's text, see `ViewAveraging`. Weights are restored after
    the teacher's update.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> CoTTA(net, CoTTAConfig(views=2, threshold=1.0))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "cotta"
    summary = "mean teacher, view averaging, stochastic restoration"
    card = Card(
        "CVPR 2022", "everything", "nothing", "3 or N + 2 forwards, 1 backward", "official code", distributed=True
    )
    Config = CoTTAConfig
    datasets: ClassVar = {
        "cifar10": {"threshold": 0.92},
        "cifar100": {"threshold": 0.72},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "threshold": 0.1, "restore": 0.001, "loss": "sce"},
        "digits": {"lr": 1e-2, "beta": 0.98, "views": 8, "flip": False},
    }

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student towards it, then average and restore."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        target = self.teacher_target(self.start, images)
        log_probs = self.logits(student, images).log_softmax(-1)
        distance = cross_entropy if config.loss == "ce" else symmetric_cross_entropy
        done = self.minimise(distance(target, log_probs).mean())
        update_teacher(teacher, student, config.beta, done)
        restore_randomly(student, self.start, config.restore, done)
        return target
