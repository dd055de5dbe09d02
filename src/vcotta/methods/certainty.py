"""What ROID is made of: weights by certainty and diversity, the soft likelihood ratio and the prior correction."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["PriorCorrection", "certainty_and_diversity", "correct_prior", "soft_likelihood_ratio"]

PriorCorrection = Literal["logits", "probabilities", "none"]
"""What the smoothed class prior of a batch multiplies: ``logits`` (official code), ``probabilities``, or nothing."""

_ROUNDING = 1e-6  # differences of cosines or entropies that float32 cannot be trusted with


@torch.no_grad()
def certainty_and_diversity(log_probs: Tensor, average: Tensor, temperature: float) -> Tensor:
    r"""Weights of a batch's predictions, zero for those that resemble the average prediction.

    With diversity :math:`d_i = 1 - \cos(\bar p, p_i)` and certainty :math:`e_i = -H(p_i)`, each scaled to [0, 1] over
    the batch: :math:`w_i = \exp(d_i e_i / \tau)` where :math:`d_i` is at least its mean, else 0. The official code
    divides by zero when the batch's predictions do not differ (a single image does that); here all weights are 0 then.

    Args:
        log_probs: The predictions, (batch, classes).
        average: Average prediction of the past, a probability vector.
        temperature: :math:`\tau`.

    Returns:
        The weights, (batch,), without gradient: 0, or at least 1. NaN if a prediction is not finite.

    Example:
        >>> certainty_and_diversity(torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log(), torch.tensor([0.5, 0.5]), 1 / 3)
        tensor([ 0.0000, 20.0855])
    """
    probs = log_probs.exp()
    cosine = probs @ average / (probs.norm(dim=-1) * average.norm())
    values = torch.stack([1 - cosine, (probs * log_probs).sum(-1)])
    lowest, highest = values.aminmax(dim=-1, keepdim=True)
    span = highest - lowest
    diversity, certainty = (values - lowest) / span.clamp_min(_ROUNDING)
    weights = torch.exp(diversity * certainty / temperature)
    return torch.where((diversity < diversity.mean()) | (span <= _ROUNDING).any(), 0.0, weights)


def soft_likelihood_ratio(log_probs: Tensor, clip: float = 0.99, eps: float = 1e-5) -> Tensor:
    r""":math:`-\sum_c p_c \log(p_c / (1 - p_c) + \epsilon)` with p at most ``clip``, one value a sample.

    Unlike the entropy's, its gradient does not fade as predictions become sure, until they are clipped.

    Example:
        >>> soft_likelihood_ratio(torch.zeros(1, 11).log_softmax(-1))  # - log(1 / 10 + eps)
        tensor([2.3025])
    """
    probs = log_probs.exp().clamp_max(clip)
    return -(probs * torch.log(probs / (1 - probs) + eps)).sum(-1)


def correct_prior(logits: Tensor, what: PriorCorrection) -> Tensor:
    r"""Log-probabilities of a batch, corrected by the class prior it seems to have.

    The prior r is the mean prediction of the batch, smoothed to :math:`\tilde r = (r + s) / (1 + s C)` with
    :math:`s = \max(1/B, 1/C) / \max_c r_c`. The paper weights predictions by it, the official code multiplies the
    **logits** by it, which ranks classes differently and shrinks all logits by about C, so that its outputs are no
    probabilities worth the name.

    ``logits`` keeps that ranking and takes :math:`\mathrm{softmax}(C \tilde r \odot z)`: the factors are 1 on average,
    and a uniform prior leaves the plain softmax. ``probabilities`` normalises :math:`\tilde r \odot p`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [1.0, 1.1]])
        >>> correct_prior(logits, "none").argmax(-1), correct_prior(logits, "logits").argmax(-1)
        (tensor([0, 0, 1]), tensor([0, 0, 0]))
    """
    log_probs = logits.log_softmax(-1)
    if what == "none":
        return log_probs
    batch, classes = logits.shape
    prior = log_probs.exp().mean(0)
    smooth = max(1 / batch, 1 / classes) / prior.max()
    prior = (prior + smooth) / (1 + smooth * classes)
    return (classes * prior * logits if what == "logits" else log_probs + prior.log()).log_softmax(-1)
