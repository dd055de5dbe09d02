"""Which classes a batch holds: the settings for streams that show classes in clumps, and the warning of them."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from vcotta._util.validation import Settings
from vcotta.methods.guard import DiversityWarning
from vcotta.nn.class_statistics import expected_entropy

__all__ = ["ClumpWarning", "StreamSettings", "class_diversity", "effective_classes", "recorded_settings"]


@dataclass(frozen=True)
class StreamSettings(Settings):
    """Settings of how a stream's classes are taken into account; all methods that use batch statistics have them.

    Attributes:
        statistics: ``batch``: BatchNorm uses the batch's statistics, as published. ``inferred``: the source's
            statistics are the prior, batch and recent batches the evidence, whose weight counts classes and not only
            images; see `vcotta.nn.class_statistics.ClassStatistics`. Costs two forward passes of the source network,
            one if the method uses its predictions anyway, and one wait for the device.
        label_prior: Infer the label prior of the stream and use it in the predictions, see
            `vcotta.methods.label_prior.LabelPrior`.
    """

    statistics: Literal["batch", "inferred"] = field(default="batch", kw_only=True)
    label_prior: bool = field(default=False, kw_only=True)


def recorded_settings(config: Any) -> dict[str, Any]:
    """Return a config for a manifest: without the fields of `StreamSettings` that have their defaults.

    So runs that were recorded before these fields existed are the same runs still.
    """
    own = type(config).__annotations__
    usual = {one.name: one.default for one in fields(StreamSettings) if one.name not in own}
    return {key: value for key, value in asdict(config).items() if key not in usual or value != usual[key]}


def effective_classes(log_probs: Tensor) -> Tensor:
    """Return how many classes a batch seems to hold: the exponential of the entropy of its mean prediction.

    Example:
        >>> import torch
        >>> effective_classes(torch.eye(4)[[0, 0, 2, 2]].clamp_min(1e-9).log()).round(decimals=3)
        tensor(2.)
    """
    mean = log_probs.exp().mean(0)
    return (-(mean * mean.clamp_min(1e-12).log()).sum()).exp()


def class_diversity(log_probs: Tensor) -> Tensor:
    r"""How many classes a batch seems to hold, as a share of what a batch in random order holds, 0 to 1.

    With k the exponential of the entropy of the mean prediction, and k' the same for n images drawn uniformly from the
    classes (its expected entropy is computed exactly), it is :math:`(k - 1) / (k' - 1)`. One class gives 0.

    Args:
        log_probs: Log-probabilities of the batch, (n, classes).

    Example:
        >>> import torch
        >>> class_diversity(torch.eye(4).clamp_min(1e-9).log())  # one image of each of four classes
        tensor(1.)
        >>> class_diversity(torch.eye(4)[[2, 2, 2]].clamp_min(1e-9).log()).round(decimals=3)
        tensor(0.)
    """
    images, classes = log_probs.shape
    if images < 2 or classes < 2:
        return log_probs.new_zeros(())
    return ((effective_classes(log_probs) - 1) / math.expm1(expected_entropy(images, classes))).clamp(0, 1)


class ClumpWarning:
    """Warns once if the batches of a stream seem to hold few classes.

    Where batches are normalised by their own statistics, it looks at the batches 4, 8, 16 and so on of a stream, so
    that looking costs next to nothing; where statistics are inferred, at every batch.

    Attributes:
        low: Whether the latest batch, of eight images or more, held less than half the classes of one in random order.
    """

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.done = self.low = False

    def wants(self, images: int, step: int) -> bool:
        """Whether to look at a batch of so many images, the ``step``-th of its stream."""
        return not self.done and images > 1 and step >= 4 and step & (step - 1) == 0

    def see(self, diversity: float, images: int, method: str, *, inferred: bool) -> None:
        """Take in the diversity of a batch, and warn: at once if it is ``inferred``, else if that of three is low."""
        self.low = images >= 8 and diversity < 0.5
        if math.isfinite(diversity):
            self.seen = [*self.seen, diversity][-3:]
        mean = sum(self.seen) / max(1, len(self.seen))
        if self.done or not (self.low if inferred else len(self.seen) == 3 and mean < 0.5):
            return
        self.done = True
        found = f"The batches of this stream seem to hold few classes: {diversity if inferred else mean:.0%} of the "
        found += f"variety of a stream in random order. {method} "
        remedy = (
            "relies on the source's statistics there and learns less from them."
            if inferred
            else "normalises each batch by its own statistics, which misleads it there. Try statistics='inferred' and "
            "label_prior=True."
        )
        warnings.warn(found + remedy, DiversityWarning, stacklevel=6)
