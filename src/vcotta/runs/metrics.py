"""Scores of predictions: small pure functions, all fractions or nats, smaller is better for each.

``log_probs`` is (n, classes), the logarithm of probabilities; ``labels`` is (n,). ECE and AURC need only the largest
probability of each sample and whether it was right, so they also come as functions of those two.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["aurc", "aurc_of", "brier", "ece", "ece_of", "error", "nll"]

BINS = 15
# A row of log-probabilities sums to one; bfloat16 rounding moves the logarithm of that sum by less than this.
NORMALISED_WITHIN = 0.05


def error(log_probs: Tensor, labels: Tensor) -> float:
    """Return the share of wrong predictions, from 0 to 1: mean of [argmax_c p_c != y].

    Example:
        >>> error(torch.tensor([[0.9, 0.1], [0.8, 0.2]]).log(), torch.tensor([0, 1]))
        0.5
    """
    log_probs, labels = _checked(log_probs, labels)
    return float((log_probs.argmax(1) != labels).double().mean())


def nll(log_probs: Tensor, labels: Tensor) -> float:
    """Return the negative log-likelihood in nats: mean of -log p_y; infinite where a label was given probability 0.

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]).log(), torch.tensor([0, 1])), 4)
        0.4904
    """
    log_probs, labels = _checked(log_probs, labels)
    return float(-log_probs.gather(1, labels[:, None]).mean())


def brier(log_probs: Tensor, labels: Tensor) -> float:
    """Return the Brier score: mean over samples of sum_c (p_c - [c = y])^2, from 0 to 2.

    Example:
        >>> round(brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]).log(), torch.tensor([0, 1])), 4)
        0.25
    """
    log_probs, labels = _checked(log_probs, labels)
    off = log_probs.exp()
    off[torch.arange(len(labels)), labels] -= 1
    return float(off.square().sum(1).mean())


def ece(log_probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error of the largest probability; see `ece_of`.

    Example:
        >>> round(ece(torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log(), torch.tensor([0, 0])), 4)
        0.4
    """
    return ece_of(*_confidence(log_probs, labels), bins)


def aurc(log_probs: Tensor, labels: Tensor) -> float:
    """Return the area under the risk-coverage curve of the largest probability; see `aurc_of`.

    Example:
        >>> aurc(torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
        0.25
    """
    return aurc_of(*_confidence(log_probs, labels))


def ece_of(confidence: Tensor, correct: Tensor, bins: int = BINS) -> float:
    """Return the expected calibration error: sum over bins b of (n_b / n) |accuracy_b - mean confidence_b|.

    The bins ((i - 1) / bins, i / bins] have equal width; a confidence of 0 belongs to the first.

    Args:
        confidence: Probability of the predicted class, (n,).
        correct: Whether that class was right, (n,).
        bins: Number of bins.

    Example:
        >>> round(ece_of(torch.tensor([0.9, 0.9, 0.3]), torch.tensor([True, False, False])), 4)
        0.3667
    """
    confidence, correct = _checked_confidence(confidence, correct)
    if bins < 1:
        raise ValueError(f"Expected `bins` to be at least 1, but got {bins}.")
    edges = torch.arange(1, bins, dtype=torch.float64) / bins
    bin_of = torch.bucketize(confidence, edges)  # right-closed, as documented above
    gap = torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, correct - confidence)
    return float(gap.abs().sum() / len(confidence))


def aurc_of(confidence: Tensor, correct: Tensor) -> float:
    """Return the area under the risk-coverage curve: mean over k = 1..n of the error among the k most confident.

    Samples of equal confidence have no order of their own; each counts with the mean error of its group, which is
    the expectation over random orders and does not depend on the order of the data.

    Args:
        confidence: Probability of the predicted class, (n,).
        correct: Whether that class was right, (n,).

    Example:
        >>> round(aurc_of(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])), 4)
        0.2778
    """
    confidence, correct = _checked_confidence(confidence, correct)
    _, group, size = torch.unique(-confidence, sorted=True, return_inverse=True, return_counts=True)
    wrong = torch.zeros(len(size), dtype=torch.float64).index_add_(0, group, 1 - correct)
    risk = torch.repeat_interleave(wrong / size, size).cumsum(0) / torch.arange(1, len(confidence) + 1)
    return float(risk.mean())


def _confidence(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    log_probs, labels = _checked(log_probs, labels)
    top = log_probs.max(1)
    return top.values.exp().clamp(max=1), top.indices == labels


def _checked(log_probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both on the CPU in double precision, or say what is wrong with them."""
    if log_probs.ndim != 2 or not log_probs.is_floating_point():
        raise ValueError(
            f"Expected `log_probs` to be floats of shape (n, classes), but got {log_probs.dtype} of shape "
            f"{tuple(log_probs.shape)}."
        )
    if labels.shape != log_probs.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"Expected `labels` to be integers of shape ({len(log_probs)},), but got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    if not log_probs.numel():
        raise ValueError("Expected at least one sample and one class, but got none.")
    log_probs, labels = log_probs.detach().double().cpu(), labels.detach().long().cpu()
    if labels.min() < 0 or labels.max() >= log_probs.shape[1]:
        raise ValueError(
            f"Expected `labels` to be 0 to {log_probs.shape[1] - 1}, but got {int(labels.min())} to "
            f"{int(labels.max())}."
        )
    total = log_probs.logsumexp(1)
    if not bool((total.abs() < NORMALISED_WITHIN).all()):  # false for not-a-number too
        raise ValueError(
            f"Expected each row of `log_probs` to be log-probabilities that sum to one, but one sums to "
            f"{float(total[total.abs().argmax()].exp()):.3g}. Pass `logits.log_softmax(1)`."
        )
    return log_probs, labels


def _checked_confidence(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    if confidence.ndim != 1 or correct.shape != confidence.shape:
        raise ValueError(
            f"Expected `confidence` and `correct` to have one shape (n,), but got {tuple(confidence.shape)} and "
            f"{tuple(correct.shape)}."
        )
    if not len(confidence):
        raise ValueError("Expected at least one sample, but got none.")
    confidence, correct = confidence.detach().double().cpu(), correct.detach().double().cpu()
    if not bool(((confidence >= 0) & (confidence <= 1)).all()):
        raise ValueError(
            f"Expected `confidence` to be 0 to 1, but got {float(confidence.min())} to {float(confidence.max())}."
        )
    if not bool(((correct == 0) | (correct == 1)).all()):
        raise ValueError("Expected `correct` to be true or false for each sample, but got other values.")
    return confidence, correct
