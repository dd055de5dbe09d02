"""RoTTA: robust BatchNorm, a balanced memory and a mean teacher (Yuan, Xie and Li, CVPR 2023)."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from vcotta._util.validation import Count, NonNegative, Settings, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.parts.layers import train_only_normalisation
from vcotta.methods.parts.losses import cross_entropy, entropy
from vcotta.methods.parts.mean_teacher import update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.batch_norm import SavedStatistics, make_robust
from vcotta.nn.views import random_view

__all__ = ["RoTTA", "RoTTAConfig"]


@dataclass(frozen=True)
class RoTTAConfig(Settings):
    """Settings of RoTTA, the same for all data sets in the official code, and for ImageNet-C in a re-implementation.

    Attributes:
        lr: Adam's step size (1e-3).
        capacity: N, the number of images in the memory (64).
        update_every: Images between two updates, counted across batches (64).
        nu: Share of the student in the teacher's average (0.001).
        alpha: Share of a batch of stored images in the running statistics of BatchNorm (0.05).
        lambda_t: Weight of an image's age in the memory's choice (1).
        lambda_u: Weight of its uncertainty (1).
        flip: Whether the student's view may mirror the images; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    capacity: Count = 64
    update_every: Count = 64
    nu: UnitInterval = 0.001
    alpha: UnitInterval = 0.05
    lambda_t: NonNegative = 1.0
    lambda_u: NonNegative = 1.0
    flip: bool = True


@register_method
class RoTTA(Adapter):
    r"""Learn from a small memory of recent, sure and balanced images, for streams in which classes come in runs.

    The teacher predicts with running statistics that move slowly (`RobustBatchNorm`). Its predicted classes and
    entropies decide which images are kept (`BalancedMemory`). After every ``update_every`` images the student, on a
    random view of the stored images, takes a step on scale and shift of its normalisation layers that minimises

    .. math:: \frac1n \sum_j w_j\,\mathrm{CE}(\bar p_j \to p_j), \qquad w_j = \frac{e^{-a_j / N}}{1 + e^{-a_j / N}}

    with :math:`\bar p_j` the teacher's prediction of a stored image and :math:`a_j` its age; then the teacher's
    parameters follow the student's. The statistics of both move during an update and are not averaged. The prediction
    is the teacher's from before any update of the batch.

    Differs from the official code: uncertainty is the entropy itself, not that of p + 1e-6; LayerNorm and GroupNorm are
    trained too; BatchNorm layers of other classes than torch's, or without running statistics, are not made robust; a
    loss or prediction that is not finite changes nothing; images of another size than the stored ones start the memory
    anew; a single stored image is learned from under the running statistics, which stay.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> RoTTA(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "rotta"
    summary = "robust BatchNorm, balanced memory, mean teacher"
    card = Card(
        "CVPR 2023",
        "normalisation",
        "nothing",
        "1 forward; 2 forwards, 1 backward on 64 stored images for every 64 seen",
        "official code",
        distributed=True,
        without_batch_norm="has no running statistics to move there; its memory and teacher train scale and shift of "
        "the other normalisation layers alone. To train all layers, choose cotta or vcotta.",
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
        """Predict with the teacher, store images, and update after every ``update_every`` of them."""
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
        """Offer the images to the memory one by one, and update where it is due."""
        stored = self.memory.get("images", images[:0])
        if stored.shape[1:] != images.shape[1:]:
            stored = images[:0]
        config, pool = self.config, torch.cat([stored, images])
        memory = BalancedMemory(config.capacity, classes, config.lambda_t, config.lambda_u)
        memory.restore(self.memory, len(stored))
        missed = []
        for place, (label, uncertainty) in enumerate(seen, start=len(stored)):
            memory.offer(place, int(label), uncertainty)
            if memory.seen % config.update_every == 0:
                missed.append(~self._update(self._take(pool, memory), memory.ages()))
        self.memory = {"images": self._take(pool, memory), **memory.tensors()}
        if missed:
            self.note(skipped=torch.stack(missed).any())

    def _take(self, pool: Tensor, memory: BalancedMemory) -> Tensor:
        """The stored images, taken from those stored before and this batch."""
        places = torch.tensor([item.place for item in memory.items])
        return self.runtime.place_images(pool[places.to(pool.device, non_blocking=True)])

    def _update(self, images: Tensor, ages: list[int]) -> Tensor:
        """One step on the stored images; returns whether it was taken, as a scalar on the device."""
        student, teacher = self.networks["student"], self.networks["teacher"]
        before = SavedStatistics(student, teacher)
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
    """A stored image: its place, predicted class, uncertainty, and the number of images seen before it."""

    place: int
    label: int
    uncertainty: float
    born: int


class BalancedMemory:
    r"""Category-balanced sampling with timeliness and uncertainty (CSTU): decides which images to keep.

    An older or less certain image scores worse; a new one has age 0:

    .. math:: s = \frac{\lambda_t}{1 + e^{-a / N}} + \lambda_u \frac{H}{\log C}

    A new image is stored while its class holds fewer than N / C images and the memory fewer than N. If its class is
    full, it may replace the worst image of its class; if only the memory is full, the worst image of the largest
    classes: in both cases only one that scores worse. Every image offered makes all stored ones older by 1.

    Attributes:
        items: The stored images, oldest first.
        seen: Number of images offered so far.
    """

    def __init__(self, capacity: int, classes: int, lambda_t: float = 1.0, lambda_u: float = 1.0) -> None:
        self.capacity, self.quota = capacity, capacity / classes
        self.lambda_t, self.lambda_u = lambda_t, lambda_u / math.log(max(classes, 2))
        self.items: list[Item] = []
        self.seen = 0

    def offer(self, place: int, label: int, uncertainty: float) -> None:
        """Store an image or not, and make all images older by 1."""
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
        """Number of images offered since each stored one, itself included."""
        return [self.seen - item.born for item in self.items]

    def _score(self, item: Item) -> float:
        age = self.seen - item.born
        return self.lambda_t / (1 + math.exp(-age / self.capacity)) + self.lambda_u * item.uncertainty

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the places as tensors, for the adapter's state."""
        return {
            "labels": torch.tensor([item.label for item in self.items]),
            "uncertainties": torch.tensor([item.uncertainty for item in self.items], dtype=torch.float64),
            "born": torch.tensor([item.born for item in self.items]),
            "seen": torch.tensor(self.seen),
        }

    def restore(self, tensors: dict[str, Tensor], count: int) -> None:
        """Restore `tensors`, if there are any: the first ``count`` stored images, at places 0, 1, ..."""
        if "seen" in tensors:
            self.seen = int(tensors["seen"])
            columns = (tensors[name].tolist()[:count] for name in ("labels", "uncertainties", "born"))
            self.items = [Item(place, *values) for place, values in enumerate(zip(*columns, strict=True))]
