"""Which classes a stream's batches hold: what an adapter infers of them, and what it keeps from batch to batch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from vcotta.methods.class_mix import ClumpWarning, StreamSettings, effective_classes
from vcotta.methods.label_prior import LabelPrior, Labels
from vcotta.methods.passes import Passes
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.nn.class_statistics import ClassStatistics
from vcotta.nn.sharing import current

__all__ = ["StreamClasses"]

BEGINNING = 200
"""Images with which a stream begins."""


class StreamClasses(Passes):
    """The part of `Adapter` that carries out its `StreamSettings`, and warns where batches hold few classes."""

    name: ClassVar[str]
    config: Any
    last: dict[str, Any]
    steps: int
    _normalises: bool  # whether the network has BatchNorm layers with running statistics
    _label_prior: LabelPrior | None
    _inferred_labels: Labels | None  # of the batch at hand
    _statistics: ClassStatistics
    _clumps: ClumpWarning

    def _forget_classes(self) -> None:
        """Know nothing of the stream."""
        settings = self.config if isinstance(self.config, StreamSettings) else StreamSettings()
        wanted = settings.label_prior or settings.statistics == "inferred"
        self._label_prior, self._inferred_labels = LabelPrior() if wanted else None, None
        self._statistics, self._inferred = ClassStatistics(), None
        self._clumps = ClumpWarning()

    def infer_labels(self, log_probs: Tensor) -> Labels | None:
        """Infer the labels of this batch, given the prediction that will be returned; None if nobody asked for them.

        A method calls it if its update is to know the label prior, too. They are there with ``statistics="inferred"``,
        which needs them, even if ``label_prior`` is off.
        """
        if self._label_prior is not None:
            self._inferred_labels = self._label_prior.infer(log_probs)
        return self._inferred_labels

    @torch.no_grad()
    def _look_at_classes(self, images: Tensor, *, always: bool = True) -> bool:
        """Infer which classes this batch holds, and BatchNorm's statistics for it; return whether it was done.

        With ``statistics="batch"`` only now and then, to warn where these mislead, and not unless ``always``.
        """
        self._inferred_labels = None
        statistics = self.config.statistics if isinstance(self.config, StreamSettings) else None
        inferred = statistics == "inferred" and self._normalises
        wanted = always and statistics == "batch" and self._normalises
        if not inferred and not (wanted and self._clumps.wants(len(images), self.steps + 1)):
            return False
        use_batch_statistics(self.start, False)
        prior = self._label_prior or LabelPrior()

        def label(log_probs: Tensor) -> tuple[Tensor, Tensor]:
            labels = prior.infer(log_probs)
            return labels.log_probs, labels.mixed

        look = (self._statistics if inferred else ClassStatistics()).infer(
            lambda: current().split(lambda rows: self.runtime.forward(self.start, rows), images),
            label,
            len(images),
            begins=self.steps * len(images) < BEGINNING,
        )
        self.note(class_diversity=look.diversity, effective_classes=effective_classes(look.log_probs))
        if inferred:
            self._inferred = look
            self.note(batch_share=look.share, random_order=look.mixed, forwards=2)
        return True

    def _learn_label_prior(self, log_probs: Tensor) -> Tensor:
        """Update the label prior with this batch, and return the prediction that it makes of the adapted one."""
        labels = self._inferred_labels or self.infer_labels(log_probs)
        if self._label_prior is None or labels is None:
            return log_probs
        self._label_prior.load_state_dict(labels.state, self.runtime.device)
        return labels.log_probs if self.config.label_prior else log_probs

    def _use_label_prior(self, log_probs: Tensor) -> Tensor:
        """Return the prediction with the label prior, which stays as it is."""
        prior = self._label_prior
        return log_probs if prior is None or not self.config.label_prior else prior(log_probs)

    def _learn_classes(self, images: int, looked: bool) -> None:
        """At the end of a step, keep what was inferred of a batch of so many images."""
        if looked:
            self._clumps.see(self.last, images, self.name, inferred=self._inferred is not None)
        if self._inferred is not None:
            self._statistics.memory = self._inferred.memory
        self._inferred = self._inferred_labels = None
