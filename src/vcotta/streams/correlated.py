"""Protocols in which neighbouring images tend to be of one class, as in a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from vcotta._util.errors import counted
from vcotta._util.validation import Count, NonNegative
from vcotta.corruptions import STANDARD
from vcotta.streams.continual import Continual, Domain, Labels, Segment, generator, labels_of

__all__ = ["PRACTICAL_ORDER", "Correlated", "Practical", "Recurring"]

PRACTICAL_ORDER: Final = (
    "motion_blur",
    "snow",
    "fog",
    "shot_noise",
    "defocus_blur",
    "contrast",
    "zoom_blur",
    "brightness",
    "frost",
    "elastic_transform",
    "glass_blur",
    "gaussian_noise",
    "pixelate",
    "jpeg_compression",
    "impulse_noise",
)
"""The fifteen standard corruptions in the order of RoTTA's settings for CIFAR-10-C and CIFAR-100-C."""

_SLOTS: Final = 100  # most slots of a domain, as in RoTTA's code


@dataclass(frozen=True)
class Correlated(Continual):
    """`Continual` with correlated labels of neighbouring images, as in a video.

    Time is cut into slots, as many as there are classes but at most 100. Each class draws its shares of the slots from
    a symmetric Dirichlet distribution of concentration ``delta``, and each of its images a slot from these shares.
    Within a slot the same is done again, until its images are of one class or all of different classes. A large
    ``delta`` tends to a random order, a small one to images sorted by class, and 0 is sorted: class after class, both
    the classes and the images of each in random order. The usual value is 0.1.

    The draw over slots is that of NOTE (Gong et al., 2022) and RoTTA (Yuan et al., 2023). Differs from their code
    within a slot: they put the images of a class in one block whatever ``delta``, so that even a large ``delta`` is not
    a random order; that is `Practical`. At the same ``delta`` ours is the weaker correlation: at 0.1, 64 neighbours of
    10 000 images in 10 classes are of 1.8 classes on average, against 1.4 there; of 50 000 in 1000 classes, 45 against
    26.

    Attributes:
        delta: Concentration of the Dirichlet distribution; 0 for images sorted by class.

    Example:
        >>> labels = np.arange(12) % 3
        >>> (segment,) = Correlated(delta=0).plan(("fog",), (5,), labels, seed=1)
        >>> labels[segment.images]
        array([1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0])
    """

    name: ClassVar[str] = "correlated"
    kind: ClassVar[str] = "Correlated"
    draws_images: ClassVar[bool] = True

    delta: NonNegative = 0.1

    def _images(self, labels: NDArray[np.int64], seed: int, domain: Domain) -> NDArray[np.int64]:
        return self._order(labels, generator(seed, self.name, *domain))

    def _order(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        if self.delta:
            return self._drawn(labels, rng)
        return np.concatenate(
            [rng.permutation(np.flatnonzero(labels == one)) for one in rng.permutation(np.unique(labels))]
        )

    def _drawn(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        arranged, waiting = [], [np.arange(len(labels))]
        while waiting:
            images = waiting.pop()
            classes, members = np.unique(labels[images], return_inverse=True)
            if len(classes) in (1, len(images)):
                arranged.append(rng.permutation(images))
                continue
            slots = min(len(classes), _SLOTS)
            shares = rng.dirichlet(np.full(slots, float(self.delta)), len(classes)).cumsum(1).clip(max=1)
            # An image's slot is where its draw falls among the shares of its class. Those of class c are moved to the
            # interval from c to c + 1, so that one search serves all classes.
            ends = (shares[:, :-1] + np.arange(len(classes))[:, None]).ravel()
            slot = np.searchsorted(ends, members + rng.random(len(images)), side="right")
            slot = (slot - members * (slots - 1)).clip(max=slots - 1)
            order = slot.argsort(kind="stable")
            parts = np.split(images[order], np.searchsorted(slot[order], np.arange(1, slots)))
            waiting.extend(part for part in reversed(parts) if len(part))
        return np.concatenate(arranged)

    def remark(self) -> str:
        """Return the strength of the correlation."""
        return f"labels correlated by delta {self.delta:g}" if self.delta else "images sorted by class"


@dataclass(frozen=True)
class Practical(Correlated):
    """The practical protocol of RoTTA (Yuan, Xie and Li, CVPR 2023): correlated labels and changing domains.

    As in its published code, each class of a domain draws its shares of the slots, as in `Correlated`, and is cut into
    consecutive parts accordingly; a slot has one part of each class, as a block, in random order. The standard fifteen
    corruptions come in the order of RoTTA's settings (`PRACTICAL_ORDER`), any other choice as it is given. The paper
    uses batches of 64; here the batch size is an option of the stream. Differs from the code in that a batch ends with
    its domain, where theirs may hold images of two.

    Attributes:
        delta: Concentration of the Dirichlet distribution, the paper's gamma; 0 for images sorted by class.

    Example:
        >>> labels = np.arange(12) % 3
        >>> (segment,) = Practical(delta=1).plan(("fog",), (5,), labels, seed=0)
        >>> labels[segment.images]
        array([2, 0, 0, 0, 1, 1, 1, 1, 0, 2, 2, 2])
    """

    name: ClassVar[str] = "practical"
    kind: ClassVar[str] = "Practical"

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the standard fifteen in RoTTA's order, any other corruptions as they are."""
        return PRACTICAL_ORDER if tuple(corruptions) == STANDARD else tuple(corruptions)

    def _drawn(self, labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        slots = min(len(classes), _SLOTS)
        shares = rng.dirichlet(np.full(slots, float(self.delta)), len(classes)).cumsum(1)
        parts = [
            np.split(images, (ends[:-1] * len(images)).astype(int))
            for images, ends in zip(classes, shares, strict=True)
        ]
        return np.concatenate([parts[place][slot] for slot in range(slots) for place in rng.permutation(len(classes))])


@dataclass(frozen=True)
class Recurring(Practical):
    """`Practical` again and again: recurring test-time adaptation (Hoang, Vo and Do, NeurIPS 2024, "PeTTA").

    Every visit has all images of every domain, with the same pixels, in an order of its own. The paper uses 20 visits,
    batches of 64, and ``delta`` 0.1, or 0.01 on CIFAR-100-C. `Loops` repeats a stream with labels in random order.

    Attributes:
        visits: Number of times that every domain comes.

    Example:
        >>> plan = Recurring(visits=3).plan(("fog", "snow"), (5,), np.zeros(4, np.int64), seed=0)
        >>> [segment.domains[0][0] for segment in plan]
        ['fog', 'snow', 'fog', 'snow', 'fog', 'snow']
    """

    name: ClassVar[str] = "recurring"
    kind: ClassVar[str] = "Recurring"

    visits: Count = 20

    def plan(self, corruptions: Sequence[str], severities: Sequence[int], labels: Labels, seed: int) -> list[Segment]:
        """Return the segments of all visits."""
        return [
            Segment((domain,), self._order(labels_of(labels, domain), generator(seed, self.name, visit, *domain)))
            for visit in range(self.visits)
            for domain in self._visits(corruptions, severities)
        ]

    def remark(self) -> str:
        """Return the number of visits and the strength of the correlation."""
        return f"{counted(self.visits, 'visit')} of each domain, {super().remark()}"
