"""Which network a checkpoint belongs to, told from the names and shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

__all__ = ["recognise"]

_HEADS = ("fc.weight", "linear.weight", "classifier.weight", "_fc.weight", "head.weight")


def recognise(tensors: Mapping[str, Tensor]) -> tuple[str | None, int | None]:
    """Return the name of the network in the zoo and the number of classes, each None where it cannot be told.

    Args:
        tensors: A state dict without prefixes such as ``module.``.

    Example:
        >>> from vcotta.models import CifarResNet
        >>> recognise(CifarResNet(depth=32).state_dict())
        ('resnet-32', 10)
    """
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    head = next((shapes[key] for key in _HEADS if len(shapes.get(key, ())) == 2), None)
    classes = None if head is None else head[0]
    return _wide_resnet(shapes) or _resnext(shapes) or _resnet(shapes), classes


def _count(shapes: Mapping[str, tuple[int, ...]], stage: str, part: str) -> int:
    """Number of blocks of a stage: how many have this part."""
    return sum(key.startswith(stage) and key.endswith(part) for key in shapes)


def _wide_resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    stem, first = shapes.get("conv1.weight", ()), shapes.get("block1.layer.0.conv1.weight", ())
    if stem[:1] != (16,) or len(first) != 4:
        return None
    depth = 6 * _count(shapes, "block1.layer.", ".conv1.weight") + 4
    return f"wrn-{depth}-{first[0] // 16}"


def _resnext(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    grouped = shapes.get("stage_1.0.conv_conv.weight", ())
    if len(grouped) != 4 or 0 in grouped:
        return None
    depth = 9 * _count(shapes, "stage_1.", ".conv_conv.weight") + 2
    return f"resnext-{depth}-{grouped[0] // grouped[1]}x{grouped[1]}d"


def _resnet(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    stem = shapes.get("conv1.weight", ())
    blocks = tuple(_count(shapes, f"layer{stage}.", ".conv1.weight") for stage in (1, 2, 3, 4))
    if stem[:1] == (16,) and "linear.weight" in shapes and blocks[0] == blocks[1] == blocks[2] and not blocks[3]:
        depth = 6 * blocks[0] + 2
        return f"resnet-{depth}" if depth in (20, 32, 44, 56) else None
    if stem[:1] == (64,) and stem[2:] == (7, 7) and "fc.weight" in shapes:
        bottleneck = "layer1.0.conv3.weight" in shapes
        narrow = bottleneck and shapes.get("layer1.0.conv2.weight") == (64, 64, 3, 3)
        if blocks == (3, 4, 6, 3) and narrow:
            return "resnet-50"
        if blocks == (2, 2, 2, 2) and not bottleneck:
            return "resnet-18"
    return None
