"""Where and how precisely to compute: the caller's choice, the same for every method."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from vcotta._messages import unknown_name

__all__ = ["Runtime"]

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class Runtime:
    """Device and precision of an adapter.

    Attributes:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...
        precision: ``"fp32"``, or ``"bf16"`` for automatic mixed precision; losses and divergences are always float32.
        channels_last: Keep images and convolutions in NHWC order, which tensor cores prefer.

    Example:
        >>> Runtime().device
        'cpu'
    """

    device: str = "cpu"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = False

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16"):
            raise unknown_name("precision", self.precision, ("fp32", "bf16"))
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"Expected `device` to be 'cpu' or 'cuda', but got {self.device!r}.") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                f"Expected `device` to be one this machine has, but got {self.device!r} and torch sees no GPU. "
                "Use device='cpu' or install a CUDA build of torch."
            )

    def place(self, net: Net) -> Net:
        """Move a network to the device and memory format."""
        net = net.to(self.device)
        return net.to(memory_format=torch.channels_last) if self.channels_last else net  # type: ignore[call-overload]

    def place_images(self, images: Tensor) -> Tensor:
        """Move images to the device and memory format, as float32."""
        images = images.to(self.device, torch.float32, non_blocking=True)
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def autocast(self) -> AbstractContextManager[object]:
        """The precision, as a context for forward passes."""
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.precision == "bf16")
