"""Procedural frost textures with the size, colour, grey levels and spectrum of the photographs."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta.corruptions.rng import CounterRng, stream_key

__all__ = ["CLASSES", "TextureClass", "procedural_texture"]


class TextureClass(NamedTuple):
    """Statistics of one photograph.

    Attributes:
        name: Name, which seeds the texture.
        size: Height and width at scale 1.
        mean: Means of red, green and blue.
        std: Standard deviations of red, green and blue.
        quantiles: The 5, 50 and 95 % quantiles of the grey value.
        slopes: Slope of log radial power against log frequency, at scales 1, 0.3 and 0.2.
        patches: Share of the variance in broad patches, which differs between crops rather than within.
        needles: Number of bright needles per thousand pixels.
        red: Share of the red channel that varies independently of the others.
    """

    name: str
    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    quantiles: tuple[float, float, float]
    slopes: tuple[float, float, float]
    patches: float
    needles: float
    red: float = 0.0


_SHEET: Final = TextureClass(
    "sheet", (600, 900), (78, 149, 166), (27, 17, 15), (104, 129, 163), (-1.6, -1.5, -1.2), 0.34, 0.0, 0.6
)
_FEATHERS: Final = TextureClass(
    "feathers", (315, 560), (201, 205, 215), (21, 22, 23), (166, 210, 236), (-2.0, -1.3, -0.9), 0.2, 4.0
)
_PANE: Final = TextureClass(
    "pane", (350, 527), (138, 153, 165), (28, 28, 30), (105, 152, 199), (-1.6, -0.9, -0.4), 0.15, 8.0
)
_CRYSTALS: Final = TextureClass(
    "crystals", (495, 660), (112, 123, 135), (44, 43, 42), (60, 120, 203), (-1.8, -1.5, -1.1), 0.18, 6.0
)

CLASSES: Final = (_SHEET, _FEATHERS, _FEATHERS, _PANE, _CRYSTALS)
"""In the order of the photographs, of which the second and third are the same."""

_SEED: Final = 34  # of a hundred seeds, the one whose crops match the photographs best in mean and deviation


def procedural_texture(kind: TextureClass, scale: float) -> NDArray[np.uint8]:
    """Draw one texture at scale 0.2, 0.3 or 1, always the same.

    A random field with power ~ f^slope, overlaid with thin needles, is mapped monotonically to the grey quantiles and
    then to each channel's mean and standard deviation.
    """
    height, width = (round(side * scale) for side in kind.size)
    rng = CounterRng(stream_key(_SEED, f"frost/{kind.name}/{scale}", 0), [0], torch.device("cpu"))
    slope = kind.slopes[(1, 0.3, 0.2).index(scale)] - 0.45  # steeper, since needles and quantisation flatten it
    field = _coloured_noise(rng, height, width, slope)
    if kind.needles:
        field = _standard(field + 0.4 * _needles(rng, height, width, kind.needles))
    patches = _coloured_noise(rng, height, width, -3.5)
    field = math.sqrt(1 - kind.patches) * field + math.sqrt(kind.patches) * patches
    grey = _standard(_with_quantiles(field, kind.quantiles))
    channels = [grey, grey, grey]
    if kind.red:
        own = _coloured_noise(rng, height, width, -3.0)
        channels[0] = math.sqrt(1 - kind.red**2) * grey + kind.red * own
    coloured = torch.stack(channels, dim=-1) * torch.tensor(kind.std) + torch.tensor(kind.mean)
    texture: NDArray[np.uint8] = coloured.round().clamp(0, 255).to(torch.uint8).numpy()
    return texture


def _standard(field: Tensor) -> Tensor:
    return (field - field.mean()) / field.std()


def _coloured_noise(rng: CounterRng, height: int, width: int, slope: float) -> Tensor:
    """Return a standardised float64 field whose radial power falls as f^slope."""
    spectrum = torch.fft.rfft2(rng.normal(height, width)[0].double())
    rows = torch.fft.fftfreq(height, dtype=torch.float64)[:, None]
    columns = torch.fft.rfftfreq(width, dtype=torch.float64)
    frequency = torch.hypot(rows, columns)
    frequency[0, 0] = 1
    gain = frequency ** (slope / 2)
    gain[0, 0] = 0
    return _standard(torch.fft.irfft2(spectrum * gain, s=(height, width)))


def _needles(rng: CounterRng, height: int, width: int, density: float) -> Tensor:
    """Return a standardised field of straight strokes that fade towards their tip and wrap around."""
    count, longest = max(8, round(density * height * width / 1000)), max(6, min(height, width) // 5)
    row, column, angle, length, strength = rng.uniform(5, count, 1)[0]
    along = torch.arange(longest, dtype=torch.float64)
    fade = (1 - along / (length * longest).clamp(min=2)).clamp(min=0) * (0.3 + strength)
    rows = (row * height + along * (2 * math.pi * angle).sin()).floor().long() % height
    columns = (column * width + along * (2 * math.pi * angle).cos()).floor().long() % width
    field = torch.zeros(height * width, dtype=torch.float64)
    field.index_add_(0, (rows * width + columns).view(-1), fade.view(-1))
    return _standard(field.view(height, width))


def _with_quantiles(field: Tensor, quantiles: tuple[float, float, float]) -> Tensor:
    """Map a field monotonically so that it has the given 5, 50 and 95 % quantiles."""
    low, middle, high = quantiles
    ends = (max(low - 0.8 * (middle - low), 0), min(high + 0.8 * (high - middle), 255))
    rank = field.view(-1).argsort(stable=True).argsort().numpy() / (field.numel() - 1)
    levels = np.interp(rank, (0, 0.05, 0.5, 0.95, 1), (ends[0], low, middle, high, ends[1]))
    return torch.from_numpy(levels).view(field.shape)
