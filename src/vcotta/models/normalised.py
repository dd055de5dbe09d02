"""Normalisation inside the network, so that all other code works on images in [0, 1]."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["CAFFE", "CIFAR10", "CIFAR100", "HALF", "IMAGENET", "Normalised", "NormalisedNetwork"]

MeanStd = tuple[tuple[float, ...], tuple[float, ...]]

IMAGENET: MeanStd = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of ImageNet's channels, as torchvision, timm and akamaster's CIFAR networks use them."""

CAFFE: MeanStd = ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255))
"""The mean of ImageNet's channels subtracted from values of 0 to 255, without a division: the networks of Keras."""

CIFAR10: MeanStd = ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616))
CIFAR100: MeanStd = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

HALF: MeanStd = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""(x - 0.5) / 0.5, as in AugMix."""


class NormalisedNetwork(nn.Module):
    """Base of networks that take images in [0, 1] and normalise them: (x - mean) / std for each channel.

    The constructor's arguments are attributes of the same names; ``mean`` and ``std`` are None for no normalisation.
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
        """Set the mean and standard deviation of each channel; None for both turns normalisation off.

        Raises:
            ValueError: Only one is given, a length is not the number of channels, or a deviation is not positive.
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
        # Not persistent, as published checkpoints have no such keys and are loaded strictly.
        like = next(self.parameters(), torch.empty(0))
        for name, values in {"_mean": ours, "_std": theirs}.items():
            if values is not None:
                value = torch.tensor(values, device=like.device, dtype=like.dtype).view(1, -1, 1, 1)
                self.register_buffer(name, value, persistent=False)

    def normalise(self, x: Tensor) -> Tensor:
        """Normalise images in [0, 1] for the first layer."""
        return x if self.mean is None else (x - self._mean) / self._std


class Normalised(NormalisedNetwork):
    """Wrapper that lets a network of normalised input take images in [0, 1].

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
        """Return the network's output for images (n, channels, height, width) in [0, 1]."""
        out: Tensor = self.model(self.normalise(x))
        return out
