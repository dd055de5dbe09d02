"""ResNets of He et al. (2016), named as in published checkpoints: torchvision's for ImageNet, akamaster's for CIFAR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from vcotta._util.errors import unknown_name
from vcotta.models.normalised import IMAGENET, NormalisedNetwork

__all__ = ["CifarResNet", "ResNet", "projection", "stage"]


def stage(
    block: Callable[[int, int, int], nn.Module], count: int, inputs: int, planes: int, stride: int, expansion: int = 1
) -> nn.Sequential:
    """Make a sequence of blocks (inputs, planes, stride), the first of which changes width and resolution.

    A block has ``planes * expansion`` output channels.
    """
    first = block(inputs, planes, stride)
    return nn.Sequential(first, *(block(planes * expansion, planes, 1) for _ in range(count - 1)))


Norm = Literal["batch", "group"]
"""Kind of the normalisation layers."""


def with_norm(net: nn.Module, norm: Norm, groups: int) -> None:
    """For ``norm="group"`` put GroupNorm of so many groups in place of every BatchNorm2d, under the same names."""
    if norm not in get_args(Norm):
        raise unknown_name("norm", norm, get_args(Norm))
    if norm == "group":
        for module in [*net.modules()]:
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, nn.GroupNorm(groups, child.num_features, child.eps))


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """Make the shortcut of a block, a 1x1 convolution; None if the input can be added unchanged."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class _Basic(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = projection(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions; the first has the stride if ``first_strides`` (the paper), else the second."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int, first_strides: bool = False) -> None:
        super().__init__()
        outputs, (first, second) = planes * self.expansion, (stride, 1) if first_strides else (1, stride)
        self.conv1 = nn.Conv2d(inputs, planes, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(out)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


_SHAPES: dict[int, tuple[type[_Basic] | type[_Bottleneck], tuple[int, int, int, int]]] = {
    18: (_Basic, (2, 2, 2, 2)),
    50: (_Bottleneck, (3, 4, 6, 3)),
}


class ResNet(NormalisedNetwork):
    """ResNet-``depth`` of He et al. (2016) for ImageNet, applicable to images of any size.

    A 7x7 convolution and max pooling, both of stride 2, four stages of blocks with 64, 128, 256 and 512 planes,
    global average pooling and a linear layer. Parameter names are torchvision's (``layer1.0.conv1.weight``, ...,
    ``fc.weight``).

    The network ``resnet-50-v1`` is that of the paper and of Keras, with ``first_strides=True`` and ``eps=1e-3``; in
    torchvision, and by default, the 3x3 convolution of a block has its stride. Their weights have the same names and
    shapes, but those of one do not work in the other. ``small_stem=True`` is for images of about 64 pixels.

    Args:
        depth: 18 or 50.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: See `NormalisedNetwork`.
        std: See `NormalisedNetwork`.
        first_strides: Whether the first 1x1 convolution of a bottleneck block has its stride, not the 3x3 one.
        eps: What BatchNorm adds to the variance.
        small_stem: Begin with a 3x3 convolution of stride 1, without pooling.
        norm: ``"batch"``, or ``"group"`` for GroupNorm of 32 groups (Wu and He, 2018), under the same names, so that
            timm's ``resnet50_gn`` fits.

    Example:
        >>> import torch
        >>> ResNet(depth=18)(torch.zeros(2, 3, 64, 64)).shape
        torch.Size([2, 1000])
    """

    def __init__(
        self,
        depth: int = 50,
        classes: int = 1000,
        channels: int = 3,
        mean: Sequence[float] | None = IMAGENET[0],
        std: Sequence[float] | None = IMAGENET[1],
        first_strides: bool = False,
        eps: float = 1e-5,
        small_stem: bool = False,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        if depth not in _SHAPES:
            raise ValueError(f"Expected `depth` to be 18 or 50, but got {depth}. Try torchvision:resnet{depth}.")
        if first_strides and depth == 18:
            raise ValueError("Expected `first_strides` only with depth 50, as depth 18 has no 1x1 convolutions.")
        self.keep_arguments(mean, std, depth=depth, classes=classes, channels=channels)
        self.first_strides, self.eps, self.small_stem, self.norm = first_strides, eps, small_stem, norm

        kind, (one, two, three, four) = _SHAPES[depth]
        block, expansion = partial(_Bottleneck, first_strides=True) if first_strides else kind, kind.expansion
        self.conv1 = nn.Conv2d(channels, 64, *((3, 1, 1) if small_stem else (7, 2, 3)), bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(block, one, 64, 64, 1, expansion)
        self.layer2 = stage(block, two, 64 * expansion, 128, 2, expansion)
        self.layer3 = stage(block, three, 128 * expansion, 256, 2, expansion)
        self.layer4 = stage(block, four, 256 * expansion, 512, 2, expansion)
        self.fc = nn.Linear(512 * expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.eps = eps
        with_norm(self, norm, groups=32)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        if not self.small_stem:
            x = F.max_pool2d(x, 3, 2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions; the shortcut has no weights, also where the width doubles (option A of the paper)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self._stride, self._zeros = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self._zeros:  # every other pixel, padded with channels of zeros on both sides
            before = self._zeros // 2
            x = F.pad(x[:, :, :: self._stride, :: self._stride], (0, 0, 0, 0, before, self._zeros - before))
        return F.relu(out + x)


class CifarResNet(NormalisedNetwork):
    """ResNet-``depth`` of He et al. (2016), section 4.2, for images of any size.

    Three stages of ``n = (depth - 2) / 6`` blocks with 16, 32 and 64 channels, shortcuts without parameters, global
    average pooling and a linear layer. Parameter names are akamaster's (``layer1.0.conv1.weight``, ...,
    ``linear.weight``), whose networks were trained with the mean and deviation of ImageNet.

    Args:
        depth: Number of layers, 6n + 2.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: See `NormalisedNetwork`.
        std: See `NormalisedNetwork`.
        norm: ``"batch"``, or ``"group"`` for GroupNorm of 8 groups, as in the ResNet-26 of Sun et al. (2020, "Test-Time
            Training"), under the same names.

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
        norm: Norm = "batch",
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
        self.norm = norm
        with_norm(self, norm, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
        x = F.relu(self.bn1(self.conv1(self.normalise(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits
