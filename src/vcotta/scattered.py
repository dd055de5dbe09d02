"""Images from anywhere in the data, read and corrupted together."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcotta.corruptions import nearest_table
from vcotta.corruptions.registry import REGISTRY
from vcotta.corruptions.rng import Stream, stream_key
from vcotta.corruptions.severity import constants
from vcotta.data import Pixels

__all__ = ["corrupt_at", "read_at"]

_CHUNK_VALUES: Final = {"cpu": 1 << 18, "other": 1 << 23}  # worked on at a time, as in `corrupt`


def read_at(pixels: Pixels, places: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a copy of the images at these places, in their order; those in files are decoded by a few threads.

    Example:
        >>> read_at(np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1), np.array([3, 0, 3])).ravel()
        array([3, 0, 3], dtype=uint8)
    """
    if isinstance(pixels, np.ndarray):
        return np.asarray(pixels[places])
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return np.concatenate(list(pool.map(lambda place: pixels[place : place + 1], places.tolist())))


def corrupt_at(
    images: Tensor, name: str, severity: int, places: NDArray[np.int64], *, seed: int, table: int | None = None
) -> Tensor:
    """Corrupt images that need not be neighbours in the data set, all at once, to the pixels `corrupt` gives them.

    Args:
        images: uint8 (n, height, width, 3).
        name: One of the corruptions.
        severity: 1 to 5.
        places: Index in the data set of each image.
        seed: Seed of the corruption.
        table: Severity constants, as in `corrupt`.

    Example:
        >>> from vcotta.corruptions import corrupt
        >>> images = torch.full((4, 32, 32, 3), 100, dtype=torch.uint8)
        >>> whole = corrupt(images, "shot_noise", 5, seed=3)
        >>> some = corrupt_at(images[:2], "shot_noise", 5, np.array([3, 1]), seed=3)
        >>> bool((some == whole[[3, 1]]).all())
        True
    """
    corruption, key = REGISTRY[name], stream_key(seed, name, severity)
    numbers = constants(name, severity, table or nearest_table(*images.shape[1:3]))
    size = max(1, _CHUNK_VALUES["cpu" if images.device.type == "cpu" else "other"] // images[0].numel())
    parts = []
    with torch.no_grad():
        for start in range(0, len(images), size):
            pixels = images[start : start + size].contiguous()
            stream = _StreamAt(key, places[start : start + size], images.device)
            draws = corruption.draw(stream, pixels, *numbers) if corruption.draw else ()
            parts.append(corruption.apply(pixels, *draws, *numbers))
    return torch.cat(parts)


class _StreamAt(Stream):
    """The random numbers of the images at these places."""

    def __init__(self, key: int, places: NDArray[np.int64], device: torch.device) -> None:
        super().__init__(key, 0, int(places.max()) + 1, device)
        self._keys = self._keys[torch.from_numpy(places).to(device)]
