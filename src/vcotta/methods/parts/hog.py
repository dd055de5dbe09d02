"""Histograms of oriented gradients, which a masked network is to predict."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["BINS", "cells_along", "hog", "hog_of_patches"]

BINS = 9


@torch.no_grad()
def hog(images: Tensor, cell: int) -> Tensor:
    r"""Return histograms of gradient directions, (batch, channels, bins, rows, columns), one for each cell.

    Sobel filters with reflected edges give :math:`g_x` and :math:`g_y` of each channel. A pixel adds its length
    :math:`\sqrt{g_x^2 + g_y^2}` to the bin :math:`\lfloor 9 \operatorname{atan2}(g_x, g_y) / \pi \rfloor \bmod 9` of
    its cell, a square of ``cell`` pixels; opposite directions share a bin. Each histogram is scaled to length 1, and
    stays 0 where nothing changes. Cells beyond the edge of the image are filled up with pixels that add nothing.

    Example:
        >>> hog(torch.ones(1, 3, 8, 8), 4).shape
        torch.Size([1, 3, 9, 2, 2])
    """
    batch, channels, height, width = images.shape
    padded = F.pad(images.flatten(0, 1).unsqueeze(1), (1, 1, 1, 1), mode="reflect")
    # Differences come first: where nothing changes they are exactly 0, and no rounding is scaled to length 1.
    across, down = padded[..., :-2] - padded[..., 2:], padded[..., :-2, :] - padded[..., 2:, :]
    across = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    down = down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]
    length = torch.hypot(across, down)
    angle = torch.atan2(across, down) / math.pi * BINS
    votes = torch.zeros_like(length).repeat(1, BINS, 1, 1).scatter_(1, angle.floor().long() % BINS, length)
    votes = F.pad(votes, (0, -width % cell, 0, -height % cell))
    sums = F.avg_pool2d(votes, cell, divisor_override=1)
    histograms: Tensor = F.normalize(sums, dim=1).unflatten(0, (batch, channels))
    return histograms


def hog_of_patches(images: Tensor, patch: int) -> Tensor:
    """Return the histograms of each patch, (batch, patches, values), row by row: those of 2 x 2 cells of half its side.

    A patch of an odd number of pixels is one cell.

    Example:
        >>> hog_of_patches(torch.rand(2, 3, 8, 12), 4).shape  # 9 bins of 3 channels in 4 cells
        torch.Size([2, 6, 108])
    """
    cells = cells_along(patch)
    rows, columns = (-(-side // patch) for side in images.shape[-2:])
    found = hog(images, patch // cells).flatten(1, 2)
    found = F.pad(found, (0, cells * columns - found.shape[-1], 0, cells * rows - found.shape[-2]))
    patches = found.unfold(2, cells, cells).unfold(3, cells, cells)  # (batch, values, rows, columns, cells, cells)
    return patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def cells_along(patch: int) -> int:
    """Return the number of cells along a side of a patch."""
    return 1 if patch % 2 else 2
