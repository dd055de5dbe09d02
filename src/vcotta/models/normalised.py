"""Normalisation as a part of the network, so that everything outside it sees images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["CIFAR10", "CIFAR100", "HALF", "IMAGENET", "Normalised", "NormalisedNetwork"]

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]

IMAGENET: MeanStd = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's channels, as torchvision, timm and akamaster's CIFAR networks use them."""

CIFAR10: MeanStd = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
CIFAR100: MeanStd = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

HALF: MeanStd = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""(x - 0.5) / 0.5, the choice of AugMix."""


class NormalisedNetwork(nn.Module):
    """Base of the networks that take images in [0, 1] and subtract the mean and divide by the deviation themselves.

    Attributes:
        depth: Number of layers, of the networks that are made by it.
        classes: Number of outputs, of those.
        channels: Number of image channels.
        mean: Mean of each channel, or None where the network takes [0, 1] as it is.
        std: Standard deviation of each channel, or None.
    """

    depth: int
    classes: int
    channels: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    _mean: Tensor
    _std: Tensor

    def keep_arguments(self, mean: Sequence[float] | None, std: Sequence[float] | None, **sizes: int) -> None:
        """Keep the constructor's arguments as attributes; each of ``sizes`` must be at least 1."""
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"Expected `{name}` to be at least 1, but got {value}.")
            setattr(self, name, value)
        self.set_normalisation(mean, std)

    def set_normalisation(self, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
        """Choose what is subtracted and divided by, one value a channel; None for both takes [0, 1] as it is.

        Raises:
            ValueError: If only one is given, their lengths are not the number of channels, or a deviation is not
                positive.
        """
        if (mean is None) != (std is None):
            raise ValueError("Expected `mean` and `std` to be given together, but got only one. Give both or neither.")
        ours = None if mean is None else tuple(map(float, mean))
        theirs = None if std is None else tuple(map(float, std))
        for name, values in {"mean": ours, "std": theirs}.items():
            if values is not None and len(values) != self.channels:
                raise ValueError(f"Expected `{name}` to hold {self.channels} values, one a channel, but got {values}.")
        if theirs is not None and not all(value > 0 for value in theirs):
            raise ValueError(f"Expected `std` to be positive, but got {theirs}.")
        self.mean, self.std = ours, theirs
        # Not persistent: published checkpoints have no such keys, and loading them stays strict.
        like = next(self.parameters(), torch.empty(0))
        for name, values in {"_mean": ours, "_std": theirs}.items():
            if values is not None:
                value = torch.tensor(values, device=like.device, dtype=like.dtype).view(1, -1, 1, 1)
                self.register_buffer(name, value, persistent=False)

    def normalise(self, x: Tensor) -> Tensor:
        """Turn images in [0, 1] into what the first layer wants."""
        return x if self.mean is None else (x - self._mean) / self._std


class Normalised(NormalisedNetwork):
    """Any network that wants normalised input, made to take images in [0, 1].

    Args:
        model: The network.
        mean: Mean of each channel, subtracted before it.
        std: Standard deviation of each channel, divided by before it.

    Example:
        >>> net = Normalised(nn.Flatten(), *HALF)
        >>> net(torch.ones(1, 3, 1, 1))
        tensor([[1., 1., 1.]])
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float] = IMAGENET[0], std: Sequence[float] = IMAGENET[1]
    ) -> None:
        super().__init__()
        self.channels = len(mean)
        self.model = model
        self.set_normalisation(mean, std)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network makes of images (n, channels, height, width) in [0, 1]."""
        out: Tensor = self.model(self.normalise(x))
        return out
