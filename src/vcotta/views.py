"""Random views of a batch at test time: the augmentation of CoTTA, as a few tensor operations on the whole batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vcotta._messages import unknown_name

__all__ = ["ViewKind", "random_view", "random_views"]

ViewKind = Literal["cotta", "roid"]
"""``cotta``, or ``roid``: reflect padding instead of edge padding, no blur and no noise."""

# Ranges of the uniform draws, as in CoTTA's code.
_BRIGHTNESS = (0.6, 1.4)
_CONTRAST = (0.7, 1.3)
_SATURATION = (0.5, 1.5)
_HUE = (-0.06, 0.06)
_GAMMA = (0.7, 1.3)
_ANGLE = (-15.0, 15.0)
_SHIFT = 1 / 16  # of the padded side, which is twice the image's
_SCALE = (0.9, 1.1)
_BLUR = (0.001, 0.5)
_NOISE = 0.005
_GREY = (0.2989, 0.587, 0.114)


def random_view(images: Tensor, *, flip: bool = True, per_image: bool = False, kind: ViewKind = "cotta") -> Tensor:
    """Draw one random view of a batch (CoTTA's augmentation, which VCoTTA shares, or ROID's form of it).

    In this order: clip to [0, 1]; brightness, contrast, saturation, hue and gamma in a random order; edge padding by
    half of each side; rotation by up to 15 degrees, shift by up to 1/16 of the padded sides in whole pixels, scale 0.9
    to 1.1, bilinear; Gaussian blur with 5 taps; centre crop to the original size; mirroring; Gaussian noise of 0.005;
    clip. Padding, affine map, crop and mirroring are one resampling here, with the same result. ROID's form pads by
    reflection about the outermost pixels, as torchvision does, and leaves out blur and noise.

    The parameters are drawn on the CPU from torch's global generator, so a GPU is never waited for.

    Args:
        images: Float images in [0, 1], (batch, channels, height, width). Saturation and hue apply to RGB only.
        flip: Whether to mirror half of the time. Turn it off where left and right matter, as in digits.
        per_image: Draw the parameters for each image instead of once for the batch (the order of the colour
            operations stays common). The methods at test time use one draw a batch, the warm-up one per image.
        kind: ``cotta`` or ``roid``; for equal draws they share colours, affine map and mirroring.

    Returns:
        A view of the same shape.

    Example:
        >>> random_view(torch.rand(2, 3, 32, 48)).shape
        torch.Size([2, 3, 32, 48])
    """
    draws = torch.rand(1, images.shape[0] if per_image else 1, 11)
    return _augment(images.unsqueeze(0), draws, torch.randperm(5).unsqueeze(0), flip, kind).squeeze(0)


def random_views(images: Tensor, count: int, *, flip: bool = True, kind: ViewKind = "cotta") -> Tensor:
    """Draw several views of a batch at once, each as `random_view` draws one, in a few operations on all of them.

    Args:
        images: As for `random_view`.
        count: Number of views, at least 1.
        flip: As for `random_view`.
        kind: As for `random_view`.

    Returns:
        The views, (count, batch, channels, height, width).

    Example:
        >>> random_views(torch.rand(2, 3, 8, 8), 4).shape
        torch.Size([4, 2, 3, 8, 8])
    """
    orders = torch.stack([torch.randperm(5) for _ in range(count)])
    return _augment(images.expand(count, *images.shape), torch.rand(count, 1, 11), orders, flip, kind)


def _augment(images: Tensor, draws: Tensor, orders: Tensor, flip: bool, kind: ViewKind = "cotta") -> Tensor:
    """Views of (views, batch, channels, height, width), from draws (views, batch or 1, 11) and orders (views, 5)."""
    if kind not in ("cotta", "roid"):
        raise unknown_name("kind", kind, ("cotta", "roid"))
    shape = images.shape
    images = _jitter(images.clamp(0, 1), draws[..., :5], orders)
    draws = draws.expand(-1, shape[1], -1).flatten(0, 1) if draws.shape[:2] != (1, 1) else draws.flatten(0, 1)
    if kind == "roid":
        return _warp(images.flatten(0, 1), draws[:, 5:10], flip, reflect=True).clamp_(0, 1).view(shape)
    images = _warp(images.flatten(0, 1), draws[:, 5:10], flip, rim=2)
    images = _blur(images, _uniform(draws[:, 10], _BLUR))
    return (images + _NOISE * torch.randn_like(images)).clamp_(0, 1).view(shape)


def _uniform(draws: Tensor, bounds: tuple[float, float]) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * draws


def _jitter(images: Tensor, draws: Tensor, orders: Tensor) -> Tensor:
    """Apply the five colour operations to every view in its own order; those that agree on a place go together."""
    values = draws.to(images.device, images.dtype, non_blocking=True)
    places = torch.argsort(orders, dim=0)  # for each place the views, sorted by their operation
    counts = [orders[:, place].bincount(minlength=5).tolist() for place in range(5)]
    groups = places.to(images.device, non_blocking=True)
    for place in range(5):
        if max(counts[place]) == len(orders):
            images = _colour(images, values, int(orders[0, place]))
            continue
        for operation, group in enumerate(groups[:, place].split(counts[place])):
            if len(group):
                images[group] = _colour(images[group], values[group], operation)
    return images


def _colour(images: Tensor, draws: Tensor, operation: int) -> Tensor:
    """One colour operation on (views, batch, channels, height, width); saturation and hue are for RGB only."""
    rgb = images.shape[2] == 3
    value = draws[..., operation, None, None, None]
    if operation == 0:
        return (images * _uniform(value, _BRIGHTNESS)).clamp_(0, 1)
    if operation == 1:
        mean = (_grey(images) if rgb else images).mean((2, 3, 4), keepdim=True)
        return torch.lerp(mean, images, _uniform(value, _CONTRAST)).clamp_(0, 1)
    if operation == 2 and rgb:
        return torch.lerp(_grey(images), images, _uniform(value, _SATURATION)).clamp_(0, 1)
    if operation == 3 and rgb:
        return _shift_hue(images, _uniform(value, _HUE))
    if operation == 4:
        return images.clamp(1e-8, 1) ** _uniform(value, _GAMMA)
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(-3)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue).unsqueeze(-3)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by ``shift`` of a full circle: RGB to HSV and back."""
    red, green, blue = images.unbind(-3)
    value, lowest = images.amax(-3), images.amin(-3)
    chroma = value - lowest
    safe = torch.where(chroma > 0, chroma, 1)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sector = sector + 6 * shift.squeeze(-3)
    # Channel n in (5, 3, 1) for R, G, B: value - chroma * max(0, min(k, 4 - k, 1)) with k = (n + sector) mod 6.
    k = torch.stack([sector + 5, sector + 3, sector + 1], -3).remainder(6)
    return value.unsqueeze(-3) - chroma.unsqueeze(-3) * torch.minimum(k, 4 - k).clamp(0, 1)


def _warp(images: Tensor, draws: Tensor, flip: bool, *, rim: int = 0, reflect: bool = False) -> Tensor:
    """Rotate, shift, scale and mirror about the centre; the result has a rim of some pixels, for the blur to eat."""
    height, width = images.shape[-2:]
    padded = (width + 2 * (width // 2), height + 2 * (height // 2))
    angle = torch.deg2rad(_uniform(draws[:, 0], _ANGLE))
    shift_x = ((2 * draws[:, 1] - 1) * _SHIFT * padded[0]).round()
    shift_y = ((2 * draws[:, 2] - 1) * _SHIFT * padded[1]).round()
    scale = _uniform(draws[:, 3], _SCALE)
    mirror = torch.where(draws[:, 4] < 0.5, -1.0, 1.0) if flip else torch.ones_like(scale)
    # Output pixel (x, y), counted from the centre, reads the source at R(-angle) / scale * ((mirror * x, y) - shift).
    cosine, sine = torch.cos(angle) / scale, torch.sin(angle) / scale
    maps = torch.stack(
        [
            torch.stack([mirror * cosine, sine, -cosine * shift_x - sine * shift_y], -1),
            torch.stack([-mirror * sine, cosine, sine * shift_x - cosine * shift_y], -1),
        ],
        1,
    )
    # grid_sample counts from -1 to 1: between the outer edges, or for reflection between the outermost pixels.
    spans = [max(side - 1, 1) if reflect else side for side in (width, height)]
    maps = maps * torch.tensor([[2 / spans[0]], [2 / spans[1]]])
    maps = maps.to(images.device, images.dtype, non_blocking=True)
    rows, columns = height + 2 * rim, width + 2 * rim
    x = torch.arange(columns, device=images.device, dtype=images.dtype) - (columns - 1) / 2
    y = torch.arange(rows, device=images.device, dtype=images.dtype) - (rows - 1) / 2
    points = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones_like(x).expand(rows, -1)], -1)
    grid = torch.einsum("hwk,bjk->bhwj", points, maps)
    # Clamping at the border is edge padding; only a long image can turn beyond the padded canvas, which is black there.
    places = grid
    if reflect:  # what is faded out beyond the canvas is its last pixel
        last = torch.tensor([(canvas - 1) / span for canvas, span in zip(padded, spans, strict=True)])
        last = last.to(images.device, images.dtype, non_blocking=True)
        places = grid.clamp(-last, last)
    warped = torch.nn.functional.grid_sample(
        images,
        places.expand(images.shape[0], -1, -1, -1),
        padding_mode="reflection" if reflect else "border",
        align_corners=reflect,
    )
    if height != width:
        for axis, (span, canvas) in enumerate(zip(spans, padded, strict=True)):
            inside = canvas / 2 + 0.5 - (grid[..., axis] * (span / 2)).abs()
            warped = warped * inside.clamp(0, 1).unsqueeze(1)
    return warped


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Separable Gaussian with 5 taps, without padding: the images lose 2 pixels on every side."""
    near = torch.exp(-0.5 / sigma.square())
    far = torch.exp(-2.0 / sigma.square())
    total = 1 + 2 * near + 2 * far
    centre, near, far = (
        (tap / total).to(images.device, images.dtype, non_blocking=True).view(-1, 1, 1, 1)
        for tap in (torch.ones_like(near), near, far)
    )
    for dim in (-2, -1):
        size = images.shape[dim] - 4
        taps = [images.narrow(dim, start, size) for start in range(5)]
        images = centre * taps[2] + near * (taps[1] + taps[3]) + far * (taps[0] + taps[4])
    return images
