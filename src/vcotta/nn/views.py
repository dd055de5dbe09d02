"""Random views of a batch at test time, CoTTA's and AdaContrast's, as tensor operations on the whole batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from vcotta._util.errors import unknown_name
from vcotta.nn.augment import mirrored

__all__ = ["ViewKind", "random_view", "random_views", "strong_view", "weak_view"]

ViewKind = Literal["cotta", "roid"]
"""``cotta``, or ``roid``: reflect padding instead of edge padding, no blur and no noise."""

Range = tuple[float, float]

# Ranges of the uniform draws, as in CoTTA's code.
_JITTER: tuple[Range, ...] = ((0.6, 1.4), (0.7, 1.3), (0.5, 1.5), (-0.06, 0.06), (0.7, 1.3))  # as `_colour` has them
_ANGLE = (-15.0, 15.0)
_SHIFT = 1 / 16  # of the padded side, which is twice the image's
_SCALE = (0.9, 1.1)
_BLUR = (0.001, 0.5)
_NOISE = 0.005
_GREY = (0.2989, 0.587, 0.114)

# Ranges and probabilities of AdaContrast, its authors' "moco-v2-light".
_STRONG_JITTER: tuple[Range, ...] = ((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
_SIGMA = (0.1, 2.0)
_REACH = 6  # pixels each way: three of the largest standard deviations


def random_view(images: Tensor, *, flip: bool = True, per_image: bool = False, kind: ViewKind = "cotta") -> Tensor:
    """Draw one random view of a batch (CoTTA's augmentation, which VCoTTA shares, or ROID's form of it).

    In this order: clip to [0, 1]; brightness, contrast, saturation, hue and gamma in a random order; edge padding by
    half of each side; rotation by up to 15 degrees, shift by up to 1/16 of the padded sides in whole pixels, scale 0.9
    to 1.1, bilinear; Gaussian blur with 5 taps; centre crop to the original size; mirroring; Gaussian noise of 0.005;
    clip. Padding, affine map, crop and mirroring are one resampling here. ROID's form pads by reflection about the
    outermost pixels, as torchvision does, and has neither blur nor noise. Parameters are drawn on the CPU.

    Args:
        images: Float images in [0, 1], (batch, channels, height, width). Saturation and hue apply to RGB only.
        flip: Whether to mirror half of the time. Turn it off where left and right matter, as in digits.
        per_image: Draw parameters for each image instead of once for the batch; the order of the colour operations is
            the same for the batch.
        kind: ``cotta`` or ``roid``.

    Example:
        >>> random_view(torch.rand(2, 3, 32, 48)).shape
        torch.Size([2, 3, 32, 48])
    """
    draws = torch.rand(1, images.shape[0] if per_image else 1, 11)
    return _augment(images.unsqueeze(0), draws, torch.randperm(5).unsqueeze(0), flip, kind).squeeze(0)


def random_views(images: Tensor, count: int, *, flip: bool = True, kind: ViewKind = "cotta") -> Tensor:
    """Draw several views at once, each as `random_view` draws one, (count, batch, channels, height, width)."""
    orders = torch.stack([torch.randperm(5) for _ in range(count)])
    return _augment(images.expand(count, *images.shape), torch.rand(count, 1, 11), orders, flip, kind)


def weak_view(images: Tensor, *, flip: bool = True) -> Tensor:
    """Mirror each image half of the time; with ``flip=False`` the view is the image."""
    return mirrored(images) if flip else images


def strong_view(
    images: Tensor, *, flip: bool = True, jittered: float = 0.8, greyed: float = 0.2, blurred: float = 0.5
) -> Tensor:
    """Draw a strong view of each image (AdaContrast).

    In this order: brightness, contrast and saturation by factors of 0.6 to 1.4 and hue by up to 0.1 of the circle, in a
    random order; grey; Gaussian blur of standard deviation 0.1 to 2, edges repeated; mirroring half of the time. The
    default probabilities of colours, grey and blur are the published ones. Saturation, hue and grey apply to RGB only.

    Differs from the published pipeline in that images stay floats, where Pillow rounds to bytes after every operation
    and approximates the Gaussian by boxes.
    """
    batch = len(images)
    chances = torch.rand(3, batch).to(images.device, non_blocking=True).view(3, batch, 1, 1, 1)
    images = torch.where(chances[0] < jittered, _jitter_each(images), images)
    if images.shape[1] == 3:
        images = torch.where(chances[1] < greyed, _grey(images), images)
    sigma = _uniform(torch.rand(batch), _SIGMA).to(images.device, images.dtype, non_blocking=True)
    images = torch.where(chances[2] < blurred, _wide_blur(images, sigma), images)
    return weak_view(images.clamp(0, 1), flip=flip)


def _augment(images: Tensor, draws: Tensor, orders: Tensor, flip: bool, kind: ViewKind = "cotta") -> Tensor:
    """Views of (views, batch, channels, height, width), from draws (views, batch or 1, 11) and orders (views, 5)."""
    if kind not in ("cotta", "roid"):
        raise unknown_name("kind", kind, ("cotta", "roid"))
    shape = images.shape
    images = _jitter(images.clamp(0, 1), draws[..., :5], orders, _JITTER)
    draws = draws.expand(-1, shape[1], -1).flatten(0, 1) if draws.shape[:2] != (1, 1) else draws.flatten(0, 1)
    if kind == "roid":
        return _warp(images.flatten(0, 1), draws[:, 5:10], flip, reflect=True).clamp_(0, 1).view(shape)
    images = _warp(images.flatten(0, 1), draws[:, 5:10], flip, rim=2)
    images = _blur(images, _uniform(draws[:, 10], _BLUR))
    return (images + _NOISE * torch.randn_like(images)).clamp_(0, 1).view(shape)


def _uniform(draws: Tensor, bounds: Range) -> Tensor:
    return bounds[0] + (bounds[1] - bounds[0]) * draws


def _jitter_each(images: Tensor) -> Tensor:
    """Apply the four colour operations of `strong_view` to every image in an order of its own."""
    orders = torch.rand(len(images), 4).argsort(1)
    draws = torch.rand(len(images), 1, 4)
    return _jitter(images.unsqueeze(1).clone(), draws, orders, _STRONG_JITTER).squeeze(1)


def _jitter(images: Tensor, draws: Tensor, orders: Tensor, ranges: tuple[Range, ...]) -> Tensor:
    """Apply the colour operations, in place, to every view in its own order; views that agree on a place go together.

    Shapes: images (views, batch, channels, height, width), draws (views, batch or 1, operations), uniform on [0, 1],
    and orders (views, operations). ``ranges`` are what the draws are scaled to, by operation.
    """
    values = draws.to(images.device, images.dtype, non_blocking=True)
    places = torch.argsort(orders, dim=0)  # for each place the views, sorted by their operation
    counts = [orders[:, place].bincount(minlength=len(ranges)).tolist() for place in range(len(ranges))]
    groups = places.to(images.device, non_blocking=True)
    for place in range(len(ranges)):
        if max(counts[place]) == len(orders):
            images = _colour(images, values, int(orders[0, place]), ranges)
            continue
        for operation, group in enumerate(groups[:, place].split(counts[place])):
            if len(group):
                images[group] = _colour(images[group], values[group], operation, ranges)
    return images


def _colour(images: Tensor, draws: Tensor, operation: int, ranges: tuple[Range, ...]) -> Tensor:
    """Change brightness, contrast, saturation, hue or gamma of (views, batch, channels, height, width)."""
    rgb = images.shape[2] == 3
    value = _uniform(draws[..., operation, None, None, None], ranges[operation])
    if operation == 0:
        return (images * value).clamp_(0, 1)
    if operation == 1:
        mean = (_grey(images) if rgb else images).mean((2, 3, 4), keepdim=True)
        return torch.lerp(mean, images, value).clamp_(0, 1)
    if operation == 2 and rgb:
        return torch.lerp(_grey(images), images, value).clamp_(0, 1)
    if operation == 3 and rgb:
        return _shift_hue(images, value)
    if operation == 4:
        return images.clamp(1e-8, 1) ** value
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
    """Rotate, shift, scale and mirror about the centre; the result has a rim of pixels that the blur removes."""
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
    # Clamping at the border is edge padding; only an oblong image can turn beyond the padded canvas, where it is black.
    places = grid
    if reflect:  # beyond the canvas its last pixel fades out
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


def _wide_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Separable Gaussian with a standard deviation for each image, edges repeated: a matrix for each image and side."""
    offsets = torch.arange(-_REACH, _REACH + 1, device=images.device)
    taps = torch.exp(-0.5 * (offsets / sigma.unsqueeze(1)).square())
    taps = (taps / taps.sum(1, keepdim=True)).to(images.dtype)
    down, across = (_band(taps, offsets, side).unsqueeze(1) for side in images.shape[-2:])
    return down @ images @ across.mT


def _band(taps: Tensor, offsets: Tensor, size: int) -> Tensor:
    """Matrices (batch, size, size) whose row i holds each tap in the column of its neighbour, clamped to the image."""
    places = torch.arange(size, device=taps.device)
    neighbours = (places.unsqueeze(1) + offsets).clamp(0, size - 1)
    return torch.einsum("bo,ioj->bij", taps, (neighbours.unsqueeze(2) == places).to(taps.dtype))
