"""A prediction one can act on: probabilities, what kind of doubt there is about them, and when to say nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vcotta.methods.losses import entropy

__all__ = ["RECENT", "Prediction", "abstain", "check_request", "decompose"]

RECENT = 1000
"""Images of the stream whose entropies an adapter keeps, to know what is usual."""
_ENOUGH = 100


@dataclass(frozen=True)
class Prediction:
    r"""What `Adapter.predict` returns; every tensor has one row an image.

    With p the probabilities that one draw of the weights gives, and means over the draws,

    .. math:: \underbrace{H[E\,p]}_{predictive} = \underbrace{E\,H[p]}_{expected} + \underbrace{I}_{mutual\ information}

    The expected entropy is doubt that lies in the image itself; the mutual information is disagreement of the draws,
    doubt of the network about its own weights, which more data would settle.

    Attributes:
        probabilities: (batch, classes), what the next ``adapter(images)`` would answer, the weights at their means.
        predictive_entropy: Entropy of the average over the draws, (batch,), in nats. Where a method has no posterior
            to draw from, the entropy of ``probabilities``.
        expected_entropy: Average of the entropies of the draws.
        mutual_information: The difference of both; 0 where a method has no posterior.
        alpha: Weight of the source prior, (batch,); None where a method has none.
        abstain: Whether the answer is better withheld at the chosen coverage, (batch,).
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
    """Predictive entropy, expected entropy and mutual information of draws, (draws, batch, classes), each (batch,).

    Example:
        >>> opposite = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]).clamp(1e-9).log()  # two draws of one image
        >>> [round(value.item(), 3) for value in decompose(opposite)]
        [0.693, 0.0, 0.693]
    """
    expected = entropy(log_probs).mean(0)
    predictive = entropy(log_probs.exp().mean(0).clamp_min(torch.finfo(log_probs.dtype).tiny).log())
    return predictive, expected, (predictive - expected).clamp_min(0)


def abstain(entropies: Tensor, recent: Tensor, coverage: float | None) -> Tensor:
    """Return which images to withhold so that a share ``coverage`` of the stream is answered.

    The bound is the coverage's quantile of the entropies that the adapter's answers to the latest images of the stream
    had: on a stream as it was so far that share is answered, and when it gets harder more is withheld. A bound from the
    batch alone would withhold a fixed share of every batch, the best and the worst. While fewer than a hundred images
    have been seen, the batch itself counts as well. An answer that is not a number is withheld, and tells nothing of
    what is usual.

    Args:
        entropies: Of the answers in question, (batch,).
        recent: Of the answers to the latest images of the stream, at most `RECENT`.
        coverage: Share to be answered, above 0 and up to 1; None answers all.

    Example:
        >>> abstain(torch.tensor([0.1, 0.9]), torch.linspace(0, 1, 200), coverage=0.8)
        tensor([False,  True])
    """
    if coverage is None:
        return torch.zeros_like(entropies, dtype=torch.bool)
    usual = recent if len(recent) >= _ENOUGH else torch.cat([recent, entropies])
    return ~(entropies <= usual.double().nanquantile(coverage).to(entropies.dtype))
