"""Which classes a batch holds: how far its own statistics can be trusted, and the label prior of the stream.

Cameras show classes in clumps. Both inferences here start from predictions alone and find a stream in random order by
themselves: there the batch's statistics are trusted and the label prior is flat.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from vcotta._util.validation import Settings

__all__ = ["ClumpWarning", "LabelPrior", "StreamSettings", "class_diversity", "recorded_settings"]

PRIOR_IMAGES = 8
"""Images that the source's statistics count as beside those of the batch."""
CAUTIOUS = 0.3
"""Largest share of the batch's statistics in the pass that looks for its classes."""
WINDOW = 50
"""Images over which the label prior forgets (by a factor e)."""
HORIZON = 2000
"""Images over which the concentration is learned."""
FLAT_IMAGES = 100
"""Images that the first guess, a flat label prior, counts as."""


@dataclass(frozen=True)
class StreamSettings(Settings):
    """Settings of how a stream's classes are taken into account; all methods that use batch statistics have them.

    Attributes:
        statistics: ``batch``: BatchNorm uses the batch's statistics, as published. ``inferred``: the source's
            statistics are the prior and the batch is the evidence, whose weight counts classes and not only images;
            see `class_diversity`. Costs one more forward pass and one wait for the device.
        label_prior: Infer the label prior of the stream and use it in the predictions, see `LabelPrior`.
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


@lru_cache(maxsize=64)
def _expected_entropy(images: int, classes: int) -> float:
    """Expected entropy of the class shares of so many images drawn uniformly, in nats; exact."""
    total, chance = 0.0, 1 / classes
    log_rest = math.log1p(-chance) if classes > 1 else 0.0
    for count in range(1, images + 1):
        ways = math.lgamma(images + 1) - math.lgamma(count + 1) - math.lgamma(images - count + 1)
        share = count / images
        total -= math.exp(ways + count * math.log(chance) + (images - count) * log_rest) * share * math.log(share)
    return classes * total


def class_diversity(log_probs: Tensor) -> Tensor:
    r"""How many classes a batch seems to hold, as a share of what a batch in random order holds, 0 to 1.

    With k the exponential of the entropy of the mean prediction, and k' the same for n images drawn uniformly from the
    classes (its expected entropy is computed exactly), it is :math:`(k - 1) / (k' - 1)`. One class gives 0.

    Args:
        log_probs: Log-probabilities of the batch, (n, classes).

    Example:
        >>> class_diversity(torch.eye(4).clamp_min(1e-9).log())  # one image of each of four classes
        tensor(1.)
        >>> class_diversity(torch.eye(4)[[2, 2, 2]].clamp_min(1e-9).log()).round(decimals=3)
        tensor(0.)
    """
    images, classes = log_probs.shape
    if images < 2 or classes < 2:
        return log_probs.new_zeros(())
    mean = log_probs.exp().mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum()
    return (torch.expm1(entropy) / math.expm1(_expected_entropy(images, classes))).clamp(0, 1)


class LabelPrior:
    r"""The label prior of a stream, inferred from predictions, with its own uncertainty.

    The labels of the batch and of the last `WINDOW` images share a prior :math:`\pi`, drawn from a symmetric Dirichlet
    distribution of concentration a. Twenty steps of EM (Saerens et al., 2002, with this prior) give :math:`\pi` and the
    predictions :math:`r_{ic} \propto p_{ic} \pi_c`. The concentration is learned along the stream by matching the
    second moment :math:`E \sum_c \pi_c^2 = (a + 1) / (C a + 1)`, corrected for the number of images: in random order it
    becomes large and the prior flat; where classes come in clumps it becomes small.

    Example:
        >>> prior, sure = LabelPrior(), torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> for _ in range(40):
        ...     _ = prior(sure.repeat(10, 1), update=True)
        >>> bool(prior(sure)[1, 0].exp() > 0.6)
        True
    """

    def __init__(self) -> None:
        self.counts: Tensor | None = None
        self.moment: Tensor | None = None
        self.squares = 0.0
        self.seen = float(FLAT_IMAGES)

    def concentration(self, classes: int) -> Tensor:
        """Return a, between 0.01 and 10 000."""
        if self.moment is None:
            return torch.tensor(1e4)
        moment = self.moment.clamp(1 / classes + 1e-6, 1 - 1e-6)
        return ((1 - moment) / (classes * moment - 1)).clamp(1e-2, 1e4)

    @torch.no_grad()
    def __call__(self, log_probs: Tensor, *, update: bool = False) -> Tensor:
        """Return the log-probabilities of a batch, (n, classes), with the prior taken into account.

        Args:
            log_probs: What the network predicts, for which all classes are equally likely.
            update: Whether the batch is part of the stream from now on.
        """
        count, classes = log_probs.shape
        keep = math.exp(-count / WINDOW)
        past = log_probs.new_zeros(classes) if self.counts is None else self.counts * keep
        a = self.concentration(classes).to(log_probs)
        prior = past + a
        counts = prior
        for _ in range(20):
            counts = prior + (log_probs + counts.log()).softmax(-1).sum(0)
        posterior = (log_probs + counts.log()).log_softmax(-1)
        if update:
            self._learn(past + posterior.exp().nan_to_num(0).sum(0), keep, count)  # an answer of NaN counts as none
        return posterior

    def _learn(self, counts: Tensor, keep: float, count: int) -> None:
        """Take a batch into counts and concentration."""
        total = counts.sum()
        self.squares = self.squares * keep**2 + count
        images = total.square() / self.squares  # the window's effective number of images
        raw = (counts / total).square().sum()
        moment = ((raw - 1 / images) / (1 - 1 / images).clamp_min(0.1)).clamp(0, 1)
        if self.moment is None:
            self.moment = torch.full_like(moment, 1 / len(counts))
        self.seen = min(self.seen + count, float(HORIZON))
        self.moment = self.moment.lerp(moment, min(1.0, count / self.seen))
        self.counts = counts

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed stream needs."""
        tensors = {} if self.counts is None else {"counts": self.counts.clone(), "moment": self.moment}
        return {"squares": self.squares, "seen": self.seen, **tensors}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str) -> None:
        """Continue from a `state_dict`."""
        self.squares, self.seen = float(state["squares"]), float(state["seen"])
        found = (state.get(name) for name in ("counts", "moment"))
        self.counts, self.moment = (None if one is None else one.to(device, copy=True) for one in found)


class ClumpWarning:
    """Warns once if batches that are normalised by their own statistics seem to hold too few classes for that.

    It looks at the batches 4, 8, 16 and so on of a stream, so that looking costs next to nothing.
    """

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.done = False

    def wants(self, images: int, step: int) -> bool:
        """Whether to look at a batch of so many images, the ``step``-th of its stream."""
        return not self.done and images > 1 and step >= 4 and step & (step - 1) == 0

    def see(self, diversity: float, method: str) -> None:
        """Take in the diversity of a batch, and warn if the mean of three or more is below a half."""
        if math.isfinite(diversity):
            self.seen.append(diversity)
        mean = sum(self.seen) / max(1, len(self.seen))
        if len(self.seen) < 3 or mean >= 0.5:
            return
        self.done = True
        warnings.warn(
            f"The batches of this stream seem to hold few classes: {mean:.0%} of the variety of a stream in random "
            f"order. {method} normalises each batch by its own statistics, which misleads it there. Try "
            "statistics='inferred' and label_prior=True.",
            stacklevel=5,
        )
