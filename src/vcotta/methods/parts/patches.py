"""The patches of an image: what a network makes of each, and a token that hides some of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.nn.sharing import current

__all__ = ["Masked", "PixelMasked", "TokenMasked", "make_masked"]


class Masked(nn.Module):
    """A network with a learned token, at first 0, behind which patches of an image can be hidden.

    It takes the images of `cover`, which have a further channel, so that processes can share a batch.

    Attributes:
        net: The network.
        token: What hides a patch.
        patch: Side of a patch in pixels.
        channels: Channels of the images.
        width: Dimensions of the features of a patch.
    """

    token: nn.Parameter
    channels: int
    width: int

    def __init__(self, net: nn.Module, patch: int) -> None:
        super().__init__()
        self.net, self.patch = net, patch

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return the numbers of rows and columns of patches; the last ones may lack pixels."""
        rows, columns = (-(-side // self.patch) for side in images.shape[-2:])
        return rows, columns

    def cover(self, images: Tensor, hidden: Tensor) -> Tensor:
        """Return images with a further channel: 1 in the patches that are ``hidden``, (batch, patches), else 0."""
        plane = hidden.to(images.dtype).view(len(images), 1, *self.grid(images))
        for axis in (2, 3):
            plane = plane.repeat_interleave(self.patch, axis).narrow(axis, 0, images.shape[axis])
        return torch.cat([images, plane], 1)

    @contextmanager
    def features(self, images: Tensor) -> Iterator[list[Tensor]]:
        """Inside the block, collect the features of the patches of images of this size at every pass of the network.

        They are (batch, patches, width), row by row, with their gradient.
        """
        caught: list[Tensor] = []
        grid = self.grid(images)

        def keep(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            features = self._of_patches(output, grid)
            caught.append(current().whole_batch(features.to(torch.promote_types(features.dtype, torch.float32))))

        hook = self._last().register_forward_hook(keep)
        try:
            yield caught
        finally:
            hook.remove()

    @abstractmethod
    def _last(self) -> nn.Module:
        """The layer whose output has the features."""

    @abstractmethod
    def _of_patches(self, output: Tensor, grid: tuple[int, int]) -> Tensor:
        """The features of the patches, given the output of that layer."""


class TokenMasked(Masked):
    """A vision transformer: the token replaces embeddings of patches, features are the tokens after the last norm.

    Tokens may be a list, in which class tokens come first, or a map of as many rows and columns as there are patches or
    fewer, as in networks with windows. The embedding may also put channels before rows and columns.
    """

    def __init__(self, net: nn.Module, transformer: str) -> None:
        """Take a network and the name of the transformer in it."""
        self.embedding, self.norm = (f"{transformer}.{name}".lstrip(".") for name in ("patch_embed", "norm"))
        convolution = _convolutions(net.get_submodule(self.embedding))[0]
        super().__init__(net, convolution.kernel_size[0])
        self.channels, embedded = convolution.in_channels, convolution.out_channels
        self.width = next((len(scale) for scale in net.get_submodule(self.norm).parameters()), embedded)
        self.token = nn.Parameter(torch.zeros(embedded))

    def forward(self, covered: Tensor) -> Tensor:
        """Return the logits of covered images."""
        half = self.patch // 2
        hidden = covered[:, -1, half :: self.patch, half :: self.patch].unsqueeze(-1) > 0

        def hide(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            token = self.token.to(output.dtype)
            if output.ndim == 3:
                return torch.where(hidden.flatten(1, 2), token, output)
            if isinstance(layer, nn.Conv2d):
                return torch.where(hidden.movedim(3, 1), token.view(-1, 1, 1), output)
            return torch.where(hidden, token, output)

        hook = self.net.get_submodule(self.embedding).register_forward_hook(hide)
        try:
            logits: Tensor = self.net(covered[:, :-1])
        finally:
            hook.remove()
        return logits

    def _last(self) -> nn.Module:
        return self.net.get_submodule(self.norm)

    def _of_patches(self, output: Tensor, grid: tuple[int, int]) -> Tensor:
        return output[:, -grid[0] * grid[1] :] if output.ndim == 3 else _pooled(output.movedim(3, 1), grid)


class PixelMasked(Masked):
    """Another network: the token is a patch of pixels, features are averages of the last map of features.

    That map is the output of the convolution, BatchNorm or GroupNorm that the network lists last.
    """

    def __init__(self, net: nn.Module, patch: int) -> None:
        super().__init__(net, patch)
        convolutions = _convolutions(net)
        if not convolutions:
            raise ValueError(
                "Expected a vision transformer or a network with two-dimensional convolutions, to mask patches of its "
                f"images, but {type(net).__name__} has none."
            )
        kinds = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
        self.map, last = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, kinds)][-1]
        self.channels = convolutions[0].in_channels
        self.width = last.out_channels if isinstance(last, nn.Conv2d) else len(last.weight)
        self.token = nn.Parameter(torch.zeros(self.channels, patch, patch))

    def forward(self, covered: Tensor) -> Tensor:
        """Return the logits of covered images."""
        images, hidden = covered[:, :-1], covered[:, -1:] > 0
        tiles = self.token.repeat(1, *self.grid(images))[:, : images.shape[2], : images.shape[3]]
        logits: Tensor = self.net(torch.where(hidden, tiles, images))
        return logits

    def _last(self) -> nn.Module:
        return self.net.get_submodule(self.map)

    def _of_patches(self, output: Tensor, grid: tuple[int, int]) -> Tensor:
        return _pooled(output, grid)


def _pooled(features: Tensor, grid: tuple[int, int]) -> Tensor:
    return F.adaptive_avg_pool2d(features, grid).flatten(2).mT


def _convolutions(net: nn.Module) -> list[nn.Conv2d]:
    return [module for module in net.modules() if isinstance(module, nn.Conv2d)]


def make_masked(net: nn.Module, patch: int) -> Masked:
    """Return a network whose patches can be hidden: those of a vision transformer, or else squares of ``patch`` pixels.

    A vision transformer has ``patch_embed``, which is or holds a convolution, and ``norm``, as timm's have.

    Example:
        >>> from vcotta.models import ViT
        >>> masked = make_masked(ViT(depth=1, width=8, heads=2), 2)
        >>> type(masked).__name__, masked.patch, masked.grid(torch.zeros(1, 3, 32, 32))
        ('TokenMasked', 4, (8, 8))
    """
    for name, module in net.named_modules():
        children = dict(module.named_children())
        if {"patch_embed", "norm"} <= children.keys() and _convolutions(children["patch_embed"]):
            return TokenMasked(net, name)
    return PixelMasked(net, patch)
