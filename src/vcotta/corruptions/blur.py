"""Blur: Gaussian, defocus, glass, motion and zoom."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vcotta.corruptions.filters import (
    centre_zoom,
    divided,
    extended,
    gaussian,
    images_first,
    space_first,
    truncated,
    unit,
    unit32,
)
from vcotta.corruptions.rng import CounterRng

__all__ = [
    "defocus_blur",
    "draw_glass_blur",
    "draw_motion_blur",
    "gaussian_blur",
    "glass_blur",
    "motion_blur",
    "motion_filter",
    "zoom_blur",
]


def gaussian_blur(images: Tensor, sigma: float) -> Tensor:
    """Blur with a Gaussian of radius int(4 sigma + 0.5), the last pixel repeated beyond the border."""
    return images_first(truncated(gaussian(unit(space_first(images)), sigma, "edge")))


@lru_cache(maxsize=32)
def defocus_kernel(radius: float, alias_sigma: float) -> tuple[tuple[float, tuple[tuple[int, int], ...]], ...]:
    """Return the smoothed disk as pairs of a non-zero weight and its offsets.

    The disk has sum 1; smoothing it mirrors at the kernel's own rim and is not renormalised, so that the disks that
    reach their rim (radius 8 and 10) have sums 1.0130 and 1.0108 and brighten the image.
    """
    reach = 8 if radius <= 8 else int(radius)
    grid = np.arange(-reach, reach + 1)
    disk = (grid[:, None] ** 2 + grid[None, :] ** 2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    half = 1 if radius <= 8 else 2
    taps = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * alias_sigma**2))
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in (1, 0):
        margins = [(0, 0), (0, 0)]
        margins[axis] = (half, half)
        padded = np.pad(disk, margins, mode="reflect")
        views = [np.take(padded, np.arange(len(grid)) + shift, axis=axis) for shift in range(2 * half + 1)]
        disk = views[half] * taps[half]
        for offset in range(1, half + 1):
            disk = disk + (views[half - offset] + views[half + offset]) * taps[half + offset]
    groups: dict[float, list[tuple[int, int]]] = {}
    for row, column in zip(*np.nonzero(disk), strict=True):
        groups.setdefault(float(disk[row, column]), []).append((int(row) - reach, int(column) - reach))
    return tuple((weight, tuple(offsets)) for weight, offsets in sorted(groups.items()))


def defocus_blur(images: Tensor, radius: float, alias_sigma: float) -> Tensor:
    """Correlate with a disk whose edge is softened, mirrored at the border.

    Pixels with the same weight are first summed as integers, which is exact and takes one addition a tap.
    """
    kernel = defocus_kernel(radius, alias_sigma)
    reach = max(abs(part) for _, offsets in kernel for offset in offsets for part in offset)
    height, width = images.shape[1:3]
    padded = extended(space_first(images).int(), reach, "mirror")
    total = torch.zeros((height, width, *padded.shape[2:]), dtype=torch.float64, device=images.device)
    for weight, offsets in kernel:
        level = torch.zeros(total.shape, dtype=torch.int32, device=images.device)
        for row, column in offsets:
            level += padded[reach + row :][:height, reach + column :][:, :width]
        total += level.double().mul_(weight)
    return images_first(total.clamp_(0, 255).to(torch.uint8))


def draw_glass_blur(rng: CounterRng, images: Tensor, sigma: float, reach: float, passes: float) -> tuple[Tensor]:
    """Draw (dx, dy) on -reach .. reach - 1 for each pass and visited pixel, in visiting order (last row first)."""
    d = int(reach)
    rows, columns = (max(side - 2 * d, 0) for side in images.shape[1:3])
    return (rng.integers(-d, d, int(passes), rows, columns, 2),)


def glass_blur(images: Tensor, offsets: Tensor, sigma: float, reach: float, passes: float) -> Tensor:
    """Blur, move pixels about locally in several passes, blur again.

    A pixel becomes a *copy* of one nearby; the original code means to swap them, but does not. Since offsets are only
    -d .. d - 1 with d the reach, content drifts down and to the right. Sigma 0.05 (CIFAR, severity 1) is no blur at
    all. ``offsets`` (N, passes, H - 2d, W - 2d, 2) are (dx, dy); entry [a, b] is for pixel (H - d - a, W - d - b).
    """
    count, height, width, channels = images.shape
    softened = gaussian(unit(space_first(images)), sigma, "edge").mul_(255).to(torch.uint8)
    pixels = images_first(softened).view(-1, channels)
    start = torch.arange(count, device=images.device).mul_(height * width)[:, None]
    for number in range(int(passes)):
        source = _glass_sources(offsets[:, number].long(), height, width, int(reach))
        pixels = pixels.index_select(0, (source + start).view(-1))
    moved = unit(space_first(pixels.view(images.shape)))
    return images_first(truncated(gaussian(moved, sigma, "edge")))


def _glass_sources(offsets: Tensor, height: int, width: int, d: int) -> Tensor:
    """Return for each pixel the flat index of the pass's input pixel that it ends up with, (N, H * W)."""
    device = offsets.device
    here = torch.arange(height * width, device=device).view(height, width)
    source = here.repeat(len(offsets), 1, 1)
    if offsets.numel():
        visited = source[:, d + 1 : height - d + 1, d + 1 : width - d + 1]
        visited += (offsets[..., 1] * width + offsets[..., 0]).flip(1, 2)
    source = source.view(len(offsets), -1)
    if d == 1:
        return source  # sources lie above or to the left, not yet rewritten: each is an input pixel
    inside = torch.zeros((height, width), dtype=torch.bool, device=device)
    inside[d + 1 : height - d + 1, d + 1 : width - d + 1] = True
    # A later source was rewritten earlier in the pass: follow its own link instead, doubling the stride each time.
    pending = (source > here.view(-1)) & inside.view(-1)[source]
    while bool(pending.any()):
        followed = torch.where(pending, source.gather(1, source), source)
        source, pending = followed, pending & pending.gather(1, source)
    return source


def draw_motion_blur(rng: CounterRng, images: Tensor, radius: float, sigma: float) -> tuple[Tensor]:
    """Draw one angle in degrees on -45 .. 45."""
    return (rng.uniform(1, low=-45, high=45)[:, 0],)


def motion_blur(images: Tensor, angles: Tensor, radius: float, sigma: float) -> Tensor:
    """Smear along a direction; see `motion_filter`. The kernel is one-sided, so the image also shifts."""
    return motion_filter(images, angles, radius, sigma)


def motion_filter(images: Tensor, angles: Tensor, radius: float, sigma: float) -> Tensor:
    """Average 2 ceil(radius) + 1 pixels in a row that starts at the pixel and runs off at an angle.

    Tap i has weight exp(-i^2 / 2 sigma^2) / sum and reads, without interpolation, the pixel displaced by
    (ceil(i cos a - 1/2), ceil(i sin a - 1/2)) columns and rows (rows count downwards), the last pixel repeated beyond
    the border. The result is quantised to 16 bits, q = floor(257 sum + 1/2), and then floor(q / 257). Angles (N,) are
    in degrees.
    """
    count, height, width = images.shape[:3]
    taps = 2 * math.ceil(radius) + 1
    weights = np.exp(-(np.arange(taps) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    radians = angles.double() * (math.pi / 180)
    along = torch.arange(taps, dtype=torch.float64, device=images.device)
    right = torch.ceil(along * radians.cos()[:, None] - 0.5).long()
    down = torch.ceil(along * radians.sin()[:, None] - 0.5).long()
    rows = (torch.arange(height, device=images.device) + down[..., None]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=images.device) + right[..., None]).clamp_(0, width - 1)
    rows += torch.arange(count, device=images.device).mul_(height)[:, None, None]
    planes = [plane.reshape(-1) for plane in images.double().unbind(-1)]
    totals = [torch.zeros_like(plane) for plane in planes]
    for tap, weight in enumerate(weights.tolist()):
        place = (rows[:, tap, :, None] * width + columns[:, tap, None, :]).view(-1)
        for plane, total in zip(planes, totals, strict=True):
            total += plane.index_select(0, place).mul_(weight)
    total = torch.stack(totals, dim=-1).view(images.shape)
    quantum = total.mul_(257).add_(0.5).floor_()
    return divided(quantum, 257).floor_().to(torch.uint8)


def zoom_blur(images: Tensor, step: float, number: float) -> Tensor:
    """Average the image with its zooms by 1, 1 + step, ... (the image itself counts twice), in float32.

    Whether the end of the range is one of the factors depends on rounding in the original code; the tables hold the
    resulting number of factors.
    """
    planes = unit32(space_first(images))
    exact = planes.double()
    total = planes.clone()  # zoom 1
    stride = (1 + step) - 1  # the step of numpy's range, which decides between 32 and 33 at zoom 1.25
    for factor in range(1, int(number)):
        total += centre_zoom(exact, 1 + factor * stride).float()
    return images_first(truncated(divided(planes + total, int(number) + 1)))
