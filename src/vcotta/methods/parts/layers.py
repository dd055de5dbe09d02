"""Layers that methods single out: the classifier with its features, and the normalisation layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vcotta._util.warn import warn
from vcotta.nn.sharing import current

__all__ = [
    "catch_features",
    "classifier",
    "normalisation_and_classifier",
    "train_early_normalisation",
    "train_only_normalisation",
]

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)


def classifier(net: nn.Module) -> nn.Linear:
    """Return the last linear layer of a network, or raise ValueError if it has none."""
    layers = [module for module in net.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError(
            f"Expected a network with a linear layer, whose input is its features, but {type(net).__name__} has none."
        )
    return layers[-1]


def normalisation_and_classifier(net: nn.Module) -> list[nn.Parameter]:
    """Return scale and shift of all normalisation layers, and the parameters of the last linear or convolution layer.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 5))
        >>> [tuple(p.shape) for p in normalisation_and_classifier(net)]
        [(2,), (2,), (5, 8), (5,)]
    """
    last = [m for m in net.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)][-1:]
    layers = [*(module for module in net.modules() if isinstance(module, _NORMS)), *last]
    return list(dict.fromkeys(p for layer in layers for p in layer.parameters(recurse=False)))


@contextmanager
def catch_features(net: nn.Module) -> Iterator[list[Tensor]]:
    """Inside the block, collect the features of every pass, (batch, dimensions) each, with their gradient."""
    caught: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        features = inputs[0].flatten(1)
        caught.append(current().whole_batch(features.to(torch.promote_types(features.dtype, torch.float32))))

    hook = classifier(net).register_forward_pre_hook(keep)
    try:
        yield caught
    finally:
        hook.remove()


def train_only_normalisation(model: nn.Module, method: str, skip: tuple[str, ...] = ()) -> list[Tensor]:
    """Let only scale and shift of the normalisation layers require gradients, and return them.

    These are BatchNorm, LayerNorm, GroupNorm and InstanceNorm, without those whose name contains a word of ``skip``. A
    network without any gives a warning, in which ``method`` is named.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2))
        >>> [tuple(p.shape) for p in train_only_normalisation(net, "tent")]
        [(2,), (2,)]
    """
    model.requires_grad_(False)
    trained: list[Tensor] = [
        parameter.requires_grad_(True)
        for name, module in model.named_modules()
        if isinstance(module, _NORMS) and not any(word in name for word in skip)
        for parameter in module.parameters(recurse=False)
    ]
    if not trained:
        warn(
            f"{type(model).__name__} has no normalisation layer with scale and shift, and {method} trains nothing "
            "else: it will predict without adapting."
        )
    return trained


def train_early_normalisation(model: nn.Module, method: str) -> list[Tensor]:
    """`train_only_normalisation` without the late layers that the official codes of SAR and DeYO leave out.

    These are ``layer4`` of a ResNet, and blocks 9 to 11 and the last norm of a vision transformer, here the ``norm``
    beside its ``blocks``.
    """
    trained = train_only_normalisation(model, method, skip=("layer4", "blocks.9", "blocks.10", "blocks.11"))
    for module in model.modules():
        children = dict(module.named_children())
        if {"blocks", "norm"} <= set(children):
            children["norm"].requires_grad_(False)
    return [parameter for parameter in trained if parameter.requires_grad]
