"""Entropies and cross-entropies of class probabilities, one value per sample."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cross_entropy", "entropy", "soft_likelihood_ratio", "symmetric_cross_entropy"]


def entropy(log_probs: Tensor) -> Tensor:
    r""":math:`H = -\sum_c p_c \log p_c`; uniform probabilities give log C."""
    return -(log_probs.exp() * log_probs).sum(-1)


def cross_entropy(log_target: Tensor, log_probs: Tensor) -> Tensor:
    r"""CE(target -> p) :math:`= -\sum_c t_c \log p_c`; its minimum, at p = t, is the entropy of t."""
    return -(log_target.exp() * log_probs).sum(-1)


def symmetric_cross_entropy(log_target: Tensor, log_probs: Tensor) -> Tensor:
    """Half CE(target -> p) plus half CE(p -> target), on the scale of `cross_entropy`.

    The VCoTTA paper prints the sum without the halves; its authors' code, and CoTTA's for ImageNet, halves.
    """
    return -0.5 * (log_target.exp() * log_probs + log_probs.exp() * log_target).sum(-1)


def soft_likelihood_ratio(log_probs: Tensor) -> Tensor:
    r""":math:`-\sum_c p_c \log(p_c / (1 - p_c) + \epsilon)` with p at most 0.99 and :math:`\epsilon = 10^{-5}`.

    Unlike the entropy's, its gradient does not vanish as predictions become sure, until they are clipped.
    """
    probs = log_probs.exp().clamp_max(0.99)
    return -(probs * torch.log(probs / (1 - probs) + 1e-5)).sum(-1)
