"""Small trained modules attached to the parts of a frozen network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from vcotta.nn.optim import finite_step

__all__ = ["Part", "PartShape", "attach", "find_blocks", "measure_parts", "stage_sizes", "train_on_source", "under"]


class Part(nn.Module):
    """Consecutive blocks of a frozen network with a module that sees their input and their output.

    .. math:: y = a(x, E(x))

    Attributes:
        blocks: E, the blocks.
        attached: a, called with input and output of the blocks; its result takes the place of their output.
    """

    def __init__(self, blocks: Sequence[nn.Module], attached: nn.Module) -> None:
        super().__init__()
        self.blocks, self.attached = nn.Sequential(*blocks), attached

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks, then what is attached to them."""
        changed: Tensor = self.attached(x, self.blocks(x))
        return changed


AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class PartShape:
    """Channels of a part's input and output, and how many times smaller the output's sides are."""

    inputs: int
    outputs: int
    stride: int


def find_blocks(net: nn.Module) -> list[str]:
    """Return the names of a network's convolutional blocks, in order.

    A block is an element of an ``nn.Sequential`` that holds a convolution and is neither an ``nn.Sequential`` nor a
    layer itself, as residual blocks are. In a network without any, each convolution is a block.

    Raises:
        ValueError: The network has no convolution.

    Example:
        >>> from vcotta.models.wide_resnet import digits_network
        >>> find_blocks(digits_network())
        ['block1.layer.0', 'block2.layer.0', 'block3.layer.0']
        >>> find_blocks(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)))
        ['0', '2']
    """
    found, convolutions = _walk(net, "")
    if not (found or convolutions):
        raise ValueError(f"Expected a network with convolutions to attach to, but {type(net).__name__} has none.")
    return found or convolutions


def _walk(module: nn.Module, prefix: str) -> tuple[list[str], list[str]]:
    """Blocks and single convolutions below a module."""
    blocks, single = list[str](), list[str]()
    for key, child in module.named_children():
        name = f"{prefix}{key}"
        if isinstance(child, nn.modules.conv._ConvNd):
            single.append(name)
        elif isinstance(module, nn.Sequential) and not isinstance(child, nn.Sequential) and _convolves(child):
            blocks.append(name)
        else:
            more, others = _walk(child, f"{name}.")
            blocks, single = blocks + more, single + others
    return blocks, single


def _convolves(module: nn.Module) -> bool:
    return any(isinstance(inner, nn.modules.conv._ConvNd) for inner in module.modules())


def stage_sizes(net: nn.Module) -> list[int]:
    """Return how many blocks each stage has: blocks beside one another; a single convolution is a stage."""
    names = find_blocks(net)
    if isinstance(net.get_submodule(names[0]), nn.modules.conv._ConvNd):
        return [1] * len(names)
    return [len(list(group)) for _, group in groupby(names, key=lambda name: name.rpartition(".")[0])]


def attach(
    net: nn.Module,
    sizes: Sequence[int],
    attached: Sequence[nn.Module],
    kind: Callable[[Sequence[nn.Module], nn.Module], AnyPart],
) -> list[AnyPart]:
    """Join the first blocks of a network to parts of the given sizes and kind, in place, and return them.

    The first block of a part is replaced by the part, the others by the identity.
    """
    names, parts = find_blocks(net), list[AnyPart]()
    for size, module in zip(sizes, attached, strict=True):
        own, names = names[:size], names[size:]
        part = kind([net.get_submodule(name) for name in own], module)
        for name in own:
            parent, _, key = name.rpartition(".")
            setattr(net.get_submodule(parent), key, part if name == own[0] else nn.Identity())
        parts.append(part)
    return parts


@torch.enable_grad()
def train_on_source(
    optimizer: torch.optim.Optimizer,
    source: Iterable[tuple[Tensor, Tensor]],
    rates: Sequence[float],
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Minimise ``loss_of(images, labels)`` over source data, one epoch for each step size in ``rates``.

    A step whose loss or gradient is not finite is skipped.

    Raises:
        FloatingPointError: The loss was never finite in an epoch.
    """
    for epoch, rate in enumerate(rates, 1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        if not torch.stack([finite_step(optimizer, loss_of(*batch)) for batch in source]).any():
            raise FloatingPointError(
                f"The loss on source data was never finite in epoch {epoch} of the preparation. Try a smaller "
                "`warm_up_lr`."
            )
    optimizer.zero_grad(set_to_none=True)


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def measure_parts(net: nn.Module, sizes: Sequence[int], run: Callable[[], object]) -> list[PartShape]:
    """Return the shapes of the parts that `attach` would make, from one pass that ``run`` makes.

    Raises:
        ValueError: A block of a part does not get the output of the block before it.
    """
    names, shapes = find_blocks(net), list[PartShape]()
    with _recorded(net, names) as seen:
        run()
    for size in sizes:
        own, names = names[:size], names[size:]
        for before, after in pairwise(own):
            if seen[before][1] is not seen[after][0]:
                raise ValueError(
                    f"Expected the blocks of {type(net).__name__} to follow one another, but {after!r} does not get "
                    f"the output of {before!r}. Choose a method that attaches nothing, such as cotta."
                )
        x, y = seen[own[0]][0], seen[own[-1]][1]
        shapes.append(PartShape(x.shape[1], y.shape[1], max(1, round(x.shape[2] / y.shape[2]))))
    return shapes


@contextmanager
def _recorded(net: nn.Module, names: Sequence[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Inside the block, keep input and output of the named modules."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = inputs[0], output

        return hook

    hooks = [net.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
