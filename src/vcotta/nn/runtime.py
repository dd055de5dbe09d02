"""Device, precision and speed of computation, the same for every method."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Settings
from vcotta._util.warn import warn

__all__ = ["Runtime", "dense_groups"]

Net = TypeVar("Net", bound=nn.Module)

_MOST_GROUPS = 4  # a dense convolution multiplies by a zero for each of the other groups


@dataclass(frozen=True)
class Runtime(Settings):
    """Device and precision of an adapter; None chooses the fast path on a GPU and the plain one elsewhere.

    Attributes:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        precision: ``"fp32"``; ``"bf16"`` for automatic mixed precision (default on a GPU), with losses in float32; or
            ``"fp64"`` for everything in float64, to tell rounding from mistakes.
        channels_last: Keep images and convolutions in NHWC order, which tensor cores prefer (default on a GPU).
        compile: Compile passes (default on a GPU): many views at once of a network that only predicts, such as a
            teacher, and a training with AugMix; a training also computes 2 to 4 groups of a convolution densely. The
            first batch takes some ten seconds longer, that of a training more.

    Example:
        >>> Runtime()
        Runtime(device='cpu', precision='fp32', channels_last=False, compile=False)
    """

    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp64"] | None = None
    channels_last: bool | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"Expected `device` to be 'cpu' or 'cuda', but got {self.device!r}.") from error
        gpu = device.type == "cuda"
        if gpu and not torch.cuda.is_available():
            raise ValueError(
                f"Expected `device` to be one this machine has, but got {self.device!r} and torch sees no GPU. "
                "Use device='cpu' or install a CUDA build of torch."
            )
        for name, fast in {"precision": "bf16" if gpu else "fp32", "channels_last": gpu, "compile": gpu}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, fast)

    @classmethod
    def on_device_of(cls, net: nn.Module) -> Runtime:
        """Return the runtime of the device that a network is on; a network without weights is on the CPU.

        Example:
            >>> Runtime.on_device_of(nn.Linear(2, 2)).device
            'cpu'
        """
        weight = next(net.parameters(), None)
        return cls() if weight is None else cls(device=str(weight.device))

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights, images and outputs."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def fit_for(self, net: nn.Module) -> Runtime:
        """Return this runtime, or on a CPU one without ``channels_last`` for a network with GroupNorm.

        torch 2.13 crashes there when it computes the gradient of such a layer's weight and not of its input.
        """
        grouped = any(isinstance(module, nn.GroupNorm) for module in net.modules())
        if not (self.channels_last and grouped and torch.device(self.device).type == "cpu"):
            return self
        warn("`channels_last` is left off: torch cannot train GroupNorm in that order on a CPU.")
        return replace(self, channels_last=False)

    def place(self, net: Net) -> Net:
        """Move a network to the device and memory format."""
        net = net.to(self.device, torch.float64) if self.precision == "fp64" else net.to(self.device)
        return net.to(memory_format=torch.channels_last) if self.channels_last else net  # type: ignore[call-overload]

    def place_images(self, images: Tensor) -> Tensor:
        """Move images to the device and memory format, as `dtype`."""
        images = images.to(self.device, self.dtype, non_blocking=True)
        # Never as they come: torch 2.13 crashes on a CPU where a network gets permuted (height, width, channel) images.
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return images.contiguous(memory_format=layout)

    def forward(self, net: nn.Module, images: Tensor, *, compiled: bool = False) -> Tensor:
        """One pass of a network in the chosen precision, as `dtype`."""
        with self.autocast():
            output: Tensor = _compiled()(net, images) if compiled else net(images)
        return output.to(self.dtype)

    def autocast(self) -> AbstractContextManager[object]:
        """The precision, as a context for forward passes."""
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.precision == "bf16")


@functools.cache
def _compiled() -> Callable[[nn.Module, Tensor], Tensor]:
    """The compiled pass, one for all networks: those of one architecture share the compiled code."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)  # of all networks, shapes and precisions together
    # A residual block's sum is read three times: store it instead of recomputing it for each reader.
    return torch.compile(_forward, dynamic=False, options={"realize_reads_threshold": 1})


def _forward(net: nn.Module, images: Tensor) -> Tensor:
    output: Tensor = net(images)
    return output


class _DenseConv2d(nn.Conv2d):
    """``nn.Conv2d`` with a few groups that convolves with the block-diagonal weight of all of them."""

    def forward(self, x: Tensor) -> Tensor:
        each = self.weight.unflatten(0, (self.groups, -1))
        own = torch.eye(self.groups, dtype=each.dtype, device=each.device)
        weight = torch.einsum("goihw,gk->gokihw", each, own).flatten(2, 3).flatten(0, 1)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation)


@contextmanager
def dense_groups(net: nn.Module) -> Iterator[None]:
    """Compute convolutions of 2 to 4 groups as dense ones inside the block, which halves a training step on a GPU.

    Outputs and gradients are the same up to rounding. Without ``torch.backends.cudnn.benchmark`` cuDNN chooses slow
    kernels for groups, and with it a training would differ from run to run.
    """
    changed = [
        layer
        for layer in net.modules()
        if type(layer) is nn.Conv2d and 1 < layer.groups <= _MOST_GROUPS and layer.padding_mode == "zeros"
    ]
    for layer in changed:
        layer.__class__ = _DenseConv2d
    try:
        yield
    finally:
        for layer in changed:
            layer.__class__ = nn.Conv2d
