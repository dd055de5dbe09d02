"""A prediction with its uncertainty: probabilities, entropies by cause, and whether to abstain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcotta.methods.parts.losses import entropy

__all__ = ["RECENT", "Prediction", "abstain", "check_request", "decompose"]

RECENT = 1000
"""Number of the latest images whose entropies an adapter keeps, as the reference for abstaining."""
_ENOUGH = 100


@dataclass(frozen=True)
class Prediction:
    r"""What `Adapter.predict` returns; every tensor has one row per image.

    With p the probabilities that one draw of the weights gives, and means over the draws,

    .. math:: \underbrace{H[E\,p]}_{predictive} = \underbrace{E\,H[p]}_{expected} + \underbrace{I}_{mutual\ information}

    The expected entropy is uncertainty of the image itself (aleatoric); the mutual information is disagreement of the
    draws, uncertainty about the weights (epistemic). A method without a posterior has one draw.

    Attributes:
        probabilities: (batch, classes), those the next ``adapter(images)`` would return, at the means of the weights.
        predictive_entropy: Entropy of the average over the draws, (batch,), in nats.
        expected_entropy: Average of the entropies of the draws.
        mutual_information: The difference of both.
        alpha: Weight of the source prior, (batch,); None for a method that has none.
        abstain: Whether to withhold the answer at the chosen coverage, (batch,).
    """

    probabilities: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    alpha: Tensor | None
    abstain: Tensor


def check_request(samples: int, coverage: float | None) -> None:
    """Raise unless there is at least one sample and the coverage is None or a share above 0."""
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"Expected `samples` to be a whole number of at least 1, but got {samples!r}.")
    if coverage is not None and (isinstance(coverage, bool) or not 0 < coverage <= 1):
        raise ValueError(f"Expected `coverage` to be above 0 and at most 1, or None, but got {coverage!r}.")


def decompose(log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Predictive entropy, expected entropy and mutual information of draws, (draws, batch, classes), each (batch,)."""
    expected = entropy(log_probs).mean(0)
    predictive = entropy(log_probs.exp().mean(0).clamp_min(torch.finfo(log_probs.dtype).tiny).log())
    return predictive, expected, (predictive - expected).clamp_min(0)


def abstain(entropies: Tensor, recent: Tensor, coverage: float | None) -> Tensor:
    """Return which images to withhold so that a share ``coverage`` of the stream is answered.

    The bound is the ``coverage`` quantile of ``recent``, the entropies of the stream's latest predictions: while the
    stream stays as it is, that share is answered, and when it gets harder more is withheld. Until a hundred images have
    been seen, the batch itself is part of the reference. Predictions that are not finite are withheld and are not part
    of it. None answers all.
    """
    if coverage is None:
        return torch.zeros_like(entropies, dtype=torch.bool)
    reference = recent if len(recent) >= _ENOUGH else torch.cat([recent, entropies])
    return ~(entropies <= reference.double().nanquantile(coverage).to(entropies.dtype))
