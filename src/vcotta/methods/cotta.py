"""CoTTA: averaged teacher, averaged views, stochastic restoration (Wang et al., CVPR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from vcotta.fields import check_fields
from vcotta.methods.base import OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.mean_teacher import restore_randomly, update_teacher
from vcotta.methods.view_average import ViewAveraging

__all__ = ["CoTTA", "CoTTAConfig"]


@dataclass(frozen=True)
class CoTTAConfig:
    """Settings of CoTTA; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        views: Augmented views averaged when the source is unsure (32).
        threshold: p_th: views are used when the source's mean confidence is below it (CIFAR10-C 0.92, CIFAR100-C 0.72,
            ImageNet-C 0.1). None: learned from source data where given, else 0.92.
        restore: Probability that a weight of the student is put back to its source value after a step (0.01;
            ImageNet-C 0.001).
        beta: Decay of the teacher's average (0.999).
        loss: ``ce`` (CIFAR) or the symmetric ``sce`` (ImageNet).
        flip: Whether views may mirror the image.
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    views: int = 32
    threshold: float | None = None
    restore: float = 0.01
    beta: float = 0.999
    loss: Literal["ce", "sce"] = "ce"
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.views < 0:
            raise ValueError(f"Expected `views` to be at least 0, but got {self.views}.")
        for name in ("restore", "beta"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")
        if self.lr < 0:
            raise ValueError(f"Expected `lr` to be at least 0, but got {self.lr}.")


class CoTTA(ViewAveraging):
    """The student learns from its moving average, which looks at many views of a batch the source is unsure of.

    When and how views are averaged follows the official code and not the paper's text, see `ViewAveraging`. The
    restoration comes after the teacher's update.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = CoTTA(net, CoTTAConfig(views=2, threshold=1.0))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (4, 1)
    """

    name = "cotta"
    summary = "mean teacher, view averaging, stochastic restoration"
    facts = Facts(
        "CVPR 2022", "everything", "nothing", "3 or N + 2 forwards, 1 backward", "official code", distributed=True
    )
    Config = CoTTAConfig
    datasets: ClassVar = {
        "cifar10": {"threshold": 0.92},
        "cifar100": {"threshold": 0.72},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "threshold": 0.1, "restore": 0.001, "loss": "sce"},
        "digits": {"lr": 1e-2, "beta": 0.98, "views": 8, "flip": False},
    }

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the start network is the anchor."""
        teacher = copy.deepcopy(model).requires_grad_(False)
        student = model.requires_grad_(True)
        self.networks = {"student": student, "teacher": teacher}
        self.make_optimizer(student.parameters(), self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Set an open threshold by the authors' rule."""
        return self.learn_threshold(self.start, source)

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
