"""The thin residual networks of the CIFAR experiments, in the layout of akamaster's published checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vcotta.models.normalised import IMAGENET, NormalisedNetwork
from vcotta.models.stages import stage

__all__ = ["CifarResNet"]


class _Block(nn.Module):
    """Two 3x3 convolutions; where the width doubles, the shortcut has no weights of its own (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self._stride, self._zeros = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self._zeros:  # every other pixel, with channels of zeros on both sides
            before = self._zeros // 2
            x = F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, before, self._zeros - before))
        return F.relu(out + x)


class CifarResNet(NormalisedNetwork):
    """ResNet-``depth`` of He et al. (2016), section 4.2, for images of any size.

    Three stages of ``n = (depth - 2) / 6`` blocks with 16, 32 and 64 channels, shortcuts without parameters, global
    average pooling and a linear layer. Parameter names are akamaster's (``layer1.0.conv1.weight``, ...,
    ``linear.weight``), whose networks were trained with the mean and deviation of ImageNet. The constructor's
    arguments are kept as attributes of the same names.

    Args:
        depth: Number of layers, 6n + 2.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: Mean of each channel, subtracted inside the network; None (with ``std``) for raw [0, 1] input.
        std: Standard deviation of each channel, divided by inside the network.

    Example:
        >>> import torch
        >>> CifarResNet(depth=20)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 20,
        classes: int = 10,
        channels: int = 3,
        mean: Sequence[float] | None = IMAGENET[0],
        std: Sequence[float] | None = IMAGENET[1],
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"Expected `depth` to be 6n + 2 with n at least 1, but got {depth}. Try 20, 32, 44 or 56.")
        self.keep_arguments(mean, std, depth=depth, classes=classes, channels=channels)

        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(_Block, blocks, 16, 16, 1)
        self.layer2 = stage(_Block, blocks, 16, 32, 2)
        self.layer3 = stage(_Block, blocks, 32, 64, 2)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits
