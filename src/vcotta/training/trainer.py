"""Plain supervised training of a source network, before any adaptation."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vcotta._util.progress import Progress
from vcotta._util.validation import (
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    Settings,
    UnitInterval,
    at_least,
    below,
)
from vcotta.data import Batches
from vcotta.nn.augment import augmix, changed, mirrored, mixed_with_partners, shifted
from vcotta.nn.epoch_state import EpochState, Stateful
from vcotta.nn.rng import OwnRng
from vcotta.nn.runtime import Runtime, dense_groups

__all__ = ["TrainConfig", "train"]

Model = TypeVar("Model", bound=nn.Module)

_KIND = "vcotta-training-1"
_TOGETHER = 8  # batches that AugMix or random operations change at once; fewer leave a GPU waiting for small kernels


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of the training of a source network.

    Attributes:
        epochs: Passes over the data.
        lr: Peak learning rate; it rises linearly, then falls along a cosine to zero.
        rise: Share of the steps in which it rises.
        momentum: Nesterov momentum of SGD.
        weight_decay: L2 penalty on every parameter; with ``adamw`` decoupled decay of all parameters but those of one
            dimension, as biases and normalisation layers have.
        shift: Largest random shift of an image along each axis, in pixels; 0 for none.
        flip: Whether to mirror images at random.
        augmix: Train with AugMix: the network sees each image and two mixtures of it, and the loss adds ``jsd`` times
            the Jensen-Shannon divergence of the three predictions. This takes three times the work.
        jsd: Weight of that divergence (12 in the AugMix paper).
        seed: Seed of the augmentation and of anything random inside the network.
        optimizer: ``"sgd"``, or ``"adamw"`` with torch's betas, as transformers need.
        operations: Random operations applied to each image, see `vcotta.nn.augment.changed`.
        mixing: Share of the images that are mixed with another one, see `vcotta.nn.augment.mixed_with_partners`; the
            loss mixes both labels in the same proportion.
        label_smoothing: Probability that the target spreads evenly over all classes.
    """

    epochs: Count
    lr: Positive = 0.1
    rise: Annotated[float, at_least(0), below(1)] = 0.3
    momentum: float = 0.9
    weight_decay: NonNegative = 5e-4
    shift: NonNegativeInt = 0
    flip: bool = False
    augmix: bool = False
    jsd: NonNegative = 12.0
    seed: int = 0
    optimizer: Literal["sgd", "adamw"] = "sgd"
    operations: NonNegativeInt = 0
    mixing: UnitInterval = 0.0
    label_smoothing: Annotated[float, at_least(0), below(1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.augmix and self.mixing:
            raise ValueError(
                f"Expected `mixing` to be 0 with `augmix`, which mixes images itself, but got {self.mixing}. "
                "Choose one of them."
            )


def train(
    model: Model,
    loader: Batches,
    config: TrainConfig,
    *,
    runtime: Runtime | None = None,
    progress: Progress | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> Model:
    """Train ``model`` in place on labelled images by cross-entropy and return it in eval mode.

    The result depends on the model, the order of the batches, ``config.seed`` and, in its rounding, the runtime; the
    global random state is not changed. On a GPU convolutions of two to four groups are computed densely, and with
    AugMix the passes are compiled; without it that does not pay (30 epochs of a WRN-28-10: 183 s compiled, 151 s not).

    Args:
        model: Network from images in [0, 1] to logits.
        loader: Source batches of `vcotta.data.batches`, with a ``shuffle_seed``.
        config: Length, step size and augmentation.
        runtime: Device and precision; None for the device that the model is on.
        progress: Called after each epoch with (epochs done, epochs, mean loss of the epoch); a resumed training first
            calls it with not-a-number.
        checkpoint: File to write after an epoch, at most every half a minute, and to resume from if it exists. It
            stays after the training; training again with it only loads the result. With it Ctrl-C waits for the end of
            the epoch, about ten seconds at most, and writes the file; a second Ctrl-C does not wait.

    Returns:
        The same ``model``, on the runtime's device.

    Raises:
        FloatingPointError: The loss of an epoch is not finite.
        ValueError: The checkpoint is damaged, or of another network or other settings.
    """
    runtime = (runtime or Runtime.on_device_of(model)).fit_for(model)
    runtime.place(model)
    steps = config.epochs * len(loader)
    optimiser = _optimiser(model, config)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _cycle(step, steps, config.rise))
    rng = OwnRng(config.seed, runtime.device)
    parts: dict[str, Stateful] = {"model": model, "optimiser": optimiser, "schedule": schedule}
    state = EpochState(checkpoint, _KIND, parts | {"rng": rng, "loader": loader}, {"config": asdict(config)})
    done, full = state.resume(), 0
    passes = bool(runtime.compile) and config.augmix  # otherwise compiling takes longer than it saves
    model.train()
    if done and progress is not None:
        progress(done, config.epochs, math.nan)
    with state.interruptible(config.epochs) as after_epoch:
        for epoch in range(done, config.epochs):
            total, count = torch.zeros((), device=runtime.device), 0
            batches = _augmented(loader, config, runtime)
            with torch.enable_grad(), dense_groups(model) if runtime.compile else nullcontext():
                while True:
                    with rng.scope():  # of one step: other threads that draw have their turn in between
                        batch = next(batches, None)
                        if batch is None:
                            break
                        images, labels = batch
                        full = full or len(images)
                        compiled = passes and len(images) == full  # a short last batch is not worth compiling
                        images, partner, own = _mixed(images, config)
                        loss = _loss(runtime.forward(model, images, compiled=compiled), labels, config, partner, own)
                        optimiser.zero_grad()
                        torch.autograd.backward(loss)
                        optimiser.step()
                        schedule.step()
                    total, count = total + loss.detach() * len(labels), count + len(labels)
                    state.after_batch(epoch, config.epochs)
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


def _optimiser(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        nesterov, decay = config.momentum > 0, config.weight_decay
        return torch.optim.SGD(model.parameters(), config.lr, config.momentum, weight_decay=decay, nesterov=nesterov)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=True)


def _augmented(loader: Batches, config: TrainConfig, runtime: Runtime) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented batches; with AugMix each holds the plain images, then two mixtures of all of them."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for images, labels in loader:
        if len(images) > 1:  # BatchNorm needs two
            waiting.append((runtime.place_images(images), labels.to(runtime.device)))
        if len(waiting) == (_TOGETHER if config.augmix or config.operations else 1):
            yield from _augment(waiting, config)
            waiting = []
    if waiting:
        yield from _augment(waiting, config)


def _augment(batches: list[tuple[Tensor, Tensor]], config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Augment several batches at once."""
    sizes = [len(labels) for _, labels in batches]
    images = shifted(torch.cat([images for images, _ in batches]), config.shift)
    if config.flip:
        images = mirrored(images)
    images = changed(images, config.operations)
    forms = [images, *augmix(torch.cat([images, images])).chunk(2)] if config.augmix else [images]
    parts = zip(*(form.split(sizes) for form in forms), strict=True)
    for seen, (_, labels) in zip(parts, batches, strict=True):
        yield torch.cat(seen), labels


def _mixed(images: Tensor, config: TrainConfig) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return mixed_with_partners(images, config.mixing) if config.mixing else (images, None, None)


def _loss(
    logits: Tensor, labels: Tensor, config: TrainConfig, partner: Tensor | None = None, own: Tensor | None = None
) -> Tensor:
    if partner is not None and own is not None:
        distance = partial(F.cross_entropy, logits, reduction="none", label_smoothing=config.label_smoothing)
        return torch.lerp(distance(labels[partner]), distance(labels), own).mean()
    if not config.augmix:
        return F.cross_entropy(logits, labels, label_smoothing=config.label_smoothing)
    plain, one, two = (part.log_softmax(1) for part in logits.chunk(3))
    middle = ((plain.exp() + one.exp() + two.exp()) / 3).clamp_min(1e-7).log()
    divergence = torch.stack([(part.exp() * (part - middle)).sum(1).mean() for part in (plain, one, two)]).mean()
    return F.cross_entropy(plain, labels, label_smoothing=config.label_smoothing) + config.jsd * divergence


def _cycle(step: int, steps: int, rise: float) -> float:
    at = (step + 1) / (steps + 1)
    return at / rise if at < rise else 0.5 + 0.5 * math.cos(math.pi * (at - rise) / (1 - rise))
