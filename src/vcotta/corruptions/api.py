"""The one door of the package: `corrupt`."""

from __future__ import annotations

import operator
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta._messages import unknown_name
from vcotta.corruptions.registry import REGISTRY
from vcotta.corruptions.rng import Stream, stream_key
from vcotta.corruptions.severity import EXTRA, STANDARD, TABLES, constants, nearest_table

__all__ = ["corrupt"]

Images = TypeVar("Images", NDArray[np.uint8], Tensor)

_CHUNK_VALUES: Final = {"cpu": 1 << 18, "other": 1 << 23}
"""Values worked on at a time: a few arrays of them fit a CPU's cache, or a small part of a GPU's memory."""


def corrupt(
    images: Images,
    name: str,
    severity: int,
    seed: int = 0,
    *,
    offset: int = 0,
    device: str | torch.device | None = None,
    table: int | None = None,
) -> Images:
    """Corrupt a batch of 8-bit RGB images.

    The result for image k depends on the image and on (seed, name, severity, offset + k) only: however a data set is
    cut into batches, the pixels are the same bit for bit, and no global random generator is read or moved. A CPU and a
    GPU agree but for values that a last-bit difference moves across a truncation, which then differ by one level.

    Args:
        images: uint8 of shape (N, H, W, 3), a NumPy array or a torch tensor, N at least 1; left as it is.
        name: One of `STANDARD` or `EXTRA`.
        severity: 1 to 5.
        seed: Any integer from 0; equal seeds give equal images.
        offset: Index in the data set of the first image of this batch.
        device: Where to compute; by default where the images are. A tensor is returned there, an array always as array.
        table: Which published constants to use, 32 (CIFAR-10-C), 64 (Tiny-ImageNet-C) or 224 (ImageNet-C); by default
            those nearest in ratio to the shorter side.

    Returns:
        uint8 of the same shape and kind.

    Raises:
        TypeError: A wrong type or dtype.
        ValueError: A wrong shape, name or number.

    Example:
        >>> images = np.full((4, 32, 32, 3), 100, dtype=np.uint8)
        >>> whole = corrupt(images, "shot_noise", 5, seed=3)
        >>> later = corrupt(images[2:], "shot_noise", 5, seed=3, offset=2)
        >>> bool((whole[2:] == later).all())
        True
    """
    _check_images(images)
    if not isinstance(name, str) or name not in REGISTRY:
        raise unknown_name("name", name, (*STANDARD, *EXTRA))
    severity = _integer("severity", severity)
    if not 1 <= severity <= 5:
        raise ValueError(f"Expected `severity` to be 1 to 5, but got {severity}. 1 is the mildest, 5 the strongest.")
    seed, offset = _counter("seed", seed), _counter("offset", offset)
    if offset + len(images) > 1 << 62:
        raise ValueError(f"Expected `offset` to be less than 2**62, but got {offset}. It is the first image's index.")
    if table is None:
        table = nearest_table(*images.shape[1:3])
    elif isinstance(table, bool) or table not in TABLES:
        raise ValueError(f"Expected `table` to be 32, 64, 224 or None, but got {table!r}. None chooses by image size.")

    if isinstance(images, Tensor):
        place = images.device if device is None else torch.device(device)
        result = torch.empty(images.shape, dtype=torch.uint8, device=place)
    else:
        place = torch.device("cpu" if device is None else device)
        result = np.empty(images.shape, dtype=np.uint8)
    corruption, numbers = REGISTRY[name], constants(name, severity, table)
    key = stream_key(seed, name, severity)
    values = images.shape[1] * images.shape[2] * 3
    size = max(1, _CHUNK_VALUES["cpu" if place.type == "cpu" else "other"] // values)
    with torch.no_grad():
        for start in range(0, len(images), size):
            part = images[start : start + size]
            # a copy: the array may be read-only or a view with negative strides, neither of which torch takes
            pixels = part.to(place) if isinstance(part, Tensor) else torch.from_numpy(np.array(part)).to(place)
            pixels = pixels.contiguous()
            stream = Stream(key, offset + start, len(part), place)
            draws = corruption.draw(stream, pixels, *numbers) if corruption.draw else ()
            done = corruption.apply(pixels, *draws, *numbers)
            result[start : start + size] = done if isinstance(result, Tensor) else done.cpu().numpy()
    return result


def _check_images(images: object) -> None:
    if not isinstance(images, np.ndarray | Tensor):
        raise TypeError(
            f"Expected `images` to be a NumPy array or a torch tensor, but got {type(images).__name__}. "
            "Convert it, for example with np.asarray."
        )
    if images.dtype not in (np.uint8, torch.uint8):
        raise TypeError(
            f"Expected `images` to have dtype uint8, but got {images.dtype}. "
            "Corruptions work on 8-bit pixels: for floats in [0, 1], multiply by 255, round and convert."
        )
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[3] != 3:
        hint = "Use images[None] for a single image." if shape[2:] == (3,) else "Repeat grey values for each colour."
        if len(shape) == 4:
            hint = (
                "Channels come last." if shape[1] == 3 else "Repeat a grey channel three times; drop an alpha channel."
            )
        raise ValueError(f"Expected `images` to have shape (N, H, W, 3), but got {shape}. {hint}")
    if 0 in shape:
        raise ValueError(f"Expected `images` to hold at least one pixel, but got shape {shape}. Skip empty batches.")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise TypeError(f"Expected `{name}` to be an integer, but got {value!r}. Pass a whole number, without a point.")
    return operator.index(value)


def _counter(name: str, value: object) -> int:
    number = _integer(name, value)
    if number < 0:
        raise ValueError(f"Expected `{name}` to be 0 or more, but got {number}. Choose another number.")
    return number
