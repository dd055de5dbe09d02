"""Plain supervised training of a source network, before any adaptation."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcotta.augment import augmix, mirrored, shifted
from vcotta.dense_groups import dense_groups
from vcotta.epoch_state import EpochState, Stateful
from vcotta.fields import check_fields
from vcotta.rng import OwnRng
from vcotta.runtime import Runtime

__all__ = ["Loader", "TrainConfig", "train"]

Model = TypeVar("Model", bound=nn.Module)

_KIND = "vcotta-training-1"
_TOGETHER = 8  # batches that AugMix mixes at once: its thousand small operations keep a GPU waiting for the host


class Loader(Protocol):
    """Re-iterable batches (images in [0, 1], labels) of known number, whose order can be saved and restored."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return where the sequence of orders stands."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""


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
        flip: Whether images may be mirrored.
        augmix: Train on AugMix images: the network sees each image plain and in two mixtures, and the loss adds
            ``jsd`` times the Jensen-Shannon divergence of the three predictions. Three times the work, and the memory
            of eight batches, which are mixed at once.
        jsd: Weight of that divergence (12 in the AugMix paper).
        seed: Seed of the augmentation and of anything random inside the network.
    """

    epochs: int
    lr: float = 0.1
    rise: float = 0.3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    shift: int = 0
    flip: bool = False
    augmix: bool = False
    jsd: float = 12.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.epochs < 1:
            raise ValueError(f"Expected `epochs` to be at least 1, but got {self.epochs}.")
        if not self.lr > 0:
            raise ValueError(f"Expected `lr` to be positive, but got {self.lr}.")
        if not 0 <= self.rise < 1:
            raise ValueError(f"Expected `rise` to be at least 0 and below 1, but got {self.rise}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"Expected `weight_decay` to be at least 0, but got {self.weight_decay}.")
        if self.shift < 0:
            raise ValueError(f"Expected `shift` to be at least 0 pixels, but got {self.shift}.")
        if not self.jsd >= 0:
            raise ValueError(f"Expected `jsd` to be at least 0, but got {self.jsd}.")


def train(
    model: Model,
    loader: Loader,
    config: TrainConfig,
    *,
    runtime: Runtime | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Model:
    """Train ``model`` in place on labelled images by cross-entropy and return it in eval mode.

    The result depends on the model, the loader's order, ``config.seed`` and, in its rounding, the runtime; the global
    random state is left as it was found. The host waits for a GPU once an epoch. There convolutions of two to
    four groups are computed densely, and the passes of a training with AugMix are compiled; without it that did not pay
    (30 epochs of a WRN-28-10: 183 s with the start of the program, 151 s uncompiled).

    Args:
        model: Network from images in [0, 1] to logits.
        loader: Source batches; shuffle them there. `vcotta.data.batches` keeps them on the device if asked to.
        config: Length, step size and augmentation.
        runtime: Device and precision.
        progress: Called after each epoch with (epochs done, epochs, mean loss of the epoch); of a training that goes on
            also before the first one, with not-a-number.
        checkpoint: File that is written after an epoch, every half a minute at most, and gone on from where it is
            already there. It is kept when the training is done, and training again with it only loads the result.
            Ctrl-C then waits for the end of the epoch and writes it; pressed again it does not wait.

    Returns:
        The same ``model``, on the runtime's device.

    Raises:
        FloatingPointError: If the loss of an epoch is not finite.
        ValueError: If the checkpoint is damaged or belongs to another network or other settings.
    """
    runtime = (runtime or Runtime()).fit_for(model)
    runtime.place(model)
    steps = config.epochs * len(loader)
    optimiser = torch.optim.SGD(
        model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay, nesterov=config.momentum > 0
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _cycle(step, steps, config.rise))
    rng = OwnRng(config.seed, runtime.device)
    parts: dict[str, Stateful] = {
        "model": model,
        "optimiser": optimiser,
        "schedule": schedule,
        "rng": rng,
        "loader": loader,
    }
    state = EpochState(checkpoint, _KIND, parts, {"config": asdict(config)})
    done, full = state.resume(), 0
    passes = bool(runtime.compile) and config.augmix  # else it takes longer to compile them than they gain
    model.train()
    if done and progress is not None:
        progress(done, config.epochs, math.nan)
    with state.interruptible(config.epochs) as after_epoch:
        for epoch in range(done, config.epochs):
            total, count = torch.zeros((), device=runtime.device), 0
            with rng.scope(), torch.enable_grad(), dense_groups(model) if runtime.compile else nullcontext():
                for images, labels in _augmented(loader, config, runtime):
                    full = full or len(images)
                    compiled = passes and len(images) == full  # a short last one is not worth it
                    loss = _loss(runtime.forward(model, images, compiled=compiled), labels, config)
                    optimiser.zero_grad()
                    torch.autograd.backward(loss)
                    optimiser.step()
                    schedule.step()
                    total, count = total + loss.detach() * len(labels), count + len(labels)
            mean = total.item() / count
            if not math.isfinite(mean):
                raise FloatingPointError(
                    f"The loss became {mean} in epoch {epoch + 1}. Lower `lr` (it was {config.lr})."
                )
            after_epoch(epoch + 1)
            if progress is not None:
                progress(epoch + 1, config.epochs, mean)
    optimiser.zero_grad()
    return model.eval()


def _augmented(loader: Loader, config: TrainConfig, runtime: Runtime) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches as the network sees them; with AugMix the plain images first, then two mixtures of them all."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for images, labels in loader:
        if len(images) > 1:  # one image has no batch statistics
            waiting.append((runtime.place_images(images), labels.to(runtime.device)))
        if len(waiting) == (_TOGETHER if config.augmix else 1):
            yield from _augment(waiting, config)
            waiting = []
    if waiting:
        yield from _augment(waiting, config)


def _augment(batches: list[tuple[Tensor, Tensor]], config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Augment some batches at once."""
    sizes = [len(labels) for _, labels in batches]
    images = shifted(torch.cat([images for images, _ in batches]), config.shift)
    if config.flip:
        images = mirrored(images)
    forms = [images, *augmix(torch.cat([images, images])).chunk(2)] if config.augmix else [images]
    parts = zip(*(form.split(sizes) for form in forms), strict=True)
    for seen, (_, labels) in zip(parts, batches, strict=True):
        yield torch.cat(seen), labels


def _loss(logits: Tensor, labels: Tensor, config: TrainConfig) -> Tensor:
    if not config.augmix:
        return F.cross_entropy(logits, labels)
    plain, one, two = (part.log_softmax(1) for part in logits.chunk(3))
    middle = ((plain.exp() + one.exp() + two.exp()) / 3).clamp_min(1e-7).log()
    divergence = torch.stack([(part.exp() * (part - middle)).sum(1).mean() for part in (plain, one, two)]).mean()
    return F.nll_loss(plain, labels) + config.jsd * divergence


def _cycle(step: int, steps: int, rise: float) -> float:
    at = (step + 1) / (steps + 1)
    return at / rise if at < rise else 0.5 + 0.5 * math.cos(math.pi * (at - rise) / (1 - rise))
