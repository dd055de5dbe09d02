"""What SWA and DSS share: a mean teacher whose confidence is compared with a threshold that follows the stream."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.nn.optim import OptimizerName

__all__ = ["SETTINGS", "ThresholdTeacher", "ThresholdTeacherConfig"]

SETTINGS: dict[str, dict[str, Any]] = {
    "imagenet": {"lr": 0.01, "optimizer": "sgd"},
    "digits": {"lr": 1e-2, "beta": 0.98},
}
"""Settings by data set."""


@dataclass(frozen=True)
class ThresholdTeacherConfig(StreamSettings):
    """Settings that such methods share. No published value is known; all are another method's or ours.

    Attributes:
        lr: Step size (CoTTA's: CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C (CoTTA's).
        beta: Decay of the teacher's average (CoTTA's 0.999).
        rate: Share of a batch in the threshold (0.01).
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    beta: UnitInterval = 0.999
    rate: UnitInterval = 0.01


class ThresholdTeacher(Adapter):
    """The teacher predicts and gives labels, the student learns from them, and the teacher averages the student.

    ``memory["threshold"]`` is a moving average of the batches' mean confidence, from one over the number of classes
    (FreeMatch's global threshold).
    """

    datasets: ClassVar = SETTINGS

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher."""
        self.networks = student_and_teacher(model)
        self.make_optimizer(model.parameters(), self.config.optimizer, self.config.lr)

    @abstractmethod
    def loss(
        self, student: nn.Module, images: Tensor, target: Tensor, threshold: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what the student minimises, and what is noted of it, given the teacher's log-probabilities."""

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student, then the teacher's average."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        with torch.no_grad():
            target = self.logits(teacher, images).log_softmax(-1)
        threshold = self.memory.get("threshold", target.new_full((), 1 / target.shape[-1]))
        loss, notes = self.loss(student, images, target, threshold)
        done = self.minimise(loss)
        update_teacher(teacher, student, config.beta, done)
        mean = target.exp().amax(-1).mean()
        self.memory["threshold"] = torch.where(done, torch.lerp(threshold, mean, config.rate), threshold)
        self.note(**notes)
        return target
