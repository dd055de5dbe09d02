"""Counter-based random numbers: a draw depends on its key and counter only, not on earlier draws.

The generator is SplitMix64 (Steele, Lea and Flood, 2014) written as a function of its counter,

    word(key, j) = mix(key + (j + 1) * gamma)    modulo 2**64,

in int64 tensor arithmetic, so a CPU and a GPU agree bit for bit and no global generator is used. Each image has its own
key, mixed from (seed, corruption, severity) and the image's index in the data set.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CounterRng", "mix", "stream_key"]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GAMMA: Final = _signed(0x9E3779B97F4A7C15)
_FIRST: Final = _signed(0xBF58476D1CE4E5B9)
_SECOND: Final = _signed(0x94D049BB133111EB)
_LOW: Final = 0xFFFFFFFF


def mix(words: Tensor) -> Tensor:
    """Scramble int64 words in place with SplitMix64's finaliser, and return them."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        # >> on int64 copies the sign bit; the mask makes it the logical shift of the generator
        words ^= (words >> shift) & ((1 << (64 - shift)) - 1)
        words *= factor
    words ^= (words >> 31) & ((1 << 33) - 1)
    return words


def stream_key(seed: int, name: str, severity: int) -> int:
    """Return the 64-bit key of one corrupted data set, the same on every machine and in every Python."""
    text = f"vcotta.corruptions/{seed}/{name}/{severity}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


class CounterRng:
    """The random numbers of the images ``indices`` of a data set, one row for each image.

    Example:
        >>> key, cpu = stream_key(0, "fog", 5), torch.device("cpu")
        >>> CounterRng(key, [7, 8], cpu).uniform(4)[1].equal(CounterRng(key, [8], cpu).uniform(4)[0])
        True
    """

    def __init__(self, key: int, indices: Sequence[int] | NDArray[np.int64], device: torch.device) -> None:
        self._keys = mix(torch.tensor(indices, dtype=torch.int64, device=device).mul_(_GAMMA).add_(key))
        self._drawn = 0
        self.device = device

    def __len__(self) -> int:
        return self._keys.numel()

    def bits(self, *shape: int) -> Tensor:
        """Return integers uniform on 0 .. 2**32 - 1, as int64 of shape (images, *shape)."""
        size = math.prod(shape)
        half = (size + 1) // 2
        counter = torch.arange(self._drawn + 1, self._drawn + half + 1, dtype=torch.int64, device=self.device)
        self._drawn += half
        words = mix(counter.mul_(_GAMMA) + self._keys[:, None])
        halves = torch.cat([(words >> 32) & _LOW, words & _LOW], dim=1)
        return halves[:, :size].contiguous().view(len(self), *shape)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Return int64 values uniform on low .. high - 1."""
        return ((self.bits(*shape) * (high - low)) >> 32) + low

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Return float64 values uniform on the open interval (low, high)."""
        unit = self.bits(*shape).double().add_(0.5).mul_(2.0**-32)
        return unit.mul_(high - low).add_(low)

    def normal(self, *shape: int, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Return float32 normals by the Box-Muller transform.

        They are computed in float64 and rounded once, which hides differences in the last bits of sines and
        logarithms between devices, and between the vectorised and scalar code of one device.
        """
        size = math.prod(shape)
        unit = self.uniform(2, (size + 1) // 2)
        radius = unit[:, 0].log().mul_(-2).sqrt_()
        angle = unit[:, 1].mul_(2 * math.pi)
        pair = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :size]
        return pair.mul(std).add_(mean).float().reshape(len(self), *shape)
