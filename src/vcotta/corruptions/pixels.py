"""From 8-bit pixels to numbers and back, and the layout the filters work in."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["divided", "images_first", "space_first", "truncated", "unit", "unit32"]


def divided(values: Tensor, divisor: float) -> Tensor:
    """Divide in place, correctly rounded on every device.

    A GPU multiplies by the reciprocal when torch is given a number to divide by, which for v = u / 255 would lose a
    level in a tenth of all pixels that nothing else has changed; by a tensor it divides.
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

    The fraction is dropped, never rounded: the corrupted sets are half a level darker than they would be otherwise.
    """
    return values.clamp_(0, 1).mul_(255).to(torch.uint8)


def space_first(images: Tensor) -> Tensor:
    """Return (N, H, W, ...) as contiguous (H, W, N, ...), where a shift by a pixel moves one long block."""
    return images.movedim(0, 2).contiguous()


def images_first(planes: Tensor) -> Tensor:
    """Undo `space_first`."""
    return planes.movedim(2, 0).contiguous()
