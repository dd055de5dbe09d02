"""ResNeXt for small images in the layout of RobustBench, so that its AugMix checkpoints load strictly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from vcotta.models.normalised import HALF, NormalisedNetwork
from vcotta.models.resnet import projection, stage

__all__ = ["ResNeXt"]

EXPANSION = 4


class _Block(nn.Module):
    """Bottleneck with grouped 3x3 convolution: reduce, convolve in ``cardinality`` groups, expand."""

    def __init__(self, inputs: int, planes: int, stride: int, *, cardinality: int, base_width: int) -> None:
        super().__init__()
        inner, outputs = planes * base_width // 64 * cardinality, planes * EXPANSION
        self.conv_reduce = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(outputs)
        self.downsample = projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn_reduce(self.conv_reduce(x)))
        out = F.relu(self.bn(self.conv_conv(out)))
        out = self.bn_expand(self.conv_expand(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNeXt(NormalisedNetwork):
    """ResNeXt-``depth`` ``cardinality``x``base_width``d of Xie et al. (2017) for CIFAR, for images of any size.

    Three stages of ``n = (depth - 2) / 9`` bottlenecks with 64, 128 and 256 planes and four times as many outputs,
    global average pooling over 1 024 features and a linear layer. Parameter names are those of RobustBench's
    ``Hendrycks2020AugMix_ResNeXt`` (``stage_1.0.conv_reduce.weight``, ...).

    Args:
        depth: Number of layers, 9n + 2.
        cardinality: Number of groups.
        base_width: Channels of a group in the first stage.
        classes: Number of outputs.
        channels: Number of image channels.
        mean: See `NormalisedNetwork`.
        std: See `NormalisedNetwork`.

    Example:
        >>> import torch
        >>> ResNeXt(depth=11, cardinality=2, base_width=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 100])
    """

    def __init__(
        self,
        depth: int = 29,
        cardinality: int = 4,
        base_width: int = 32,
        classes: int = 100,
        channels: int = 3,
        mean: Sequence[float] | None = HALF[0],
        std: Sequence[float] | None = HALF[1],
    ) -> None:
        super().__init__()
        if depth < 11 or (depth - 2) % 9:
            raise ValueError(f"Expected `depth` to be 9n + 2 with n at least 1, but got {depth}. Try 11, 20 or 29.")
        widths = {"cardinality": cardinality, "base_width": base_width}
        self.keep_arguments(mean, std, depth=depth, classes=classes, channels=channels, **widths)

        blocks, block = (depth - 2) // 9, partial(_Block, **widths)
        self.conv_1_3x3 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        self.stage_1 = stage(block, blocks, 64, 64, 1, EXPANSION)
        self.stage_2 = stage(block, blocks, 64 * EXPANSION, 128, 2, EXPANSION)
        self.stage_3 = stage(block, blocks, 128 * EXPANSION, 256, 2, EXPANSION)
        self.classifier = nn.Linear(256 * EXPANSION, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                # The published initialisation: its fan ignores the groups, so it is smaller than torch's.
                fan = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
                nn.init.normal_(module.weight, std=(2 / fan) ** 0.5)
        nn.init.kaiming_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (n, classes) of images (n, channels, height, width) in [0, 1]."""
        x = F.relu(self.bn_1(self.conv_1_3x3(self.normalise(x))))
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        logits: Tensor = self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits
