"""RoTTA: robust BatchNorm, a balanced memory and a mean teacher (Yuan, Xie and Li, CVPR 2023)."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcotta.batch_norm import batch_norms
from vcotta.distributed import var_mean
from vcotta.fields import check_fields
from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, entropy
from vcotta.methods.mean_teacher import update_teacher
from vcotta.methods.norm_layers import train_only_normalisation
from vcotta.methods.snapshot import Snapshot
from vcotta.views import random_view

__all__ = ["Item", "Memory", "RoTTA", "RoTTAConfig", "RobustBatchNorm", "make_robust"]


@dataclass(frozen=True)
class RoTTAConfig:
    """Settings of RoTTA; the official code has the same for all data sets, a re-implementation for ImageNet-C too.

    Attributes:
        lr: Adam's step size (1e-3).
        capacity: N, how many images the memory holds (64).
        update_every: Images between two updates (64); the count goes on from batch to batch.
        nu: Share of the student in the teacher's average (0.001).
        alpha: Share of a batch of stored images in the running statistics of BatchNorm (0.05).
        lambda_t: Weight of an image's age in the memory's choice (1).
        lambda_u: Weight of its uncertainty (1).
        flip: Whether the student's view may mirror the images.
    """

    lr: float = 1e-3
    capacity: int = 64
    update_every: int = 64
    nu: float = 0.001
    alpha: float = 0.05
    lambda_t: float = 1.0
    lambda_u: float = 1.0
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "lambda_t", "lambda_u"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        for name in ("capacity", "update_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected `{name}` to be at least 1, but got {getattr(self, name)}.")
        for name in ("nu", "alpha"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")


class RoTTA(Adapter):
    r"""Learn from a small memory of recent, sure and balanced images, for streams in which classes come in runs.

    The teacher predicts with running statistics that move slowly (`RobustBatchNorm`). Its predicted classes and
    entropies decide which images are kept (`Memory`). After every ``update_every`` images the student, on a random view
    of the stored images, takes a step on scale and shift of its normalisation layers that minimises

    .. math:: \frac1n \sum_j w_j\,\mathrm{CE}(\bar p_j \to p_j), \qquad w_j = \frac{e^{-a_j / N}}{1 + e^{-a_j / N}}

    where :math:`\bar p_j` is the teacher's prediction of a stored image and :math:`a_j` its age; then the teacher's
    parameters follow the student's. The statistics of both move during an update, each by what it saw, and are not
    averaged. The prediction returned is the teacher's from before any update of the batch.

    Differs from the official code: uncertainty is the entropy itself, not that of p + 1e-6; LayerNorm and GroupNorm are
    trained too; BatchNorm layers of a class of their own, or without running statistics, are trained but not robust; an
    update whose loss is not finite, and a batch with a prediction that is not, leave everything as it was; images of
    another size than the stored ones start the memory anew; one stored image alone is learned from under the running
    statistics, which stay as they are.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = RoTTA(net, RoTTAConfig(update_every=6))
        >>> for _ in range(2):
        ...     _ = adapter(torch.rand(4, 3, 8, 8))
        ...     print(adapter.last["forwards"], adapter.last["backwards"])
        1 0
        3 1
    """

    name = "rotta"
    summary = "robust BatchNorm, balanced memory, mean teacher"
    facts = Facts(
        "CVPR 2023",
        "normalisation",
        "nothing",
        "1 forward; 2 forwards, 1 backward on 64 stored images for every 64 seen",
        "official code",
        distributed=True,
    )
    Config = RoTTAConfig
    datasets: ClassVar = {"cifar100": {}, "imagenet": {}, "digits": {"lr": 1e-2, "nu": 0.02, "flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher with robust BatchNorm; scale and shift of the student are trained."""
        make_robust(model, self.config.alpha)
        teacher = copy.deepcopy(model).requires_grad_(False)
        trained = train_only_normalisation(model, "RoTTA")
        self.networks = {"student": model, "teacher": teacher}
        if trained:
            self.make_optimizer(trained, "adam", self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with the teacher, remember what is worth it, and update whenever enough images have come."""
        with torch.no_grad():
            log_probs = self.logits(self.networks["teacher"], images, batch_statistics=False).log_softmax(-1)
        if self.optimizer is None:
            return log_probs
        seen = torch.stack([log_probs.argmax(-1), entropy(log_probs)], -1).tolist()
        if all(math.isfinite(uncertainty) for _, uncertainty in seen):
            self._remember(images, seen, classes=log_probs.shape[-1])
        else:
            self.note(skipped=True)
        return log_probs

    def _remember(self, images: Tensor, seen: list[list[float]], classes: int) -> None:
        """Offer the images to the memory one by one, and update where it is time."""
        stored = self.memory.get("images", images[:0])
        if stored.shape[1:] != images.shape[1:]:
            stored = images[:0]
        config, pool = self.config, torch.cat([stored, images])
        memory = Memory(config.capacity, classes, config.lambda_t, config.lambda_u)
        memory.restore(self.memory, len(stored))
        missed = []
        for place, (label, uncertainty) in enumerate(seen, start=len(stored)):
            memory.offer(place, int(label), uncertainty)
            if memory.seen % config.update_every == 0:
                missed.append(~self._update(self._take(pool, memory), memory.ages()))
        self.memory = {"images": self._take(pool, memory), **memory.tensors()}
        if missed:
            self.note(skipped=torch.stack(missed).any())

    def _take(self, pool: Tensor, memory: Memory) -> Tensor:
        """The stored images, of those stored before this batch and those in it."""
        places = torch.tensor([item.place for item in memory.items])
        return self.runtime.place_images(pool[places.to(pool.device, non_blocking=True)])

    def _update(self, images: Tensor, ages: list[int]) -> Tensor:
        """One step on the stored images, and whether it was taken, as a scalar on the device."""
        student, teacher = self.networks["student"], self.networks["teacher"]
        before = Snapshot(buffer for net in (student, teacher) for buffer in _running_statistics(net))
        with torch.no_grad():
            target = self.logits(teacher, images).log_softmax(-1)
        view = self.runtime.place_images(random_view(images, flip=self.config.flip))
        log_probs = self.logits(student, view).log_softmax(-1)
        weights = torch.sigmoid(-torch.tensor(ages, dtype=self.runtime.dtype) / self.config.capacity)
        weights = weights.to(images.device, non_blocking=True)
        done = self.minimise((weights * cross_entropy(target, log_probs)).mean())
        before.restore(unless=done)
        update_teacher(teacher, student, 1 - self.config.nu, done)
        return done


@dataclass(frozen=True)
class Item:
    """A stored image: where it lies, its predicted class and uncertainty, and how many had been seen before it."""

    place: int
    label: int
    uncertainty: float
    born: int


class Memory:
    r"""Category-balanced sampling with timeliness and uncertainty (CSTU): which images to keep, and nothing else.

    An image scores worse the older and the less certain it is, with an age of 0 for a new one:

    .. math:: s = \frac{\lambda_t}{1 + e^{-a / N}} + \lambda_u \frac{H}{\log C}

    While its class holds less than N / C images and the memory less than N, a new image is stored. If the memory is
    full, it may take the place of the worst image of the largest classes; if its class is full, of its own class: only
    if that one scores worse. Every image offered makes all stored ones older by 1. Plain numbers on the host, as each
    decision depends on the one before.

    Attributes:
        items: What is stored, in the order in which it came.
        seen: Images offered so far.

    Example:
        >>> memory = Memory(capacity=2, classes=2)
        >>> for place, (label, uncertainty) in enumerate([(0, 0.5), (0, 0.6), (1, 0.1), (0, 0.2)]):
        ...     memory.offer(place, label, uncertainty)
        >>> [item.place for item in memory.items], memory.ages()
        ([2, 3], [2, 1])
    """

    def __init__(self, capacity: int, classes: int, lambda_t: float = 1.0, lambda_u: float = 1.0) -> None:
        self.capacity, self.quota = capacity, capacity / classes
        self.lambda_t, self.lambda_u = lambda_t, lambda_u / math.log(max(classes, 2))
        self.items: list[Item] = []
        self.seen = 0

    def offer(self, place: int, label: int, uncertainty: float) -> None:
        """Store an image or not, and let time pass."""
        new = Item(place, label, uncertainty, self.seen)
        counts = Counter(item.label for item in self.items)
        if counts[label] < self.quota and len(self.items) < self.capacity:
            self.items.append(new)
        else:
            crowded = {label}
            if counts[label] < self.quota:
                crowded = {other for other, count in counts.items() if count == max(counts.values())}
            worst = max((item for item in reversed(self.items) if item.label in crowded), key=self._score)
            if self._score(worst) > self._score(new):
                self.items.remove(worst)
                self.items.append(new)
        self.seen += 1

    def ages(self) -> list[int]:
        """How many images have been offered since each stored one came, itself among them."""
        return [self.seen - item.born for item in self.items]

    def _score(self, item: Item) -> float:
        age = self.seen - item.born
        return self.lambda_t / (1 + math.exp(-age / self.capacity)) + self.lambda_u * item.uncertainty

    def tensors(self) -> dict[str, Tensor]:
        """All but the places as tensors, for the adapter's state."""
        return {
            "labels": torch.tensor([item.label for item in self.items]),
            "uncertainties": torch.tensor([item.uncertainty for item in self.items], dtype=torch.float64),
            "born": torch.tensor([item.born for item in self.items]),
            "seen": torch.tensor(self.seen),
        }

    def restore(self, tensors: dict[str, Tensor], count: int) -> None:
        """Go on from `tensors`, if there are any, with the first ``count`` of the stored images, at places 0, 1, ..."""
        if "seen" in tensors:
            self.seen = int(tensors["seen"])
            columns = (tensors[name].tolist()[:count] for name in ("labels", "uncertainties", "born"))
            self.items = [Item(place, *values) for place, values in enumerate(zip(*columns, strict=True))]


class RobustBatchNorm(_BatchNorm):
    r"""BatchNorm that normalises by its running statistics, after moving them towards the batch's when training.

    .. math:: \mu \leftarrow (1 - \alpha) \mu + \alpha \mu_B, \qquad v \leftarrow (1 - \alpha) v + \alpha v_B

    with the biased variance of the batch. The gradient flows through the batch's part of them. With alpha = 1 it is
    ordinary BatchNorm in training mode.
    """

    alpha: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch, (batch, channels, ...)."""
        if not self.training:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        dims = [dim for dim in range(x.ndim) if dim != 1]
        precise = x.to(self.running_mean.dtype)
        variance, mean = var_mean(precise, dims, correction=0)
        mean = torch.lerp(self.running_mean, mean, self.alpha)
        variance = torch.lerp(self.running_var, variance, self.alpha)
        self.running_mean.copy_(mean.detach())
        self.running_var.copy_(variance.detach())
        scale = torch.rsqrt(variance + self.eps)
        offset = -mean * scale
        if self.affine:
            scale, offset = scale * self.weight, offset * self.weight + self.bias
        shape = (1, -1, *[1] * (x.ndim - 2))
        return (precise * scale.view(shape) + offset.view(shape)).to(x.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        """Take whatever the layer it was made from takes."""


def make_robust(net: nn.Module, alpha: float) -> None:
    """Turn torch's BatchNorm layers that have running statistics into `RobustBatchNorm`; tensors stay where they are.

    Example:
        >>> net = nn.Sequential(nn.BatchNorm2d(2))
        >>> make_robust(net, alpha=0.05)
        >>> type(net[0]).__name__
        'RobustBatchNorm'
    """
    for norm in batch_norms(net):
        if type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and norm.running_mean is not None:
            norm.__class__ = RobustBatchNorm
            norm.alpha = alpha  # type: ignore[assignment]


def _running_statistics(net: nn.Module) -> list[Tensor]:
    """The buffers that an update moves."""
    robust = (norm for norm in net.modules() if isinstance(norm, RobustBatchNorm))
    return [buffer for norm in robust for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
