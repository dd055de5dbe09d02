"""Spatter: drops of water (severities 1 to 3) or mud (4 and 5) on the lens."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from vcotta.corruptions.filters import extended, gaussian, images_first, space_first, truncated, unit32
from vcotta.corruptions.rng import CounterRng

__all__ = ["draw_spatter", "spatter"]

_WATER: Final = (175 / 255, 238 / 255, 238 / 255)
_MUD: Final = (63 / 255, 42 / 255, 20 / 255)

_UNIT: Final = 1 << 16
_FARTHEST: Final = 20 * _UNIT
# Lengths of the steps (rows, columns) of a 5 x 5 chamfer, in units of 2^-16; the opposite steps are as long.
_STEPS: Final = {
    (0, 1): _UNIT,
    (1, 0): _UNIT,
    **dict.fromkeys(((1, 1), (1, -1)), round(1.4 * _UNIT)),
    **dict.fromkeys(((1, 2), (1, -2), (2, 1), (2, -1)), round(2.1969 * _UNIT)),
}
_LEVELS: Final = 21  # distances 0 .. 20


def draw_spatter(rng: CounterRng, images: Tensor, mean: float, std: float, *_: float) -> tuple[Tensor]:
    """Draw N(mean, std) for every pixel."""
    return (rng.normal(*images.shape[1:3], mean=mean, std=std),)


def spatter(
    images: Tensor,
    field: Tensor,
    mean: float,
    std: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Tensor:
    """Blur the field, keep values above the threshold, and paint them as water or mud."""
    liquid = gaussian(space_first(field.double()), sigma, "edge")
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    values = unit32(images)
    if mud:
        layer = gaussian((liquid > threshold).float(), strength, "edge")
        layer = images_first(torch.where(layer < 0.8, 0.0, layer))[..., None]
        return truncated(values * (1 - layer) + layer * torch.tensor(_MUD, device=images.device))
    layer = images_first(_water(liquid, strength))[..., None]
    return truncated(values + layer * torch.tensor(_WATER, device=images.device))


def _water(liquid: Tensor, strength: float) -> Tensor:
    """Return the (H, W, N) float32 opacity of the drops, brighter on the side of the light.

    Values of 256 and more wrap around in 8 bits, so the thickest drops get a hole.
    """
    drops = (liquid * 255).int() & 255
    distance = _distance(_edges(drops))
    total = _box_sum(distance)
    softened = (total.double() * (1 / 9) / _UNIT).float().int()
    lit = _emboss(_equalised(softened))
    shade = (2 * _box_sum(lit) + 9).div(18, rounding_mode="floor")  # the 3 x 3 mean, rounded
    layer = (drops * shade).float()
    peak = layer.amax((0, 1))
    return torch.where(peak > 0, layer / peak, 0.0) * strength


def _shifted(padded: Tensor, margin: int, row: int, column: int) -> Tensor:
    height, width = padded.shape[0] - 2 * margin, padded.shape[1] - 2 * margin
    return padded[margin + row :][:height, margin + column :][:, :width]


def _zero_padded(values: Tensor, margin: int) -> Tensor:
    height, width = values.shape[:2]
    padded = values.new_zeros((height + 2 * margin, width + 2 * margin, *values.shape[2:]))
    padded[margin : margin + height, margin : margin + width] = values
    return padded


def _box_sum(values: Tensor) -> Tensor:
    padded = extended(values, 1, "mirror")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]


def _edges(drops: Tensor) -> Tensor:
    """Return Canny's edges of (H, W, N) levels, with thresholds 50 and 150 on |gx| + |gy|."""
    padded = extended(drops, 1, "edge")
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    gx, gy = rows[:, 2:] - rows[:, :-2], columns[2:] - columns[:-2]
    magnitude = gx.abs() + gy.abs()
    around = _zero_padded(magnitude, 1)

    def exceeds(row: int, column: int) -> Tensor:
        return magnitude > _shifted(around, 1, row, column)

    def reaches(row: int, column: int) -> Tensor:
        return magnitude >= _shifted(around, 1, row, column)

    steep, flat = gy.abs().long() << 15, gx.abs().long() * 13573  # tan(22.5 degrees) in units of 2^-15
    horizontal = steep < flat
    vertical = steep > flat + (gx.abs().long() << 16)
    falling = (gx < 0) == (gy < 0)
    diagonal = torch.where(falling, exceeds(-1, -1) & exceeds(1, 1), exceeds(-1, 1) & exceeds(1, -1))
    upright = torch.where(vertical, exceeds(-1, 0) & reaches(1, 0), diagonal)
    peak = torch.where(horizontal, exceeds(0, -1) & reaches(0, 1), upright)
    weak = peak & (magnitude > 50)
    return _grown(weak & (magnitude > 150), weak)


def _grown(strong: Tensor, weak: Tensor) -> Tensor:
    """Spread from the strong pixels over 8-connected weak ones until nothing is added."""
    while True:
        padded = _zero_padded(strong, 1)
        rows = padded[:-2] | padded[1:-1] | padded[2:]
        spread = (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]) & weak
        if torch.equal(spread, strong):
            return strong
        strong = spread


def _distance(edges: Tensor) -> Tensor:
    """Return the chamfer distance to the nearest edge, at most 20, in units of 2^-16."""
    distance = torch.where(edges, 0, _FARTHEST).int()
    while True:
        padded = _zero_padded(distance - _FARTHEST, 2)  # outside has the largest distance
        nearest = padded[2:-2, 2:-2].clone()
        for (row, column), length in _STEPS.items():
            for sign in (1, -1):
                nearest = torch.minimum(nearest, _shifted(padded, 2, sign * row, sign * column) + length)
        nearest += _FARTHEST
        if torch.equal(nearest, distance):
            return distance
        distance = nearest


def _equalised(levels: Tensor) -> Tensor:
    """Equalise each image's histogram of levels 0 .. 20 to 0 .. 255; a constant image is unchanged."""
    height, width, count = levels.shape
    histogram = torch.stack([(levels == level).sum((0, 1)) for level in range(_LEVELS)])
    running = histogram.cumsum(0)
    occupied = running > 0
    lowest = torch.where(occupied & (running == histogram), histogram, 0).amax(0)
    rest = height * width - lowest
    ratio = torch.full_like(rest, 255, dtype=torch.float32) / rest.clamp(min=1)
    mapped = ((running - lowest).clamp_(min=0).float() * ratio).round().int()
    unchanged = torch.arange(_LEVELS, dtype=torch.int32, device=levels.device)[:, None].expand_as(mapped)
    table = torch.where(rest > 0, mapped, unchanged)
    return table.gather(0, levels.view(-1, count).long()).view(levels.shape)


def _emboss(values: Tensor) -> Tensor:
    """Correlate with [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], mirrored at the border, and saturate to 8 bits."""
    padded = extended(values, 1, "mirror")
    total = values.clone()
    for row, column, weight in ((-1, -1, -2), (-1, 0, -1), (0, -1, -1), (0, 1, 1), (1, 0, 1), (1, 1, 2)):
        total += _shifted(padded, 1, row, column) * weight
    return total.clamp_(0, 255)
