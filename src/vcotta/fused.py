"""Element-wise arithmetic on whole networks, compiled into one kernel a tensor where the runtime compiles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["alike", "flat", "fused", "shaped"]

Function = TypeVar("Function", bound=Callable[..., object])


@functools.cache
def fused(function: Function) -> Function:
    """Compile a function of 1-D tensors, once for tensors of every length.

    A formula of twenty operations reads and writes a tensor twenty times when torch goes through it one by one, and
    once when it is compiled; on a network of 36 million weights that is 13 ms against one or two.

    Example:
        >>> def half(x: Tensor) -> Tensor:
        ...     return x / 2
        >>> quick = fused(half)  # compiles when it is first called
    """
    compiled: Function = torch.compile(function, dynamic=True)  # type: ignore[assignment]
    return compiled


def alike(*tensors: Tensor) -> bool:
    """Whether tensors have one dense layout in common, so that their elements correspond in the order of storage."""
    first = tensors[0]
    dense = first.is_contiguous() or first.is_contiguous(memory_format=torch.channels_last)
    return dense and all(t.shape == first.shape and t.stride() == first.stride() for t in tensors)


def flat(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of storage, 1-D, in the same memory.

    Not a view for torch: the compiler looks through a view at the shape behind it, and compiles for each shape anew.

    Example:
        >>> flat(torch.ones(2, 3)).shape
        torch.Size([6])
    """
    place = tensor.untyped_storage(), tensor.storage_offset(), (tensor.numel(),), (1,)
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*place)


def shaped(elements: Tensor, like: Tensor) -> Tensor:
    """Undo `flat`: a view of 1-D elements in the shape and layout of another tensor.

    Example:
        >>> image = torch.rand(1, 2, 3, 3).to(memory_format=torch.channels_last)
        >>> torch.equal(shaped(flat(image), image), image)
        True
    """
    return elements.as_strided(like.shape, like.stride())
