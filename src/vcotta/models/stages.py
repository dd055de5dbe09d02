"""What the residual networks share: rows of blocks, and shortcuts with weights."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

__all__ = ["projection", "stage"]


def stage(
    block: Callable[[int, int, int], nn.Module], count: int, inputs: int, planes: int, stride: int, expansion: int = 1
) -> nn.Sequential:
    """Make a row of blocks, the first of which changes width and resolution.

    Args:
        block: Makes a block from its inputs, its planes and its stride.
        count: Number of blocks.
        inputs: Channels that come in.
        planes: Inner width of the blocks.
        stride: Stride of the first block.
        expansion: How many times ``planes`` a block gives.
    """
    first = block(inputs, planes, stride)
    return nn.Sequential(first, *(block(planes * expansion, planes, 1) for _ in range(count - 1)))


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Make the shortcut of a block, a 1x1 convolution; None where the input can be added as it is."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
