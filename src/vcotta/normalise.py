"""BatchNorm's formula by statistics that are given."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["normalise"]


def normalise(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise (batch, channels, ...) as ``F.batch_norm`` does, but with gradients through mean and variance.

    It is computed in the precision of the statistics where that is higher, and returned in that of ``x``.

    Example:
        >>> normalise(torch.tensor([[3.0]]), torch.tensor([1.0]), torch.tensor([4.0]), None, None, eps=0.0)
        tensor([[1.]])
    """
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    offset = -mean * scale if bias is None else bias - mean * scale
    channels = (1, -1, *[1] * (x.ndim - 2))
    precise = x.to(torch.promote_types(x.dtype, mean.dtype))
    return (precise * scale.view(channels) + offset.view(channels)).to(x.dtype)
