"""Shared by the corruptions: conversion of pixels, borders, separable Gaussians and the centre zoom.

The filters work on (H, W, ...) tensors and add term by term in a fixed order, so that an image's result does not depend
on the other images in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Border",
    "border_index",
    "centre_zoom",
    "divided",
    "extended",
    "fold",
    "gaussian",
    "images_first",
    "space_first",
    "truncated",
    "unit",
    "unit32",
]

Border = Literal["edge", "mirror", "symmetric"]
"""Pixels beyond the border: the last one repeated, or reflected without it (c b | a b c) or with it (b a | a b c)."""


def divided(values: Tensor, divisor: float) -> Tensor:
    """Divide in place, correctly rounded on every device.

    Given a number, torch on a GPU multiplies by its reciprocal, which for v = u / 255 would lower a tenth of all
    unchanged pixels by a level; given a tensor, it divides.
    """
    return values.div_(torch.full((), divisor, dtype=values.dtype, device=values.device))


def unit(images: Tensor) -> Tensor:
    """Return v = u / 255 in float64."""
    return divided(images.double(), 255)


def unit32(images: Tensor) -> Tensor:
    """Return v = u / 255 in float32."""
    return divided(images.float(), 255)


def truncated(values: Tensor) -> Tensor:
    """Return trunc(clip(y) * 255) as uint8, overwriting ``values``.

    The fraction is dropped, not rounded: the corrupted sets are half a level darker than with rounding.
    """
    return values.clamp_(0, 1).mul_(255).to(torch.uint8)


def space_first(images: Tensor) -> Tensor:
    """Return (N, H, W, ...) as contiguous (H, W, N, ...), so that a shift by a pixel moves one long block."""
    return images.movedim(0, 2).contiguous()


def images_first(planes: Tensor) -> Tensor:
    """Undo `space_first`."""
    return planes.movedim(2, 0).contiguous()


def fold(positions: Tensor, length: int, border: Border) -> Tensor:
    """Map any integer positions to 0 .. length - 1."""
    if border == "edge" or length == 1:
        return positions.clamp(0, length - 1)
    if border == "mirror":
        period = 2 * (length - 1)
        wrapped = positions.remainder(period)
        return torch.minimum(wrapped, period - wrapped)
    wrapped = positions.remainder(2 * length)
    return torch.minimum(wrapped, 2 * length - 1 - wrapped)


def border_index(length: int, margin: int, border: Border, device: torch.device) -> Tensor:
    """Return the pixels that positions -margin .. length + margin - 1 read.

    Example:
        >>> border_index(3, 2, "mirror", torch.device("cpu")).tolist()
        [2, 1, 0, 1, 2, 1, 0]
    """
    return fold(torch.arange(-margin, length + margin, device=device), length, border)


def extended(values: Tensor, margin: int, border: Border) -> Tensor:
    """Pad the first two dimensions of (H, W, ...)."""
    for dim in (0, 1):
        values = values.index_select(dim, border_index(values.shape[dim], margin, border, values.device))
    return values


@lru_cache(maxsize=256)
def gaussian_weights(sigma: float, radius: int) -> tuple[float, ...]:
    """Return the weights at offsets 0 .. radius; over -radius .. radius they add up to 1."""
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / (sigma * sigma) * offsets**2)
    weights /= weights.sum()
    return tuple(weights[radius:].tolist())


def gaussian(values: Tensor, sigma: float, border: Border, truncate: float = 4.0) -> Tensor:
    """Blur the first two dimensions of (H, W, ...) with a separable Gaussian of radius int(truncate * sigma + 0.5).

    Rows first, the result of each axis stored in the input's precision. Each sum starts with the centre and then takes
    the symmetric pairs from the farthest to the nearest, which reproduces the reference to the last bit.
    """
    radius = int(truncate * sigma + 0.5)
    if sigma == 0 or radius == 0:
        return values
    weights = gaussian_weights(sigma, radius)
    for dim in (0, 1):
        wide = 2 * radius + 1 > 2 * values.shape[dim]
        exact = values.double()
        result = _folded(exact, weights, dim, border) if wide else _paired(exact, weights, dim, border)
        values = result.to(values.dtype)
    return values


def _paired(values: Tensor, weights: Sequence[float], dim: int, border: Border) -> Tensor:
    radius, length = len(weights) - 1, values.shape[dim]
    padded = values.index_select(dim, border_index(length, radius, border, values.device))
    total = values * weights[0]
    for offset in range(radius, 0, -1):
        pair = padded.narrow(dim, radius - offset, length) + padded.narrow(dim, radius + offset, length)
        total += pair.mul_(weights[offset])
    return total


def _folded(values: Tensor, weights: Sequence[float], dim: int, border: Border) -> Tensor:
    """Filter with a kernel longer than the image: the weights of its reflected taps are first summed for each pixel."""
    radius, length = len(weights) - 1, values.shape[dim]
    reads = border_index(length, radius, border, torch.device("cpu")).numpy()
    matrix = np.zeros((length, length))
    for row in range(length):
        np.add.at(matrix[row], reads[row : row + 2 * radius + 1], [*weights[:0:-1], *weights])
    columns = torch.from_numpy(matrix).to(values.device)
    lines = values.movedim(dim, 0)
    total = torch.zeros_like(lines)
    shape = (length, *[1] * (lines.dim() - 1))
    for source in range(length):  # no matrix product, whose order of summation may depend on the batch size
        total += columns[:, source].view(shape) * lines[source]
    return total.movedim(0, dim)


@lru_cache(maxsize=512)
def _zoom_taps(length: int, zoom: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each output its two source positions and the weight of the second."""
    side = math.ceil(length / zoom)
    start = (length - side) // 2
    enlarged = round(side * zoom)
    kept = np.arange(length) + (enlarged - length) // 2
    position = kept * ((side - 1) / (enlarged - 1)) if enlarged > 1 else np.zeros(length)
    low = np.minimum(np.floor(position).astype(np.int64), side - 1)
    high = np.minimum(low + 1, side - 1)
    first, second, share = (torch.from_numpy(taps).to(device) for taps in (low + start, high + start, position - low))
    return first, second, share


def centre_zoom(values: Tensor, zoom: float) -> Tensor:
    """Crop the centre of float64 (H, W, ...) by ``zoom`` and enlarge it linearly (corners aligned) to the old size.

    The crop is ceil(S / zoom) wide and becomes round(ceil(S / zoom) * zoom), of which the middle S are kept.
    """
    for dim in (0, 1):
        low, high, share = _zoom_taps(values.shape[dim], zoom, values.device)
        shape = [1] * values.dim()
        shape[dim] = -1
        share = share.view(shape)
        first, second = values.index_select(dim, low), values.index_select(dim, high)
        values = first.mul_(1 - share).add_(second.mul_(share))
    return values
