"""What CoTTA, PETAL and TCA share: a teacher that averages over views of a batch the source is unsure of."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vcotta.methods.base import Adapter
from vcotta.methods.parts.mean_teacher import student_and_teacher
from vcotta.nn.views import random_views

__all__ = ["ViewAveraging"]


class ViewAveraging(Adapter):
    """An adapter whose teacher averages its logits over views when an anchor, the source network, is unsure.

    As in CoTTA's official code, and unlike its paper's text, one confidence decides for the whole batch, and logits are
    averaged, not probabilities. Views are computed only when used, for which the host waits for the confidence.

    The method's config has ``views``, ``threshold``, ``flip``, ``lr`` and ``optimizer``.
    """

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the start network is the anchor."""
        self.networks = student_and_teacher(model)
        self.make_optimizer(model.parameters(), self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Learn the threshold, if the config leaves it open."""
        return self.learn_threshold(self.start, source)

    @property
    def uses_source(self) -> bool:
        """An open threshold is learned from source data."""
        return self.needs_source or self.config.threshold is None

    @torch.no_grad()
    def teacher_target(self, anchor: nn.Module, images: Tensor) -> Tensor:
        """Log-probabilities of the teacher, over views if the anchor's mean confidence is below the threshold."""
        config, teacher = self.config, self.networks["teacher"]
        confidence = self.logits(anchor, images).softmax(-1).amax(-1).mean().item()
        self.note(confidence=confidence)
        if confidence < self.threshold and config.views:
            views = random_views(images, config.views, flip=config.flip)
            return self.logits_of_views(teacher, views).mean(0).log_softmax(-1)
        return self.logits(teacher, images).log_softmax(-1)

    @torch.no_grad()
    def learn_threshold(self, anchor: nn.Module, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Learn an open threshold by CoTTA's rule: 5 % quantile of the confidence on source images, minus 0.05."""
        if self.config.threshold is not None:
            return {}
        batches = (self.logits(anchor, images, batch_statistics=False) for images, _ in source)
        confidences = torch.cat([logits.softmax(-1).amax(-1) for logits in batches])
        return {"threshold": confidences.double().quantile(0.05) - 0.05}

    @property
    def threshold(self) -> float:
        """The confidence below which views are used: as set, as learned, or else that of CIFAR10-C."""
        if self.config.threshold is not None:
            return float(self.config.threshold)
        return self.prepared["threshold"].item() if "threshold" in self.prepared else 0.92
