"""VCoTTA's mixture of priors: the mixing weight alpha, the filter of views, and the mixture itself."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vcotta.methods.parts.losses import entropy

__all__ = ["AlphaRule", "filter_views", "mix", "mixing_weight"]

AlphaRule = Literal["entropy", "printed", "confidence"]
"""Rules of `mixing_weight`, described there."""

_CONFIDENCE_SCALE = 8e-4


def mixing_weight(source: Tensor, teacher: Tensor, rule: AlphaRule | float, tau: float = 1.0) -> Tensor:
    r"""Weight alpha of the source prior for every sample (paper, Eq. alpha), from log-probabilities of all views.

    * ``entropy``: mean over views of :math:`\mathrm{sigmoid}((H_{teacher} - H_{source}) / \tau)`: the prior that is
      more certain counts more, as the paper's text says.
    * ``printed``: the opposite sign, as the paper's equation says.
    * ``confidence``: the authors' code. With c the mean over views and classes of :math:`e^p p`,
      :math:`\mathrm{sigmoid}((c_{source} - c_{teacher}) / 0.0008)`.
    * a number in [0, 1]: itself.

    Log-probabilities are (views, batch, classes); alpha is (batch,). For ``entropy`` and ``printed`` the weight of a
    batch is its mean; for ``confidence`` the authors take the mean before the sigmoid: average over the samples first.
    """
    if isinstance(rule, str):
        if rule == "confidence":
            certainty = [(p.exp() * p).mean((0, 2)) for p in (source.exp(), teacher.exp())]
            return torch.sigmoid((certainty[0] - certainty[1]) / _CONFIDENCE_SCALE)
        sign = 1 if rule == "entropy" else -1
        return torch.sigmoid(sign * (entropy(teacher) - entropy(source)) / tau).mean(0)
    return source.new_full((source.shape[1],), rule)


def filter_views(log_probs: Tensor, margin: float) -> Tensor:
    r"""Average, per sample, the views of which a prior is surer than of the image (paper, Eq. teacher_aug).

    .. math:: \log p'(x) \propto \frac{\sum_i 1[\max p(x_i) > \max p(x_0) + \epsilon] \log p(x_i)}{\sum_i 1[\cdot]}

    over i = 1..N, and p(x_0) where no view passes; then normalised. The authors' code fails here with a shape error.

    Log-probabilities are (1 + views, batch, classes), the unchanged images first; a margin, epsilon, of -1 keeps every
    view.

    Example:
        >>> p = torch.tensor([[[0.6, 0.4]], [[0.9, 0.1]], [[0.5, 0.5]]])
        >>> filter_views(p.log(), margin=0.1).exp()
        tensor([[0.9000, 0.1000]])
    """
    confidence = log_probs.amax(-1).exp()
    keep = (confidence[1:] > confidence[0] + margin).unsqueeze(-1)
    count = keep.sum(0)
    average = (log_probs[1:] * keep).sum(0) / count.clamp_min(1)
    return torch.where(count > 0, average, log_probs[0]).log_softmax(-1)


def mix(source: Tensor, teacher: Tensor, alpha: Tensor) -> Tensor:
    """Logarithm of alpha * source + (1 - alpha) * teacher, a mixture of **probabilities** given as logarithms."""
    return torch.logaddexp(alpha.log() + source, (1 - alpha).log() + teacher)
