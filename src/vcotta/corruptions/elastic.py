"""The elastic transform: a random affine map, then small smooth displacements."""

from __future__ import annotations

import torch
from torch import Tensor

from vcotta.corruptions.filters import divided, fold, gaussian, images_first, space_first, truncated, unit32
from vcotta.corruptions.rng import CounterRng

__all__ = ["draw_elastic_transform", "elastic_transform"]


def draw_elastic_transform(
    rng: CounterRng, images: Tensor, amplitude: float, sigma: float, jitter: float, base: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Draw the anchors' jitters (N, 3, 2) in pixels, and uniforms on (-1, 1) for dx and dy where they are used."""
    reach = jitter * base
    points = rng.uniform(3, 2, low=-reach, high=reach).float()
    if amplitude == 0:
        return points, None, None
    height, width = images.shape[1:3]
    across, down = rng.uniform(2, height, width, low=-1, high=1).float().unbind(1)
    return points, across, down


def elastic_transform(
    images: Tensor,
    points: Tensor,
    across: Tensor | None,
    down: Tensor | None,
    amplitude: float,
    sigma: float,
    jitter: float,
    base: float,
) -> Tensor:
    """Move three anchors by ``points``, then every pixel by a smoothed random field times ``amplitude``.

    Amplitude, sigma and jitter are shares of ``base``: 32, 64 and, as in the original code, 244 for 224 pixel images.
    If the amplitude is 0 (severity 1 at 32 and 64 pixels), only the affine map acts, which at that severity is the
    strongest of the five in squared error.
    """
    values = _affine(unit32(images), points)
    if across is not None and down is not None:
        fields = space_first(torch.stack([across, down], dim=-1).double())
        smooth = gaussian(fields, sigma * base, "symmetric", truncate=3.0).mul_(amplitude * base).float()
        values = _displaced(values, images_first(smooth))
    return truncated(values)


def _affine(values: Tensor, points: Tensor) -> Tensor:
    """Apply the map that takes the anchors to anchors + points, read at multiples of 1/32 pixel, mirrored."""
    height, width = values.shape[1:3]
    device = values.device
    inverse = _inverse_map(points, height, width)
    x = torch.arange(width, dtype=torch.float64, device=device)
    y = torch.arange(height, dtype=torch.float64, device=device)
    corners, shares = [], []
    for row, length in zip(inverse.unbind(1), (width, height), strict=True):
        along = torch.round(row[:, :1] * x * 1024)
        start = torch.round((row[:, 1:2] * y + row[:, 2:]) * 1024)
        fixed = (along[:, None, :] + start[:, :, None]).long().add_(16) >> 5
        whole = fixed >> 5
        corners.append((fold(whole, length, "mirror"), fold(whole + 1, length, "mirror")))
        shares.append((fixed & 31).float().div_(32).view(-1, 1))
    (left, right), (top, bottom) = corners
    fx, fy = shares
    return _four_corners(values, (top, bottom), (left, right), fy, fx)


def _inverse_map(points: Tensor, height: int, width: int) -> Tensor:
    """Return (N, 2, 3): output (x, y) reads the source at B (x, y, 1)."""
    centre = torch.tensor([width // 2, height // 2], dtype=torch.float32, device=points.device)
    arm = max(min(height, width) // 3, 1)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float32, device=points.device)
    anchors = centre + arm * signs
    first, second, third = (anchors + points).double().unbind(1)
    by_x, by_y = divided(second - third, 2 * arm), divided(first - second, 2 * arm)
    shift = first - by_x * (width // 2 + arm) - by_y * (height // 2 + arm)
    (a, d), (b, e), (c, f) = by_x.unbind(1), by_y.unbind(1), shift.unbind(1)
    determinant = a * e - b * d
    a, b, d, e = e / determinant, -b / determinant, -d / determinant, a / determinant
    return torch.stack([a, b, -(a * c + b * f), d, e, -(d * c + e * f)], dim=1).view(-1, 2, 3)


def _displaced(values: Tensor, offsets: Tensor) -> Tensor:
    """Read each pixel at (row + dy, column + dx) by linear interpolation in float64."""
    height, width = values.shape[1:3]
    device = values.device
    x = torch.arange(width, dtype=torch.float64, device=device) + offsets[..., 0]
    y = torch.arange(height, dtype=torch.float64, device=device)[:, None] + offsets[..., 1]
    left, top = x.floor(), y.floor()
    fx, fy = (x - left).view(-1, 1), (y - top).view(-1, 1)
    columns = (fold(left.long(), width, "symmetric"), fold(left.long() + 1, width, "symmetric"))
    rows = (fold(top.long(), height, "symmetric"), fold(top.long() + 1, height, "symmetric"))
    return _four_corners(values, rows, columns, fy, fx)


def _four_corners(
    values: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], fy: Tensor, fx: Tensor
) -> Tensor:
    """Interpolate, in the precision of the weights, from top left to bottom right; the result is float32."""
    count, height, width, channels = values.shape
    pixels = values.view(-1, channels)
    start = torch.arange(count, device=values.device).mul_(height)[:, None, None]
    total = torch.zeros((), dtype=fy.dtype, device=values.device)
    for row, row_share in zip(rows, (1 - fy, fy), strict=True):
        line = (row + start).mul_(width)
        for column, column_share in zip(columns, (1 - fx, fx), strict=True):
            corner = pixels.index_select(0, (line + column).view(-1))
            total = total + corner * (row_share * column_share)
    return total.float().view(values.shape)
