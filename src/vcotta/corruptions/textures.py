"""The textures of frost at the scale a table wants: photographs if they were fetched, else drawn by rule."""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vcotta.corruptions.procedural import CLASSES, procedural_texture
from vcotta.files import sha256

__all__ = ["Textures", "frost_source", "frost_textures", "scaled"]

_USED: Final = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")  # the sixth is never drawn

_notices: set[str] = set()


class Textures(NamedTuple):
    """Textures of different sizes as one list of pixels.

    Attributes:
        pixels: (P, 3) uint8, texture after texture, row after row.
        starts: Where each texture begins in ``pixels``.
        heights: Of each texture.
        widths: Of each texture.
    """

    pixels: Tensor
    starts: Tensor
    heights: Tensor
    widths: Tensor


def frost_source() -> Literal["photographs", "procedural"]:
    """Say which textures the corruption ``frost`` uses now; a run that uses it should record the answer."""
    return "photographs" if _photographs() else "procedural"


def _photographs() -> Path | None:
    from vcotta.data.frost import frost_dir, has_frost  # late: the package `data` may itself import this one

    return frost_dir() if has_frost() else None


def frost_textures(scale: float, device: torch.device) -> Textures:
    """Return the five textures (the second and third are the same) at scale 0.2, 0.3 or 1.

    They are made once a process. The first time the procedural ones are used, a warning says so.
    """
    folder = _photographs()
    if folder is None and "procedural" not in _notices:
        _notices.add("procedural")
        warnings.warn(
            "The frost photographs are not in the cache folder, so `frost` uses procedural textures with similar "
            "statistics. For the photographs of the published benchmarks run `vcotta data fetch frost`.",
            stacklevel=2,
        )
    return _prepared(folder, scale, device)


@lru_cache(maxsize=8)
def _prepared(folder: Path | None, scale: float, device: torch.device) -> Textures:
    if folder is None:
        textures = [procedural_texture(kind, scale) for kind in CLASSES]
    else:
        textures = [scaled(_read(folder / name), scale) for name in _USED]
    sizes = torch.tensor([texture.shape[:2] for texture in textures], device=device)
    areas = sizes.prod(1)
    pixels = np.concatenate([texture.reshape(-1, 3) for texture in textures])
    return Textures(torch.from_numpy(pixels).to(device), areas.cumsum(0) - areas, sizes[:, 0], sizes[:, 1])


def _read(path: Path) -> NDArray[np.uint8]:
    from vcotta.data.frost import FROST_FILES

    if sha256(path) != FROST_FILES[path.name]:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the expected one. Run `vcotta data fetch frost`.")
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def scaled(texture: NDArray[np.uint8], scale: float) -> NDArray[np.uint8]:
    """Shrink an 8-bit texture without antialiasing, as the original does.

    Scale 0.2 keeps every fifth pixel of every fifth row, starting at 2; 0.3 is bilinear in 11-bit fixed point.
    """
    if scale == 1:
        return texture
    if scale == 0.2:
        rows, columns = (np.arange(round(side * scale)) * 5 + 2 for side in texture.shape[:2])
        kept: NDArray[np.uint8] = texture[rows][:, columns]
        return kept
    height, width = texture.shape[:2]
    left, right, alpha, beta = _linear_taps(width, scale)
    wide = texture.astype(np.int64)
    across = wide[:, left] * alpha[:, None] + wide[:, right] * beta[:, None]
    top, bottom, alpha, beta = _linear_taps(height, scale)
    upper = (alpha[:, None, None] * (across[top] >> 4)) >> 16
    lower = (beta[:, None, None] * (across[bottom] >> 4)) >> 16
    result: NDArray[np.uint8] = ((upper + lower + 2) >> 2).clip(0, 255).astype(np.uint8)
    return result


def _linear_taps(length: int, scale: float) -> tuple[NDArray[np.int64], ...]:
    """Return both sources of each output and their weights in units of 1/2048."""
    position = ((np.arange(round(length * scale)) + 0.5) / scale - 0.5).astype(np.float32)
    low = np.floor(position).astype(np.int64)
    share = position - low.astype(np.float32)
    alpha, beta = (np.rint(part * 2048).astype(np.int64) for part in (1 - share, share))
    return low.clip(0, length - 1), (low + 1).clip(0, length - 1), alpha, beta
