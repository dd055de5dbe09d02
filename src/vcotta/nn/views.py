"""Random views of a batch at test time, CoTTA's and AdaContrast's, as tensor operations on the whole batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from vcotta._util.errors import unknown_name
from vcotta.nn.augment import mirrored

__all__ = ["ViewKind", "image_and_views", "random_view", "random_views", "strong_view", "weak_view"]

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

_NUMBERS_IN_CACHE = 150_000
"""Pixels, times channels, that a processor keeps in its cache through some forty operations."""

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
    return torch.cat(list(_drawn(images, count, flip, kind)))


def image_and_views(images: Tensor, count: int, *, flip: bool = True) -> Iterator[Tensor]:
    """Yield the batch itself and `random_views`, (views, batch, channels, height, width), in one part or several.

    On a CPU a part is made when it is asked for, and is small enough to stay in the cache until it has been used.

    Example:
        >>> parts = list(image_and_views(torch.rand(2, 3, 32, 48), 4))
        >>> torch.cat(parts).shape
        torch.Size([5, 2, 3, 32, 48])
    """
    parts = itertools.chain([images.unsqueeze(0)], _drawn(images, count, flip, "cotta") if count else [])
    if images.device.type == "cpu":
        yield from parts
    else:
        yield torch.cat(list(parts))


def _drawn(images: Tensor, count: int, flip: bool, kind: ViewKind) -> Iterator[Tensor]:
    orders = torch.stack([torch.randperm(5) for _ in range(count)])
    return _augmented(images.expand(count, *images.shape), torch.rand(count, 1, 11), orders, flip, kind)


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
    return torch.cat(list(_augmented(images, draws, orders, flip, kind)))


def _augmented(images: Tensor, draws: Tensor, orders: Tensor, flip: bool, kind: ViewKind) -> Iterator[Tensor]:
    """`_augment`, in parts."""
    if kind not in ("cotta", "roid"):
        raise unknown_name("kind", kind, ("cotta", "roid"))
    count, batch = images.shape[:2]
    rows, each = draws.flatten(0, 1), draws.shape[1]  # a row of draws for each view, or for each of its images
    grids = _grids(images, rows[:, 5:10], flip, rim=0 if kind == "roid" else 2, reflect=kind == "roid")
    taps = _taps(_uniform(rows[:, 10], _BLUR), images)
    # A processor makes views one by one, so that each stays in its cache; a GPU makes all in a few kernels.
    size = min(count, max(1, _NUMBERS_IN_CACHE // images[0].numel())) if images.device.type == "cpu" else count
    repeats = 1 if each > 1 or size == 1 else batch
    for start in range(0, count, size):
        part, own = slice(start, start + size), slice(start * each, (start + size) * each)
        view = _jitter(images[part].clamp(0, 1), draws[part, :, :5], orders[part], _JITTER).flatten(0, 1)
        view = _resample(view, _repeated(grids[own], repeats), reflect=kind == "roid")
        if kind == "cotta":
            view = _blur_by(view, [_repeated(tap[own], repeats) for tap in taps])
            view.add_(torch.randn_like(view), alpha=_NOISE)
        yield view.clamp_(0, 1).unflatten(0, (-1, batch))


def _repeated(rows: Tensor, times: int) -> Tensor:
    """Each row so many times."""
    return rows.unsqueeze(1).expand(-1, times, *rows.shape[1:]).flatten(0, 1)


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
    if len(orders) == 1:
        for operation in orders[0].tolist():
            images = _colour(images, values, operation, ranges)
        return images
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
    """Change brightness, contrast, saturation, hue or gamma of (views, batch, channels, height, width).

    The images may be changed in place.
    """
    rgb = images.shape[2] == 3
    value = _uniform(draws[..., operation, None, None, None], ranges[operation])
    if operation == 0:
        return images.mul_(value).clamp_(0, 1)
    if operation == 1:
        mean = (_grey(images) if rgb else images).mean((2, 3, 4), keepdim=True)
        return torch.lerp(mean, images, value).clamp_(0, 1)
    if operation == 2 and rgb:
        return torch.lerp(_grey(images), images, value).clamp_(0, 1)
    if operation == 3 and rgb:
        return _shift_hue(images, value)
    if operation == 4:
        return images.clamp_(1e-8, 1).log2_().mul_(value).exp2_()  # faster than a power
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(-3)
    return (_GREY[0] * red).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2]).unsqueeze(-3)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by ``shift`` of a full circle: RGB to HSV and back."""
    red, green, blue = images.unbind(-3)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    safe = chroma.clamp_min(torch.finfo(chroma.dtype).tiny)  # grey has no hue: its differences are 0
    # The sector counts from the largest channel; signs are 0 there and 1 elsewhere, and faster than comparisons.
    beyond_green = torch.lerp(((blue - red) / safe).add_(2), ((red - green) / safe).add_(4), (value - green).sign_())
    sector = torch.lerp((green - blue) / safe, beyond_green, (value - red).sign_()) + 6 * shift.squeeze(-3)
    # Channel n in (5, 3, 1) for R, G, B: value - chroma * max(0, min(k, 4 - k, 1)) with k = (n + sector) mod 6.
    first = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype).view(3, 1, 1)
    k = sector.unsqueeze(-3) + first
    k.sub_((k / 6).floor_(), alpha=6)
    share = k.sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
    return torch.addcmul(value.unsqueeze(-3), chroma.unsqueeze(-3), share, value=-1)


def _sizes(images: Tensor, reflect: bool) -> tuple[list[int], tuple[int, int]]:
    """What ``grid_sample`` counts as 2, between the outer edges or for reflection the outermost pixels; the canvas."""
    height, width = images.shape[-2:]
    spans = [max(side - 1, 1) if reflect else side for side in (width, height)]
    return spans, (width + 2 * (width // 2), height + 2 * (height // 2))


def _grids(images: Tensor, draws: Tensor, flip: bool, *, rim: int, reflect: bool) -> Tensor:
    """For each row of draws where the pixels of a view are read, (rows, height, width, 2)."""
    height, width = images.shape[-2:]
    spans, padded = _sizes(images, reflect)
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
    maps = maps * torch.tensor([[2 / spans[0]], [2 / spans[1]]])
    maps = maps.to(images.device, images.dtype, non_blocking=True)
    rows, columns = height + 2 * rim, width + 2 * rim
    x = torch.arange(columns, device=images.device, dtype=images.dtype) - (columns - 1) / 2
    y = torch.arange(rows, device=images.device, dtype=images.dtype) - (rows - 1) / 2
    points = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones_like(x).expand(rows, -1)], -1)
    return torch.einsum("hwk,bjk->bhwj", points, maps)


def _resample(images: Tensor, grid: Tensor, *, reflect: bool) -> Tensor:
    """Read every image by its grid, or by the one of all."""
    height, width = images.shape[-2:]
    spans, padded = _sizes(images, reflect)
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


def _taps(sigma: Tensor, images: Tensor) -> list[Tensor]:
    """The weights of a pixel, of its neighbours and of theirs, for each standard deviation, (rows, 1, 1, 1) each."""
    near = torch.exp(-0.5 / sigma.square())
    far = torch.exp(-2.0 / sigma.square())
    total = 1 + 2 * near + 2 * far
    return [
        (tap / total).to(images.device, images.dtype, non_blocking=True).view(-1, 1, 1, 1)
        for tap in (torch.ones_like(near), near, far)
    ]


def _blur_by(images: Tensor, taps: list[Tensor]) -> Tensor:
    """Blur every image by its weights, or by those of all, first along the columns."""
    centre, near, far = taps
    for dim in (-2, -1):
        size = images.shape[dim] - 4
        moved = [images.narrow(dim, start, size) for start in range(5)]
        images = (centre * moved[2]).addcmul_(near, moved[1] + moved[3]).addcmul_(far, moved[0] + moved[4])
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
