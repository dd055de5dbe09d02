"""Frames that no corruption makes: dark images, and the useless frames of a faulty camera."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

from vcotta.corruptions.rng import CounterRng, stream_key

__all__ = ["USELESS", "Useless", "darken", "useless_frames"]

Useless = Literal["blank", "noise", "stuck"]
"""Kinds of useless frames: black, random pixels, or one image again and again."""

USELESS: Final[tuple[Useless, ...]] = get_args(Useless)

_GAMMA: Final = 2.2  # pixel values are about the light to the power of 1 / 2.2


def darken(pixels: Tensor, severity: int) -> Tensor:
    """Return 8-bit images as they were with 2 ** severity times less light: ``severity`` stops less exposure.

    Every value is multiplied by 2 ** (-severity / 2.2) and rounded: by 0.73, 0.53, 0.39, 0.28 and 0.21 at severities 1
    to 5. The noise of a sensor in little light is left out.

    Example:
        >>> darken(torch.tensor([0, 100, 255], dtype=torch.uint8), severity=5)
        tensor([ 0, 21, 53], dtype=torch.uint8)
    """
    return pixels.float().mul_(2 ** (-severity / _GAMMA)).round_().to(torch.uint8)


def useless_frames(kind: Useless, pixels: Tensor, seed: int, burst: int, first: int = 0) -> Tensor:
    """Return useless frames in place of 8-bit images (n, height, width, 3); those of ``stuck`` are the images.

    Args:
        kind: Kind of frames.
        pixels: The images.
        seed: Seed of ``noise``, whose values are uniform and differ from frame to frame.
        burst: Number of the burst; each has its own noise.
        first: Place of the first of these frames in the burst.

    Example:
        >>> useless_frames("blank", torch.full((1, 1, 1, 3), 9, dtype=torch.uint8), seed=0, burst=0).tolist()
        [[[[0, 0, 0]]]]
    """
    if kind == "blank":
        return torch.zeros_like(pixels)
    if kind == "noise":
        places = range(first, first + len(pixels))
        rng = CounterRng(stream_key(seed, "useless", burst), places, pixels.device)
        return rng.bits(*pixels.shape[1:]).remainder_(256).to(torch.uint8)
    return pixels
