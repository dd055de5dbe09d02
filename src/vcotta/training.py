"""Plain supervised training of a source network, before any adaptation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Loader", "TrainConfig", "train"]

Model = TypeVar("Model", bound=nn.Module)


class Loader(Protocol):
    """Re-iterable batches (images in [0, 1], labels) of known number."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


@dataclass(frozen=True)
class TrainConfig:
    """How to train a source network.

    Attributes:
        epochs: Passes over the loader.
        lr: Peak learning rate of the cycle: linear rise, then cosine to zero.
        rise: Share of all steps spent rising.
        momentum: Nesterov momentum of SGD.
        weight_decay: L2 penalty on every parameter.
        shift: Largest random shift of an image along each axis, in pixels; 0 for none.
        seed: Seed of the shifts and of anything random inside the network.
    """

    epochs: int
    lr: float = 0.1
    rise: float = 0.3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    shift: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"Expected `epochs` to be at least 1, but got {self.epochs}.")
        if not self.lr > 0:
            raise ValueError(f"Expected `lr` to be positive, but got {self.lr}.")
        if not 0 <= self.rise < 1:
            raise ValueError(f"Expected `rise` to be at least 0 and below 1, but got {self.rise}.")
        if self.shift < 0:
            raise ValueError(f"Expected `shift` to be at least 0 pixels, but got {self.shift}.")


def train(
    model: Model,
    loader: Loader,
    config: TrainConfig,
    *,
    progress: Callable[[int, int, float], None] | None = None,
) -> Model:
    """Train ``model`` in place on labelled images by cross-entropy and return it in eval mode.

    The result depends on the model, the loader's order and ``config.seed`` only; the global random state is left as
    it was found.

    Args:
        model: Network from images in [0, 1] to logits, on the device to train on.
        loader: Source batches; shuffle them there.
        config: Length, step size and augmentation.
        progress: Called after each epoch with (epochs done, epochs, mean loss of the epoch).

    Returns:
        The same ``model``.
    """
    device = next(model.parameters()).device
    optimiser = torch.optim.SGD(
        model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.momentum > 0
    )
    steps = config.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _cycle(step, steps, config.rise))
    shifts = torch.Generator().manual_seed(config.seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        torch.default_generator.manual_seed(config.seed)  # torch.manual_seed would also reseed every other device
        if device.type == "cuda":
            torch.cuda.default_generators[device.index].manual_seed(config.seed)
        model.train()
        for epoch in range(config.epochs):
            total, count = 0.0, 0
            for images, labels in loader:
                images, labels = _shifted(images, config.shift, shifts).to(device), labels.to(device)
                loss = F.cross_entropy(model(images), labels)
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                optimiser.step()
                schedule.step()
                total, count = total + loss.item() * len(labels), count + len(labels)
            if progress is not None:
                progress(epoch + 1, config.epochs, total / count)
    optimiser.zero_grad()
    return model.eval()


def _shifted(images: Tensor, reach: int, generator: torch.Generator) -> Tensor:
    """Move each image by a random whole number of pixels, up to ``reach`` along each axis; edges are repeated."""
    if reach == 0:
        return images
    count, _, height, width = images.shape
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    down, right = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=generator).to(images.device)
    rows, columns = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    # Indices around a slice put the sliced axis last: (n, height, width, channels).
    return padded[image, :, (down + rows).unsqueeze(2), (right + columns).unsqueeze(1)].permute(0, 3, 1, 2)


def _cycle(step: int, steps: int, rise: float) -> float:
    at = (step + 1) / (steps + 1)
    return at / rise if at < rise else 0.5 + 0.5 * math.cos(math.pi * (at - rise) / (1 - rise))
