"""Penultimate features: what a network's last linear layer reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vcotta.distributed import whole_batch

__all__ = ["catch_features", "classifier"]


def classifier(net: nn.Module) -> nn.Linear:
    """Return the last linear layer of a network.

    Raises:
        ValueError: If it has none.

    Example:
        >>> classifier(nn.Sequential(nn.Flatten(), nn.Linear(12, 3))).out_features
        3
    """
    layers = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(
            f"Expected a network that ends in a linear layer, whose input are its features, but {type(net).__name__} "
            "has no linear layer."
        )
    return layers[-1]


@contextmanager
def catch_features(net: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the features of every pass of ``net`` within the block, (batch, dimensions) each, with their gradient.

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        >>> with catch_features(net) as caught:
        ...     _ = net(torch.rand(2, 3, 2, 2))
        >>> caught[0].shape
        torch.Size([2, 12])
    """
    caught: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        features = inputs[0].flatten(1)
        caught.append(whole_batch(features.to(torch.promote_types(features.dtype, torch.float32))))

    hook = classifier(net).register_forward_pre_hook(keep)
    try:
        yield caught
    finally:
        hook.remove()
