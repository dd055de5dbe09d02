"""ViDA's adapters: a branch of low and one of high rank beside a layer, added to its output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

__all__ = ["Branches", "add_branches", "branch_parameters", "layers_to_adapt", "set_scales"]

_NAME = "vida"
_INSIDE = f"{_NAME}."


class Branches(nn.Module):
    r"""Two branches beside a linear or convolution layer W: :math:`y = Wx + s_1 U_1 D_1 x + s_2 U_2 D_2 x`.

    D leads to few dimensions, the rank, and U back; neither has a bias. Beside a convolution D has the layer's kernel,
    stride and padding, and U is a convolution of 1 x 1. The entries of D are drawn from :math:`N(0, 1/r^4)` for rank r,
    those of U are 0, so that new branches change nothing.

    Attributes:
        scales: s, (2,), for the branch of low rank and that of high rank. It is no part of the state.
    """

    scales: Tensor

    def __init__(self, layer: nn.Linear | nn.Conv2d, low: int, high: int) -> None:
        super().__init__()
        self.low_down, self.low_up = _down_and_up(layer, low)
        self.high_down, self.high_up = _down_and_up(layer, high)
        self.scales = torch.ones(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's output."""
        low, high = self.scales
        out: Tensor = low * self.low_up(self.low_down(x)) + high * self.high_up(self.high_down(x))
        return out


def _down_and_up(layer: nn.Linear | nn.Conv2d, rank: int) -> tuple[nn.Module, nn.Module]:
    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Linear):
        down, up = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
    else:
        shape = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation")}
        down = nn.Conv2d(layer.in_channels, rank, **shape, bias=False, padding_mode=layer.padding_mode)
        up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
    nn.init.normal_(down.weight, std=1 / rank**2)
    nn.init.zeros_(up.weight)
    return down, up


def _add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    branches: Branches = getattr(layer, _NAME)
    added: Tensor = branches(inputs[0])
    return output + added


def layers_to_adapt(net: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """Return the layers that get branches: the linear ones in attention, else all but the classifier.

    Attention is a module with "Attention" in the name of its class, as in timm. Without one these are all linear and
    two-dimensional convolution layers but the last. ``nn.MultiheadAttention`` is left out, as it computes with the
    weights of its layers and does not call them.
    """
    called = _called(net)
    attention = [module for module in called if "Attention" in type(module).__name__]
    inside = dict.fromkeys(layer for module in attention for layer in _called(module) if isinstance(layer, nn.Linear))
    if inside:
        return list(inside)
    layers = [module for module in called if isinstance(module, nn.Linear | nn.Conv2d)]
    if not layers:
        raise ValueError(
            f"Expected a network with a linear or two-dimensional convolution layer, but {type(net).__name__} has none."
        )
    return layers[:-1] or layers


def _called(module: nn.Module) -> list[nn.Module]:
    """A module and those in it, without what ``nn.MultiheadAttention`` holds."""
    if isinstance(module, nn.MultiheadAttention):
        return []
    return [module, *(one for child in module.children() for one in _called(child))]


def add_branches(net: nn.Module, low: int, high: int) -> None:
    """Add branches of these ranks to a network, in place; its layers keep their names.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> add_branches(net, 1, 2)
        >>> [name for name, _ in net.named_parameters()][:3]
        ['0.weight', '0.bias', '0.vida.low_down.weight']
    """
    for layer in layers_to_adapt(net):
        layer.add_module(_NAME, Branches(layer, low, high))
        layer.register_forward_hook(_add)


def branch_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of all branches in a network, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if _INSIDE in name}


def set_scales(net: nn.Module, scales: Tensor) -> None:
    """Set the scales of all branches in a network."""
    for branches in _branches(net):
        branches.scales = scales


def _branches(net: nn.Module) -> Iterator[Branches]:
    return (module for module in net.modules() if isinstance(module, Branches))
