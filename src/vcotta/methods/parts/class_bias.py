"""Which classes a network prefers in a domain, whatever it sees: what BatchNorm takes away, and other networks keep."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["class_bias"]

HORIZON = 70
"""Images over which the bias forgets (by a factor e): long enough for every class to come by, shorter than a domain."""


@torch.no_grad()
def class_bias(log_probs: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return the logits that a network adds to its classes on all images alike, and what to remember.

    With :math:`m_c` the mean of :math:`\log p_{ic}` over about the last `HORIZON` images, less its mean over the
    classes, :math:`s^2` the variance of :math:`\log p_{ic}` between images, n their number and C that of classes,

    .. math:: b_c = m_c \left(1 - \frac{C - 3}{C - 1} \frac{s^2}{n\,\overline{m^2}}\right)_+
        \min\left(1, \frac{s^2}{\overline{m^2}}\right)

    Corrected predictions, :math:`\mathrm{softmax}(\log p_i - b)`, favour no class in the long run. The first factor is
    that of James and Stein (1961): of few images and many classes, where :math:`m_c` is mostly chance, little is left.
    The second one spares streams that show one class for long: their answers hardly differ between images, and the
    preference is the images' own. It goes only so far, as nothing but the answers is known.

    DINO (Caron et al., 2021) centres its teacher's outputs by such a mean, so that sharpened targets do not collapse
    into one class. The factors are ours.

    Args:
        log_probs: (views, batch, classes); an image counts once, with the mean over its views.
        before: What to remember, of the batches before; None at the start. Values that are not finite leave it as it
            is.

    Returns:
        The bias, (classes,), and what to remember, (3, classes): number of images, sum and sum of squares.

    Example:
        >>> for_all = torch.tensor([1.0, 0.0, 0.0, 0.0])
        >>> bias, _ = class_bias((4 * torch.eye(4).repeat(200, 1) + for_all).log_softmax(-1).unsqueeze(0))
        >>> (bias - bias.min()).round(decimals=1)
        tensor([1., 0., 0., 0.])
    """
    values = log_probs.mean(0)
    images, classes = values.shape
    values = values - values.mean(-1, keepdim=True)
    now = torch.stack([torch.full_like(values[0], images), values.sum(0), values.square().sum(0)])
    before = torch.zeros_like(now) if before is None else before
    memory = torch.where(now.isfinite().all(), math.exp(-images / HORIZON) * before + now, before)
    count = memory[0].clamp_min(1)
    mean = memory[1] / count
    differ = (memory[2] / count - mean.square()).mean() / mean.square().mean().clamp_min(1e-12)
    chance = differ / count[0] * max(classes - 3, 0) / max(classes - 1, 1)
    return mean * (1 - chance).clamp_min(0) * differ.clamp(0, 1), memory
