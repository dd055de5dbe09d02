"""Training augmentation on the whole batch: shifts, mirroring, AugMix, random operations, CutMix and mixup."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["augmix", "changed", "mirrored", "mixed_with_partners", "shifted"]

_LEVEL = 3.0  # AugMix's severity of at most 10: levels are uniform on 0.1 to 3
_CHAINS = 3
_LONGEST = 3


def shifted(images: Tensor, reach: int) -> Tensor:
    """Move each image by a random whole number of pixels, up to ``reach`` along each axis; edges are repeated."""
    if reach == 0:
        return images
    count, _, height, width = images.shape
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    down, right = torch.randint(0, 2 * reach + 1, (2, count, 1), device=images.device)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    # Indices around a slice put the sliced axis last: (n, height, width, channels).
    return padded[image, :, (down + rows).unsqueeze(2), (right + columns).unsqueeze(1)].permute(0, 3, 1, 2)


def mirrored(images: Tensor) -> Tensor:
    """Mirror each image left to right with probability one half."""
    flip = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(flip, images.flip(-1), images)


def augmix(images: Tensor) -> Tensor:
    """AugMix (Hendrycks et al., 2020): a random mixture of each image with three chains of random operations.

    Each chain applies one to three of autocontrast, equalise, posterise, solarise, rotation, shear and shift; the
    chains are averaged with Dirichlet(1) weights and mixed with the image by a Beta(1, 1) share. As in the published
    code, none of the operations is among the corruptions of CIFAR-10-C and severity is 3 of 10.

    Differs from the published code: each step of a chain deals the nine operations out evenly over the batch instead of
    drawing one for each image, so that a batch takes a few tensor operations. Each image still gets each operation with
    probability 1/9.
    """
    count, device = len(images), images.device
    weights = torch.empty(count, _CHAINS, device=device).exponential_()
    weights = weights / weights.sum(1, keepdim=True)  # Dirichlet(1, 1, 1)
    mixed = torch.zeros_like(images)
    for chain in range(_CHAINS):
        depth = torch.randint(1, _LONGEST + 1, (count, 1, 1, 1), device=device)
        current = images
        for place in range(_LONGEST):
            current = torch.where(place < depth, _dealt(current), current)
        mixed = mixed + weights[:, chain].view(-1, 1, 1, 1) * current
    share = torch.rand(count, 1, 1, 1, device=device)
    return torch.lerp(images, mixed, share.to(images.dtype))


def changed(images: Tensor, operations: int) -> Tensor:
    """Apply so many random operations to each image, one after another, as RandAugment (Cubuk et al., 2020) does.

    The operations and their strengths are AugMix's, see `augmix`, so none is among the corruptions of CIFAR-10-C.
    """
    for _ in range(operations):
        images = _dealt(images)
    return images


def mixed_with_partners(images: Tensor, share: float) -> tuple[Tensor, Tensor, Tensor]:
    r"""Mix a share of the images with another one of the batch: half of these by CutMix, half by mixup.

    With :math:`\lambda \sim U(0, 1)` for each image, mixup (Zhang et al., 2018) is
    :math:`\lambda x + (1 - \lambda) x'`, and CutMix (Yun et al., 2019) replaces a rectangle of the image's
    proportions and :math:`1 - \lambda` of its area, centred anywhere and cut off at the edges, by the same rectangle
    of :math:`x'`. Both papers' :math:`\alpha = 1`.

    Returns:
        The images, the index of each one's partner, and the share of each image that is its own, (n,).

    Example:
        >>> images = torch.rand(8, 3, 4, 4)
        >>> same, _, own = mixed_with_partners(images, share=0)
        >>> torch.equal(same, images), bool((own == 1).all())
        (True, True)
    """
    (count, _, height, width), device = images.shape, images.device
    kept, kind = torch.rand(2, count, 1, 1, 1, device=device)
    partner = torch.randperm(count, device=device)
    reach = (1 - kept).sqrt() / 2
    down, right = torch.rand(2, count, 1, 1, 1, device=device)
    rows = (torch.arange(height, device=device).view(-1, 1) + 0.5) / height
    columns = (torch.arange(width, device=device) + 0.5) / width
    inside = ((rows - down).abs() < reach) & ((columns - right).abs() < reach)
    own = torch.where(kind < share / 2, (~inside).to(images.dtype), torch.where(kind < share, kept, 1.0))
    return torch.lerp(images[partner], images, own.to(images.dtype)), partner, own.mean((1, 2, 3))


def _dealt(images: Tensor) -> Tensor:
    """Apply the nine operations, each to a random ninth of the batch."""
    count = len(images)
    order = torch.randperm(count, device=images.device)
    dealt = images[order]
    cuts = [round(count * k / 9) for k in range(10)]
    operations = (_autocontrast, _equalise, _posterise, _solarise)
    done = [operation(dealt[cuts[k] : cuts[k + 1]]) for k, operation in enumerate(operations)]
    moved = _moved(dealt[cuts[4] :], [cuts[k + 1] - cuts[k] for k in range(4, 9)])
    result = torch.empty_like(images)
    result[order] = torch.cat([*done, moved])
    return result


def _levels(count: int, device: torch.device) -> Tensor:
    return 0.1 + (_LEVEL - 0.1) * torch.rand(count, device=device)


def _autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low).clamp_min(1e-6), images)


def _equalise(images: Tensor) -> Tensor:
    """Flatten the histogram of each channel over its 256 levels, to the level as Pillow does."""
    if not len(images):
        return images
    levels = (images * 255).round().long().flatten(2)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    below = histogram.cumsum(2) - histogram
    last = histogram.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - last) // 255  # 0 for small or flat images, which stay as they are
    table = ((step // 2 + below) // step.clamp_min(1)).clamp(max=255)
    equalised = table.gather(2, levels).view_as(images) / 255
    return torch.where(step.unsqueeze(-1) > 0, equalised, images)


def _posterise(images: Tensor) -> Tensor:
    """Keep the highest 4 - int(level * 0.4) bits of each value."""
    bits = 4 - (_levels(len(images), images.device) * 0.4).floor()
    step = torch.exp2(8 - bits).view(-1, 1, 1, 1)
    return ((images * 255).round() / step).floor() * step / 255


def _solarise(images: Tensor) -> Tensor:
    """Invert values of at least 256 - int(level * 25.6)."""
    threshold = 256 - (_levels(len(images), images.device) * 25.6).floor()
    return torch.where(images * 255 >= threshold.view(-1, 1, 1, 1), 1 - images, images)


def _moved(images: Tensor, sizes: list[int]) -> Tensor:
    """Rotate, shear along x and y about the upper left corner, shift along x and y: ``sizes`` images of each kind."""
    count, device = len(images), images.device
    if not count:
        return images
    height, width = images.shape[-2:]
    signed = _levels(count, device) * torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    kind = torch.repeat_interleave(
        torch.arange(5, device=device), torch.tensor(sizes, device=device), output_size=count
    )
    angle = torch.where(kind == 0, signed * math.radians(3.0), 0.0)
    shear_x, shear_y = (torch.where(kind == k, signed * 0.03, 0.0) for k in (1, 2))
    shift_x, shift_y = (
        torch.where(kind == k, (signed * side / 30).trunc(), 0.0) for k, side in ((3, width), (4, height))
    )
    cosine, sine, aspect = torch.cos(angle), torch.sin(angle), height / width
    theta = torch.stack(
        [
            torch.stack([cosine, (sine + shear_x) * aspect, 2 * shift_x / width + shear_x * aspect], 1),
            torch.stack([(shear_y - sine) / aspect, cosine, 2 * shift_y / height + shear_y / aspect], 1),
        ],
        1,
    )
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid.to(images.dtype), align_corners=False)
