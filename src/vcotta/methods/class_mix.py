"""Which classes a batch holds: the settings for streams that show classes in clumps, and the warning of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from vcotta._util.validation import Settings
from vcotta._util.warn import warn
from vcotta.methods.guard import DiversityWarning

__all__ = ["LATER", "ClumpWarning", "StreamSettings", "earlier_settings", "effective_classes", "recorded_settings"]

LATER = {"later": True}
"""Metadata of a setting that older records, made where it had its default, lack."""


@dataclass(frozen=True)
class StreamSettings(Settings):
    """Settings of how a stream's classes are taken into account; all methods that use batch statistics have them.

    Attributes:
        statistics: ``batch``: BatchNorm uses the batch's statistics, as published. ``inferred``: the source's
            statistics are the prior, batch and recent batches the evidence, whose weight counts classes and not only
            images; see `vcotta.nn.class_statistics.ClassStatistics`. Costs two forward passes of the source network,
            one if the method uses its predictions anyway.
        label_prior: Infer the label prior of the stream and use it in the predictions, see
            `vcotta.methods.label_prior.LabelPrior`.
    """

    statistics: Literal["batch", "inferred"] = field(default="batch", kw_only=True)
    label_prior: bool = field(default=False, kw_only=True)


def recorded_settings(config: Any) -> dict[str, Any]:
    """Return a config for a manifest: without fields of `StreamSettings` and `LATER` ones that have their defaults.

    So runs that were recorded before these fields existed are the same runs still.
    """
    own, later = type(config).__annotations__, _later(config)
    usual = {key: value for key, value in earlier_settings(config).items() if key in later or key not in own}
    return {key: value for key, value in asdict(config).items() if key not in usual or value != usual[key]}


def earlier_settings(config: Any) -> dict[str, Any]:
    """Return the values that settings had before they existed, by name."""
    return {one.name: one.default for one in fields(StreamSettings)} | _later(config)


def _later(config: Any) -> dict[str, Any]:
    return {one.name: one.default for one in fields(config) if one.metadata == LATER}


def effective_classes(log_probs: Tensor) -> Tensor:
    """Return how many classes a batch seems to hold: the exponential of the entropy of its mean prediction.

    Example:
        >>> import torch
        >>> effective_classes(torch.eye(4)[[0, 0, 2, 2]].clamp_min(1e-9).log()).round(decimals=3)
        tensor(2.)
    """
    mean = log_probs.exp().mean(0)
    return (-(mean * mean.clamp_min(1e-12).log()).sum()).exp()


_IN_A_ROW = 3  # a batch alone may look like clumps by chance, a corrupted one more so


class ClumpWarning:
    """Warns once if the batches of a stream seem to hold few classes.

    Where batches are normalised by their own statistics, it looks at the batches 4, 8, 16 and so on of a stream, so
    that looking costs next to nothing; where statistics are inferred, at every batch.

    Attributes:
        low: Whether labels seem not to come in random order; where that is not inferred, whether the latest batch, of
            eight images or more, held less than half the classes of one in random order.
        lows: How many batches in a row were low.
    """

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.done = self.low = False
        self.lows = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed stream needs."""
        return {"seen": list(self.seen), "done": self.done, "low": self.low, "lows": self.lows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.seen, self.done, self.low = list(state.get("seen", [])), state.get("done", False), state.get("low", False)
        self.lows = state.get("lows", 0)

    def wants(self, images: int, step: int) -> bool:
        """Whether to look at a batch of so many images, the ``step``-th of its stream."""
        return not self.done and images > 1 and step >= 4 and step & (step - 1) == 0

    def see(self, notes: Mapping[str, Any], images: int, method: str, *, inferred: bool) -> None:
        """Take in `Adapter.last` of a step, and warn when three in a row are low, or three looks in the mean."""
        diversity = notes["class_diversity"]
        shuffled = notes.get("random_order")
        self.low = images >= 8 and diversity < 0.5 if shuffled is None else shuffled < 0.5
        if math.isfinite(diversity):
            self.seen = [*self.seen, diversity][-3:]
        mean = sum(self.seen) / max(1, len(self.seen))
        self.lows = self.lows + 1 if self.low else 0
        if self.done or not (self.lows >= _IN_A_ROW if inferred else len(self.seen) == 3 and mean < 0.5):
            return
        self.done = True
        share = diversity if inferred else mean
        few = share < 0.75
        sign = f"its batches hold {share:.0%} of the classes of" if few else "neighbours agree more often than in"
        found = f"The labels of this stream seem correlated: {sign} a stream in random order. {method} "
        remedy = (
            "infers statistics and label prior there, which needs nothing from you."
            if inferred
            else "normalises each batch by its own statistics, which misleads it there. Try statistics='inferred' and "
            "label_prior=True."
        )
        warn(found + remedy, DiversityWarning)
