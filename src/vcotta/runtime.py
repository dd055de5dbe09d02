"""Where and how precisely to compute: the caller's choice, the same for every method."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from vcotta._messages import unknown_name

__all__ = ["Runtime"]

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Runtime:
    """Device and precision of an adapter; what is left open becomes the fast path on a GPU and the plain one elsewhere.

    Attributes:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        precision: ``"fp32"``, or ``"bf16"`` for automatic mixed precision (default on a GPU); losses and divergences
            are always float32. ``"fp64"`` computes everything in float64, to tell rounding from mistakes.
        channels_last: Keep images and convolutions in NHWC order, which tensor cores prefer (default on a GPU).
        compile: Let networks that only predict, as a teacher does, look at many views in one compiled pass, each with
            its own statistics; compile the passes of a training with AugMix, and compute a few groups densely in any
            training (default on a GPU). The first batch then takes some ten seconds longer, that of a training more.

    Example:
        >>> Runtime()
        Runtime(device='cpu', precision='fp32', channels_last=False, compile=False)
    """

    device: str = "cpu"
    precision: Literal["fp32", "bf16", "fp64"] | None = None
    channels_last: bool | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        if self.precision not in (None, "fp32", "bf16", "fp64"):
            raise unknown_name("precision", self.precision, ("fp32", "bf16", "fp64"))
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

    @property
    def dtype(self) -> torch.dtype:
        """What weights, images and outputs are."""
        return torch.float64 if self.precision == "fp64" else torch.float32

    def fit_for(self, net: nn.Module) -> Runtime:
        """Return this runtime, or on a CPU one without ``channels_last`` for a network with GroupNorm.

        There torch (2.13) crashes when it computes the gradient of such a layer's weight and not that of its input.
        """
        grouped = any(isinstance(module, nn.GroupNorm) for module in net.modules())
        if not (self.channels_last and grouped and torch.device(self.device).type == "cpu"):
            return self
        warnings.warn("`channels_last` is left off: torch cannot train GroupNorm in that order on a CPU.", stacklevel=2)
        return replace(self, channels_last=False)

    def place(self, net: Net) -> Net:
        """Move a network to the device and memory format."""
        net = net.to(self.device, torch.float64) if self.precision == "fp64" else net.to(self.device)
        return net.to(memory_format=torch.channels_last) if self.channels_last else net  # type: ignore[call-overload]

    def place_images(self, images: Tensor) -> Tensor:
        """Move images to the device and memory format, as `dtype`."""
        images = images.to(self.device, self.dtype, non_blocking=True)
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

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
    """The compiled pass, one for all networks: those of one architecture share what was compiled for the first."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 64)  # of all networks, shapes and precisions together
    # A residual block's sum is read three times: it is kept, not added up anew by each reader out of ever more parts.
    return torch.compile(_forward, dynamic=False, options={"realize_reads_threshold": 1})


def _forward(net: nn.Module, images: Tensor) -> Tensor:
    output: Tensor = net(images)
    return output
