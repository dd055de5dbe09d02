"""Digital: brightness, saturation, contrast and pixelation."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta.corruptions.filters import divided, images_first, space_first, truncated, unit

__all__ = ["brightness", "contrast", "pixelate", "saturate"]

# For hue sextants 0 .. 5, which of (V, t, p, q) is red, green and blue.
_SEXTANTS = ((0, 3, 2, 2, 1, 0), (1, 0, 0, 3, 2, 2), (2, 2, 1, 0, 0, 3))


def _to_hsv(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue, saturation and value in float64, each (N * H * W,); grey pixels have hue 0."""
    red, green, blue = unit(images.view(-1, 3).t().contiguous())
    value = torch.maximum(torch.maximum(red, green), blue)
    delta = value - torch.minimum(torch.minimum(red, green), blue)
    grey = delta == 0
    safe = delta.masked_fill(grey, 1)
    saturation = (delta / value).masked_fill_(grey, 0)
    hue = (green - blue) / safe
    hue = torch.where(green == value, 2 + (blue - red) / safe, hue)
    hue = torch.where(blue == value, 4 + (red - green) / safe, hue)
    return divided(hue, 6).remainder_(1).masked_fill_(grey, 0), saturation, value


def _from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Return the (N * H * W, 3) colours."""
    sixfold = hue * 6
    sextant = sixfold.floor()
    fraction = sixfold - sextant
    p = value * (1 - saturation)
    q = value * (1 - fraction * saturation)
    t = value * (1 - (1 - fraction) * saturation)
    candidates = torch.cat([value, t, p, q])
    here = torch.arange(hue.numel(), device=hue.device)
    which = torch.tensor(_SEXTANTS, device=hue.device) * hue.numel()
    sextant = sextant.long().remainder_(6)
    return torch.stack([candidates[channel[sextant] + here] for channel in which], dim=1)


def brightness(images: Tensor, added: float) -> Tensor:
    """Raise the V of HSV: V -> clip(V + c)."""
    hue, saturation, value = _to_hsv(images)
    return truncated(_from_hsv(hue, saturation, value.add_(added).clamp_(0, 1))).view(images.shape)


def saturate(images: Tensor, factor: float, offset: float) -> Tensor:
    """Change the S of HSV: S -> clip(factor S + offset).

    On CIFAR severities 1 and 2 reduce the colour and 3 to 5 increase it. Grey pixels have hue 0, so an offset tints
    them red.
    """
    hue, saturation, value = _to_hsv(images)
    return truncated(_from_hsv(hue, saturation.mul_(factor).add_(offset).clamp_(0, 1), value)).view(images.shape)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Shrink each channel towards its mean m over the image: clip((v - m) c + m)."""
    total = images.sum((1, 2), keepdim=True, dtype=torch.int64)
    mean = divided(total.double(), 255 * images.shape[1] * images.shape[2])
    return truncated((unit(images) - mean).mul_(factor).add_(mean))


def pixelate(images: Tensor, factor: float) -> Tensor:
    """Shrink to int(S * factor) with a box filter and enlarge again, with 8 bits in between and fixed-point weights.

    The width is resized first. (Pillow 13 begins with the height if H > 2 W, and differs by a level there.)
    """
    height, width = images.shape[1:3]
    planes = space_first(images)
    planes = _box_resize(planes, 1, max(1, int(width * factor)))
    planes = _box_resize(planes, 0, max(1, int(height * factor)))
    return images_first(_box_resize(_box_resize(planes, 1, width), 0, height))


@lru_cache(maxsize=128)
def _box_taps(length: int, size: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return (taps, size) source positions and weights, these in units of 2^-22; unused taps weigh 0."""
    scale = length / size
    support = max(scale, 1) / 2
    rows = []
    for place in range(size):
        centre = (place + 0.5) * scale
        first, end = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), length)
        rows.append([j for j in range(first, end) if -0.5 < (j - centre + 0.5) / max(scale, 1) <= 0.5])
    taps = max(map(len, rows))
    positions, weights = np.zeros((taps, size), dtype=np.int64), np.zeros((taps, size), dtype=np.int32)
    for place, row in enumerate(rows):
        positions[: len(row), place] = row
        weights[: len(row), place] = int(0.5 + (1 << 22) / len(row))
    return positions, weights


def _box_resize(planes: Tensor, dim: int, size: int) -> Tensor:
    shape = [1] * planes.dim()
    shape[dim] = size
    positions, weights = (torch.from_numpy(taps).to(planes.device) for taps in _box_taps(planes.shape[dim], size))
    if len(positions) == 1:
        return planes.index_select(dim, positions[0])
    wide = planes.int()
    total = torch.full((1,), 1 << 21, dtype=torch.int32, device=planes.device)
    for position, weight in zip(positions, weights, strict=True):
        total = total + wide.index_select(dim, position).mul_(weight.view(shape))
    return (total >> 22).to(torch.uint8)
