"""Wide residual networks in the layout of RobustBench, so that its checkpoints load strictly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcotta.models.normalised import NormalisedNetwork
from vcotta.models.resnet import stage

__all__ = ["WideResNet", "digits_network"]


class _Block(nn.Module):
    """Pre-activation block; if the width changes, both branches start from ``relu(bn1(x))``."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.convShortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.convShortcut is None else self.convShortcut(active)
        out: Tensor = shortcut + self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out


class _Stage(nn.Module):
    """A stage of blocks, under the name ``layer`` of RobustBench."""

    def __init__(self, blocks: int, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.layer = stage(_Block, blocks, inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class WideResNet(NormalisedNetwork):
    """WRN-``depth``-``width`` of Zagoruyko and Komodakis (2016), for images of any size.

    Three stages of ``n = (depth - 4) / 6`` pre-activation blocks with ``base * width`` times 1, 2 and 4 channels, then
    batch normalisation, ReLU, global average pooling and a linear layer. Parameter names are RobustBench's
    (``block1.layer.0.bn1.weight``, ...).

    Args:
        depth: Number of layers, 6n + 4.
        width: Widening factor.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: See `NormalisedNetwork`.
        std: See `NormalisedNetwork`.
        stem_stride: Stride of the first convolution; 2 reduces the work of the whole network to a quarter.
        base: Channels of the first convolution.

    Example:
        >>> WideResNet(depth=10, width=1, classes=10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        classes: int = 10,
        channels: int = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        stem_stride: int = 1,
        base: int = 16,
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"Expected `depth` to be 6n + 4 with n at least 1, but got {depth}. Try 10, 16, 22 or 28.")
        more = {"width": width, "stem_stride": stem_stride, "base": base}
        self.keep_arguments(mean, std, depth=depth, classes=classes, channels=channels, **more)

        blocks = (depth - 4) // 6
        one, two, three = (base * width * factor for factor in (1, 2, 4))
        self.conv1 = nn.Conv2d(channels, base, 3, stem_stride, padding=1, bias=False)
        self.block1 = _Stage(blocks, base, one, 1)
        self.block2 = _Stage(blocks, one, two, 2)
        self.block3 = _Stage(blocks, two, three, 2)
        self.bn1 = nn.BatchNorm2d(three)
        self.fc = nn.Linear(three, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
        x = self.block3(self.block2(self.block1(self.conv1(self.normalise(x)))))
        x = F.adaptive_avg_pool2d(F.relu(self.bn1(x)), 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def digits_network(seed: int = 0) -> WideResNet:
    """Return a small untrained network for `load_digits`; the global random state is not changed.

    Example:
        >>> sum(weights.numel() for weights in digits_network().parameters())
        19858
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also reseed every GPU
        return WideResNet(depth=10, width=1, stem_stride=2, base=8)
