"""Counter-based random numbers: every draw is a function of who asks for it, not of what was drawn before.

The generator is SplitMix64 (Steele, Lea and Flood, 2014) written as a function of its counter,

    word(key, j) = mix(key + (j + 1) * gamma)    modulo 2**64,

in int64 tensor arithmetic, so a CPU and a GPU agree bit for bit and no global generator is read or moved. Each image
has a key of its own, mixed from (seed, corruption, severity) and the image's index in the data set.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import torch
from torch import Tensor

__all__ = ["Stream", "mix", "stream_key"]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GAMMA: Final = _signed(0x9E3779B97F4A7C15)
_FIRST: Final = _signed(0xBF58476D1CE4E5B9)
_SECOND: Final = _signed(0x94D049BB133111EB)
_LOW: Final = 0xFFFFFFFF


def mix(words: Tensor) -> Tensor:
    """Scramble int64 words in place with SplitMix64's finaliser, and return them.

    Example:
        >>> [word % 2**64 == 0xE220A8397B1DCDAF for word in mix(torch.tensor([_GAMMA])).tolist()]
        [True]
    """
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        # >> carries the sign along on int64: the mask makes it the logical shift that the generator means
        words ^= (words >> shift) & ((1 << (64 - shift)) - 1)
        words *= factor
    words ^= (words >> 31) & ((1 << 33) - 1)
    return words


def stream_key(seed: int, name: str, severity: int) -> int:
    """Return the 64-bit key of one corrupted data set, the same on every machine and in every Python."""
    text = f"vcotta.corruptions/{seed}/{name}/{severity}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


class Stream:
    """The random numbers of some consecutive images, one row an image.

    Args:
        key: The data set's key, from `stream_key`.
        first: Index of the first image in the data set.
        count: Number of images.
        device: Where the numbers are wanted.

    Example:
        >>> two = Stream(stream_key(0, "fog", 5), first=7, count=2, device=torch.device("cpu")).uniform(4)
        >>> one = Stream(stream_key(0, "fog", 5), first=8, count=1, device=torch.device("cpu")).uniform(4)
        >>> bool((two[1] == one[0]).all())
        True
    """

    def __init__(self, key: int, first: int, count: int, device: torch.device) -> None:
        index = torch.arange(first, first + count, dtype=torch.int64, device=device)
        self._keys = mix(index.mul_(_GAMMA).add_(key))
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

        They are computed in float64 and rounded once, which hides the last bits in which the sines and logarithms of
        two devices, or of the vectorised and the scalar code of one, may differ.
        """
        size = math.prod(shape)
        unit = self.uniform(2, (size + 1) // 2)
        radius = unit[:, 0].log().mul_(-2).sqrt_()
        angle = unit[:, 1].mul_(2 * math.pi)
        pair = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)[:, :size]
        return pair.mul(std).add_(mean).float().reshape(len(self), *shape)
