"""JPEG as arithmetic: entropy coding is lossless, so compressing and decoding are integer matrix products.

All intermediate values are integers below 2^53 in float64, so every sum is exact in any order.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["jpeg_compression"]

_HALF_ROWS = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
# Rows of even number are symmetric, of odd number antisymmetric.
_DCT = np.array([[*row, *(v * (-1) ** k for v in reversed(row))] for k, row in enumerate(_HALF_ROWS)], dtype=np.float64)

# Annex K of the JPEG standard.
_LUMA = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
_CHROMA = np.full((8, 8), 99)
_CHROMA[:4, :4] = [[17, 18, 24, 47], [18, 21, 26, 66], [24, 26, 56, 99], [47, 66, 99, 99]]


@lru_cache(maxsize=32)
def _quantisers(quality: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    luma, chroma = (np.clip((table * scale + 50) // 100, 1, 255).astype(np.float64) for table in (_LUMA, _CHROMA))
    return luma, chroma


def jpeg_compression(images: Tensor, quality: float) -> Tensor:
    """Compress to baseline JPEG (4:2:0) of the given quality and decode, exactly as libjpeg-turbo does.

    Sides that are not multiples of 16 are padded by repeating the last pixel; the padding is removed again.
    """
    height, width = images.shape[1:3]
    luma_table, chroma_table = (torch.from_numpy(t).to(images.device) for t in _quantisers(int(quality)))
    luma, blue, red = _to_ycc(_padded(images))
    luma = _round_trip(luma, luma_table)
    chroma = _round_trip(torch.cat([_halved(blue), _halved(red)]), chroma_table)
    blue, red = (_doubled(chroma) - 128).chunk(2)
    return _to_rgb(luma, blue, red)[:, :height, :width].contiguous()


def _padded(images: Tensor) -> Tensor:
    for dim in (1, 2):
        length = images.shape[dim]
        if length % 16:
            reads = torch.arange(length + -length % 16, device=images.device).clamp_(max=length - 1)
            images = images.index_select(dim, reads)
    return images


def _to_ycc(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = images.movedim(-1, 0).int().contiguous()
    luma = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
    shift = (128 << 16) + 32767
    return (
        luma,
        (-11059 * red - 21709 * green + 32768 * blue + shift) >> 16,
        (32768 * red - 27439 * green - 5329 * blue + shift) >> 16,
    )


def _halved(plane: Tensor) -> Tensor:
    """Average 2 x 2 pixels, rounding down in even and up in odd columns."""
    total = plane[:, ::2, ::2] + plane[:, ::2, 1::2] + plane[:, 1::2, ::2] + plane[:, 1::2, 1::2]
    bias = torch.arange(total.shape[2], dtype=torch.int32, device=plane.device).remainder_(2).add_(1)
    return total.add_(bias) >> 2


def _descaled(products: Tensor, bits: int) -> Tensor:
    """Divide by 2^bits in place, rounding half up."""
    return products.add_(1 << (bits - 1)).mul_(2.0**-bits).floor_()


def _round_trip(plane: Tensor, table: Tensor) -> Tensor:
    """Transform 8 x 8 blocks, quantise, and transform back."""
    count, height, width = plane.shape
    dct = torch.from_numpy(_DCT).to(plane.device)
    samples = plane.double().sub_(128).view(count * height // 8, 8, width // 8, 8)
    rows = _descaled(samples @ dct.t(), 11).view(-1, 8, width)
    coefficients = _descaled(dct @ rows, 15).view(-1, 8, width // 8, 8)  # eight times the true ones
    step = table[:, None, :]
    levels = coefficients.abs().add_(4 * step).div_(8 * step).floor_()
    restored = levels.mul_(step).copysign_(coefficients).view(-1, 8, width)
    rows = _descaled(dct.t() @ restored, 11).view(-1, 8, width // 8, 8)
    return _descaled(rows @ dct, 18).add_(128).clamp_(0, 255).view(plane.shape).int()


def _doubled(plane: Tensor) -> Tensor:
    """Enlarge twofold with weights 3/4 and 1/4 an axis, the sum of both rounded once."""
    above = torch.cat([plane[:, :1], plane[:, :-1]], dim=1)
    below = torch.cat([plane[:, 1:], plane[:, -1:]], dim=1)
    tall = torch.stack([3 * plane + above, 3 * plane + below], dim=2).flatten(1, 2)
    left = torch.cat([tall[:, :, :1], tall[:, :, :-1]], dim=2)
    right = torch.cat([tall[:, :, 1:], tall[:, :, -1:]], dim=2)
    return torch.stack([(3 * tall + left + 8) >> 4, (3 * tall + right + 7) >> 4], dim=3).flatten(2, 3)


def _to_rgb(luma: Tensor, blue: Tensor, red: Tensor) -> Tensor:
    half = 1 << 15
    channels = (
        luma + ((91881 * red + half) >> 16),
        luma + ((-22554 * blue - 46802 * red + half) >> 16),
        luma + ((116130 * blue + half) >> 16),
    )
    return torch.stack(channels, dim=-1).clamp_(0, 255).to(torch.uint8)
