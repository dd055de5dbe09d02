"""CoTTA: averaged teacher, averaged views, stochastic restoration (Wang et al., CVPR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.checks import check_fields
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.mean_teacher import update_teacher
from vcotta.views import random_views

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


class CoTTA(Adapter):
    """The student learns from its moving average, which looks at many views of a batch the source is unsure of.

    As in the official code, and unlike the paper's text, one confidence decides for the whole batch and logits are
    averaged, not probabilities. The official CIFAR code computes the views even when it discards them; here they are
    made only when used. The restoration comes after the teacher's update.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = CoTTA(net, CoTTAConfig(views=2, threshold=1.0))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (4, 1)
    """

    name = "cotta"
    summary = "mean teacher, view averaging, stochastic restoration"
    facts = Facts("CVPR 2022", "everything", "nothing", "2 or N + 2 forwards, 1 backward", "official code")
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

    @torch.no_grad()
    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Set an open threshold by the authors' rule: 5 % quantile of the confidence on source images, minus 0.05."""
        if self.config.threshold is not None:
            return {}
        batches = (self.logits(self.start, images, batch_statistics=False) for images, _ in source)
        confidences = torch.cat([logits.softmax(-1).amax(-1) for logits in batches])
        return {"threshold": confidences.double().quantile(0.05) - 0.05}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student towards it, then average and restore."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        with torch.no_grad():
            confidence = self.logits(self.start, images).softmax(-1).amax(-1).mean().item()
            if confidence < self.threshold and config.views:
                views = random_views(images, config.views, flip=config.flip)
                target = self.logits_of_views(teacher, views).mean(0)
            else:
                target = self.logits(teacher, images)
            target = target.log_softmax(-1)
        log_probs = self.logits(student, images).log_softmax(-1)
        distance = cross_entropy if config.loss == "ce" else symmetric_cross_entropy
        self.note(confidence=confidence)
        done = self.minimise(distance(target, log_probs).mean())
        update_teacher(teacher, student, config.beta, done)
        self._restore(student, done)
        return target

    @property
    def threshold(self) -> float:
        """The confidence below which views are used: as set, as learned from source data, or CIFAR10-C's."""
        if self.config.threshold is not None:
            return float(self.config.threshold)
        return self.prepared["threshold"].item() if self.prepared else 0.92

    @torch.no_grad()
    def _restore(self, student: nn.Module, done: Tensor) -> None:
        """Put a random share of the student's parameters back to their source values."""
        if self.config.restore:
            for parameter, source in zip(student.parameters(), self.start.parameters(), strict=True):
                mask = torch.rand_like(parameter, dtype=torch.float32) < self.config.restore
                parameter.copy_(torch.where(mask & done, source, parameter))
