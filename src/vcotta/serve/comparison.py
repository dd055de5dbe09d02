"""Whether a stream seems to do worse than the source network would, judged without labels.

Where images have changed, the source may be sure and wrong. It counts as sure only where it gives the same label when
it is normalised by the statistics of the batch: on foggy digits the two rarely agree on a wrong one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Comparison"]

EVERY = 4
"""Batches from one comparison to the next; each costs a pass of the source network."""

_SURE = 0.9  # probability from which the source counts as sure of an image
_ENOUGH = 60  # images, or sure images, before anything is said
_RECENT = 200  # images that an average remembers
_CONTRADICTED = 0.1
_UNSURE = 0.15  # of log C
_COLLAPSED = 0.5


class Comparison:
    """Compares a stream's predictions with the source network's on the same images, averaged over recent images.

    Attributes:
        contradiction: Share of the images the source is sure of (probability 0.9) that the stream classifies
            otherwise; None until there were enough of them.
        less_sure: By how much the stream's entropy exceeds the source's, as a share of that of chance.
        classes: Number of classes among the stream's predictions, by the entropy of their histogram, as a share of
            that of the source's predictions; None until there were enough images.

    Example:
        >>> seen, source = Comparison(), torch.eye(4).repeat(25, 1)
        >>> seen.see(source, source.roll(1, 0))
        >>> seen.contradiction, seen.flags()
        (1.0, ['contradiction'])
    """

    def __init__(self) -> None:
        self.images = 0.0
        self._sure = self._contradicted = self._excess = 0.0
        self._ours: Tensor | None = None
        self._theirs: Tensor | None = None

    @property
    def contradiction(self) -> float | None:
        """See the class."""
        return self._contradicted / self._sure if self._sure >= _ENOUGH else None

    @property
    def less_sure(self) -> float | None:
        """See the class."""
        return self._excess / self.images if self.images >= _ENOUGH else None

    @property
    def classes(self) -> float | None:
        """See the class."""
        if self._ours is None or self._theirs is None or self.images < _ENOUGH:
            return None
        return _number(self._ours) / _number(self._theirs)

    def see(self, source: Tensor, stream: Tensor, normalised: Tensor | None = None) -> None:
        """Take in what source and stream say of the same images.

        Args:
            source: The source's probabilities, (images, classes).
            stream: The stream's.
            normalised: The source's when it is normalised by the batch, if it can be.
        """
        kept = (1 - 1 / _RECENT) ** len(source)
        confidence, labels = source.max(1)
        chosen, sure = stream.argmax(1), confidence >= _SURE
        if normalised is not None:
            sure &= normalised.argmax(1) == labels
        chance = math.log(max(2, source.shape[1]))
        excess = (torch.special.entr(stream).sum(1) - torch.special.entr(source).sum(1)) / chance
        ours, theirs = (torch.bincount(found, minlength=source.shape[1]).double() for found in (chosen, labels))
        self.images = kept * self.images + len(source)
        self._sure = kept * self._sure + float(sure.sum())
        self._contradicted = kept * self._contradicted + float((sure & (labels != chosen)).sum())
        self._excess = kept * self._excess + float(excess.sum())
        self._ours = ours if self._ours is None else kept * self._ours + ours
        self._theirs = theirs if self._theirs is None else kept * self._theirs + theirs

    def flags(self) -> list[str]:
        """Return by which signs the stream seems to do worse: ``contradiction``, ``entropy``, ``collapse``."""
        signs = {
            "contradiction": (self.contradiction or 0.0) > _CONTRADICTED,
            "entropy": (self.less_sure or 0.0) > _UNSURE,
            "collapse": (1.0 if self.classes is None else self.classes) < _COLLAPSED,
        }
        return [name for name, seen in signs.items() if seen]


def _number(histogram: Tensor) -> float:
    return float(torch.special.entr(histogram / histogram.sum()).sum().exp())
