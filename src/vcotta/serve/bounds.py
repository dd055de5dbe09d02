"""Bounds of the numbers in a bundle, which may come from anybody: no value makes a server useless or fills its memory.

A config allows whatever has a meaning, such as a teacher that never learns. A bundle must also work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["check_batch", "check_numbers"]

_RANGES: dict[str, tuple[float, float]] = {"views": (0, 256)}  # each costs a pass of the network
_RANGES |= dict.fromkeys(("replayed", "capacity", "probe", "neighbours"), (1, 4096))  # images that one step works on
_RANGES |= dict.fromkeys(("low_rank", "high_rank", "size", "patch"), (1, 4096))  # of what a method adds to the network
_RANGES |= dict.fromkeys(("queue", "buffer"), (1, 131_072))  # images or features in memory
_RANGES |= dict.fromkeys(("temperature", "tau"), (0.001, 1000))  # beyond, softmax overflows or forgets its input
_RANGES |= dict.fromkeys(("beta", "adapter_beta"), (0, 0.99999))  # with 1 a teacher never learns
_RANGES |= dict.fromkeys(("lr", "source_lr", "swa_lr", "adapter_lr", "warm_up_lr"), (0, 10))
_RANGES |= {"full_batch": (1, 4096)}  # step sizes are divided by it
_RANGES |= {"kl_lambda": (0.001, 1e9), "damping": (1e-6, 1e6), "step": (1e-6, 1e6)}  # divisors, and a width of steps
_RANGES |= {"drift": (0.01, 1e6)}  # of a guard, which would let nothing be learned with less
_LARGEST, _SMALLEST = 1e6, 1e-12  # of other numbers, beyond any that is useful
_MOST_VALUES = 2**33  # numbers in the images of a batch and their views


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Raise if a number among the settings of a method or guard is so large or small that it could not work.

    Example:
        >>> check_numbers({"views": 10**9})
        Traceback (most recent call last):
        ValueError: Expected `views` to be at most 256 in a bundle, but got 1000000000.
        >>> check_numbers({"beta": 1.0})
        Traceback (most recent call last):
        ValueError: Expected `beta` to be at most 0.99999 in a bundle, but got 1.0.
    """
    for name, value in settings.items():
        if not isinstance(value, int | float):
            continue
        least, most = _RANGES.get(name, (-_LARGEST, _LARGEST))
        if not value <= most:
            raise ValueError(f"Expected `{name}` to be at most {most:.10g} in a bundle, but got {value!r}.")
        if not value >= least:
            raise ValueError(f"Expected `{name}` to be at least {least:.10g} in a bundle, but got {value!r}.")
        if 0 < abs(value) < _SMALLEST:
            raise ValueError(
                f"Expected the size of `{name}` to be 0 or at least {_SMALLEST} in a bundle, but got {value!r}."
            )


def check_batch(batch_size: int, views: int, shape: tuple[int, int, int]) -> None:
    """Raise if a batch of images of this shape, with so many views of each, would not fit into memory or never end.

    Example:
        >>> check_batch(4096, 32, (3, 224, 224))
        Traceback (most recent call last):
        ValueError: Expected a batch and its views to hold at most 8589934592 numbers, but 4096 images of shape \
(3, 224, 224) with 32 views each hold 20346568704. Choose a smaller batch size.
    """
    channels, height, width = shape
    values = batch_size * (1 + views) * channels * height * width
    if values > _MOST_VALUES:
        raise ValueError(
            f"Expected a batch and its views to hold at most {_MOST_VALUES} numbers, but {batch_size} images of shape "
            f"{shape} with {views} views each hold {values}. Choose a smaller batch size."
        )
