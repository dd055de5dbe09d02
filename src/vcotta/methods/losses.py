"""Entropies and cross-entropies of class probabilities, one value a sample."""

from __future__ import annotations

from torch import Tensor

__all__ = ["cross_entropy", "entropy", "symmetric_cross_entropy"]


def entropy(log_probs: Tensor) -> Tensor:
    r""":math:`H = -\sum_c p_c \log p_c`; uniform probabilities give log C.

    Example:
        >>> import torch
        >>> entropy(torch.zeros(1, 4).log_softmax(-1))
        tensor([1.3863])
    """
    return -(log_probs.exp() * log_probs).sum(-1)


def cross_entropy(log_target: Tensor, log_probs: Tensor) -> Tensor:
    r"""CE(target -> p) :math:`= -\sum_c t_c \log p_c`; its minimum, at p = t, is the entropy of t."""
    return -(log_target.exp() * log_probs).sum(-1)


def symmetric_cross_entropy(log_target: Tensor, log_probs: Tensor) -> Tensor:
    r"""Half CE(target -> p) and half CE(p -> target), so that it has the scale of `cross_entropy`.

    The VCoTTA paper prints the sum without the halves; its authors' code, and CoTTA's for ImageNet, halves.
    """
    return -0.5 * (log_target.exp() * log_probs + log_probs.exp() * log_target).sum(-1)
