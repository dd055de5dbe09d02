"""Noise: Gaussian, shot, impulse and speckle; each is a pure function of the image and of numbers drawn before."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vcotta.corruptions.filters import divided, truncated, unit
from vcotta.corruptions.rng import CounterRng

__all__ = [
    "draw_impulse_noise",
    "draw_normals",
    "draw_shot_noise",
    "gaussian_noise",
    "impulse_noise",
    "shot_noise",
    "speckle_noise",
]


def draw_normals(rng: CounterRng, images: Tensor, std: float) -> tuple[Tensor]:
    """Draw N(0, std) for every pixel and channel."""
    return (rng.normal(*images.shape[1:], std=std),)


def gaussian_noise(images: Tensor, noise: Tensor, std: float) -> Tensor:
    """Add noise: clip(v + n)."""
    return truncated(unit(images).add_(noise))


def speckle_noise(images: Tensor, noise: Tensor, std: float) -> Tensor:
    """Add noise in proportion to the signal: clip(v + v * n)."""
    values = unit(images)
    return truncated(values + values * noise)


@lru_cache(maxsize=16)
def _poisson_thresholds(photons: float) -> Tensor:
    """Return floor(2**32 * P(count <= k)) for each of the 256 grey levels, k up to a power of two less one."""
    rates = np.arange(256) / 255 * photons
    size = 1 << math.ceil(math.log2(photons + 8 * math.sqrt(photons) + 16))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size)))])
    with np.errstate(divide="ignore"):
        log_rates = np.log(rates)
    log_probability = np.arange(1, size) * log_rates[:, None] - rates[:, None] - log_factorial[1:]
    probability = np.concatenate([np.exp(-rates)[:, None], np.exp(log_probability)], axis=1)
    return torch.from_numpy(np.floor(np.cumsum(probability, axis=1) * 2.0**32).astype(np.int64))


def draw_shot_noise(rng: CounterRng, images: Tensor, photons: float) -> tuple[Tensor]:
    """Draw Poisson(v * photons) by inverting its distribution function, one for each of the 256 grey levels.

    The inverse is a binary search over a row of thresholds, with the same number of steps for every pixel.
    """
    thresholds = _poisson_thresholds(photons).to(rng.device)
    size = thresholds.shape[1]
    flat = thresholds.view(-1)
    row = images.long().view(-1) * size
    uniform = rng.bits(*images.shape[1:]).view(-1)
    place, step = row.clone(), size // 2
    while step:
        place += (flat.index_select(0, place + (step - 1)) <= uniform) * step
        step //= 2
    return ((place - row).view(images.shape),)


def shot_noise(images: Tensor, counts: Tensor, photons: float) -> Tensor:
    """Count photons: clip(Poisson(v * photons) / photons)."""
    return truncated(divided(counts.double(), photons))


def draw_impulse_noise(rng: CounterRng, images: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Draw for every value whether it is hit, and whether a hit makes it white or black, with equal chance."""
    bits = rng.bits(*images.shape[1:])
    return (bits >> 1) < round(share * 2**31), (bits & 1).bool()


def impulse_noise(images: Tensor, hit: Tensor, white: Tensor, share: float) -> Tensor:
    """Set a share of the values, channel by channel, to 0 or 255; the others are unchanged."""
    return torch.where(hit, white.to(torch.uint8) * 255, images)
