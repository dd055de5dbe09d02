"""Test protocols as data: which images arrive in which order, corrupted how.

A protocol is a few numbers. From the corruptions, their severities and the labels of the images it makes a plan, a
list of segments, which `vcotta.streams.ProtocolStream` cuts into batches. A run's score is the mean over its segments,
or over the domains of a segment that mixes several.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from vcotta._messages import unknown_name

__all__ = [
    "ORDERS",
    "PROTOCOLS",
    "Continual",
    "Correlated",
    "Domain",
    "Gradual",
    "Loops",
    "MixedDomains",
    "Orders",
    "ResetEachShift",
    "Segment",
    "build_protocol",
]

ORDERS: Final = 10
"""How many random orders of the corruptions have a number, see `Orders`."""

_SLOTS: Final = 100  # most slots of a domain in `Correlated`, as in RoTTA's code

Domain = tuple[str, int]
"""A corruption and its severity."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A stretch of a stream; no batch reaches over its end.

    Attributes:
        domains: One domain, or those that are mixed in it.
        images: Places in the data (n,), in order of arrival.
        which: Of each image, its domain's place in ``domains`` (n,); None where there is only one.
        reset: Whether the adapter is to be reset before it.
    """

    domains: tuple[Domain, ...]
    images: NDArray[np.int64]
    which: NDArray[np.int64] | None = None
    reset: bool = False


@dataclass(frozen=True)
class Continual:
    """One corruption after another, each image once for each: the standard, from which the others say how they differ.

    Example:
        >>> print(Continual())
        One corruption after another, each image once for each.
        >>> [segment.domains for segment in Continual().plan(("fog", "snow"), (5,), np.zeros(3, np.int64), seed=0)]
        [(('fog', 5),), (('snow', 5),)]
    """

    name: ClassVar[str] = "continual"
    kind: ClassVar[str] = "Continual"
    draws_images: ClassVar[bool] = False

    def severities(self, severity: int | Sequence[int]) -> tuple[int, ...]:
        """Return the severities of each corruption for what the user gave."""
        return (severity,) if isinstance(severity, int) else tuple(severity)

    def path(self, severities: Sequence[int]) -> tuple[int, ...]:
        """Return the severities in the order in which each corruption visits them."""
        return tuple(severities)

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the corruptions in the order in which they come."""
        return tuple(corruptions)

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return the segments in order.

        Args:
            corruptions: Names, in the order in which the user gave them.
            severities: From `severities`.
            labels: Labels of the images, of which each domain has all.
            seed: Seed of the order of images, where that is random.
        """
        images = np.arange(len(labels))
        return [Segment((domain,), images) for domain in self._visits(corruptions, severities)]

    def _visits(self, corruptions: Sequence[str], severities: Sequence[int]) -> list[Domain]:
        return [(name, severity) for name in self.ordered(corruptions) for severity in self.path(severities)]

    def describe(self) -> dict[str, Any]:
        """Return the protocol's name and numbers, for the manifest of a run."""
        return {"protocol": self.name, **asdict(self)}

    def remark(self) -> str:
        """Return what a stream's sentence says of the protocol beside its kind, or the empty text."""
        return ""

    def __str__(self) -> str:
        return "One corruption after another, each image once for each."


@dataclass(frozen=True)
class Gradual(Continual):
    """Each corruption grows step by step and fades again: severities 1-2-3-4-5-4-3-2-1, all images at each step.

    Every step is a segment, so a score is the mean over 9 times 15 of them. A single severity is the peak, which is
    climbed from 1; several are climbed as given, and gone back.

    Example:
        >>> Gradual().path(Gradual().severities(5))
        (1, 2, 3, 4, 5, 4, 3, 2, 1)
    """

    name: ClassVar[str] = "gradual"
    kind: ClassVar[str] = "Gradual"

    def severities(self, severity: int | Sequence[int]) -> tuple[int, ...]:
        """Return the severities on the way up."""
        return tuple(range(1, severity + 1)) if isinstance(severity, int) else tuple(severity)

    def path(self, severities: Sequence[int]) -> tuple[int, ...]:
        """Return the severities up and down again."""
        return (*severities, *reversed(severities[:-1]))

    def __str__(self) -> str:
        return "One corruption after another, each growing step by step to its peak and fading again."


@dataclass(frozen=True)
class Orders(Continual):
    """As `Continual`, with the corruptions in one of ten random orders.

    The ten differ, and are the same whatever the stream's seed, so that a number stands for one order.

    Attributes:
        order: Its number, from 0.

    Example:
        >>> Orders(3).ordered(("fog", "snow", "frost"))
        ('fog', 'frost', 'snow')
    """

    name: ClassVar[str] = "orders"

    order: int = 0

    def __post_init__(self) -> None:
        if not _is_int(self.order) or not 0 <= self.order < ORDERS:
            raise ValueError(
                f"Expected `order` to be 0 to {ORDERS - 1}, the number of a random order, but got "
                f"{self.order!r}. Use the protocol `continual` for the order in which corruptions are given."
            )

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the corruptions in this order."""
        possible = math.factorial(len(corruptions))
        if self.order >= possible:
            raise ValueError(
                f"Expected `order` to be less than {possible}, as {len(corruptions)} corruption"
                f"{'s have' if len(corruptions) > 1 else ' has'} no more orders, but got {self.order}."
            )
        generator, found = _generator("orders", len(corruptions)), list[tuple[int, ...]]()
        while len(found) <= self.order:
            order = tuple(generator.permutation(len(corruptions)).tolist())
            if order not in found:
                found.append(order)
        return tuple(corruptions[place] for place in found[-1])

    def describe(self) -> dict[str, Any]:
        """Return the protocol's name and the number of the order."""
        return {"protocol": self.name, "order_number": self.order}

    def remark(self) -> str:
        """Return what a stream's sentence says of the order."""
        return f"in random order {self.order}"

    def __str__(self) -> str:
        return f"One corruption after another, in random order {self.order} of 0 to {ORDERS - 1}."


@dataclass(frozen=True)
class Loops(Continual):
    """As `Continual`, again and again: does a method hold out, or forget?

    Attributes:
        rounds: How many times all corruptions are gone through, always in the same order with the same pixels.

    Example:
        >>> print(Loops(rounds=3))
        All corruptions one after another, 3 rounds of them.
    """

    name: ClassVar[str] = "loops"

    rounds: int = 10

    def __post_init__(self) -> None:
        if not _is_int(self.rounds) or self.rounds < 1:
            raise ValueError(f"Expected `rounds` to be at least 1, but got {self.rounds!r}.")

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return the segments of all rounds."""
        return super().plan(corruptions, severities, labels, seed) * self.rounds

    def remark(self) -> str:
        """Return what a stream's sentence says of the rounds."""
        return f"in {_rounds(self.rounds)}"

    def __str__(self) -> str:
        return f"All corruptions one after another, {_rounds(self.rounds)} of them."


@dataclass(frozen=True)
class ResetEachShift(Continual):
    """As `Continual`, but the adapter is reset before each domain: someone tells it that the domain has changed.

    Example:
        >>> plan = ResetEachShift().plan(("fog", "snow", "frost"), (5,), np.zeros(3, np.int64), seed=0)
        >>> [segment.reset for segment in plan]
        [False, True, True]
    """

    name: ClassVar[str] = "reset_each_shift"

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return the segments, all but the first with a reset before it."""
        segments = super().plan(corruptions, severities, labels, seed)
        return [Segment(segment.domains, segment.images, reset=place > 0) for place, segment in enumerate(segments)]

    def remark(self) -> str:
        """Return what a stream's sentence says of the resets."""
        return "the adapter reset at each shift"

    def __str__(self) -> str:
        return "One corruption after another, the adapter reset before each new one."


@dataclass(frozen=True)
class MixedDomains(Continual):
    """All domains at once, each image once for each.

    Images are dealt in rounds, one of every domain in random order, and each domain has its own random order of
    images. So the domains of a batch are as even as they can be, where a plain shuffle is even only on average.

    Example:
        >>> (segment,) = MixedDomains().plan(("fog", "snow"), (5,), np.zeros(3, np.int64), seed=0)
        >>> segment.which.reshape(3, 2).sum(1)
        array([1, 1, 1])
    """

    name: ClassVar[str] = "mixed_domains"
    kind: ClassVar[str] = "Mixed"
    draws_images: ClassVar[bool] = True

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return a single segment of all domains."""
        domains = tuple(self._visits(corruptions, severities))
        images = np.stack([_generator(seed, self.name, *domain).permutation(len(labels)) for domain in domains], 1)
        which = _generator(seed, self.name).random(images.shape).argsort(1)
        return [Segment(domains, np.take_along_axis(images, which, 1).ravel(), which.ravel())]

    def remark(self) -> str:
        """Return what a stream's sentence says of the mixture."""
        return "domains mixed in every batch"

    def __str__(self) -> str:
        return "All corruptions at once, mixed in every batch, each image once for each."


@dataclass(frozen=True)
class Correlated(Continual):
    """As `Continual`, but labels of neighbouring images are correlated, as in a video.

    Time is cut into slots, as many as there are classes but at most 100. Each class draws its shares of the slots
    from a symmetric Dirichlet distribution of concentration ``delta``, and each of its images a slot from these
    shares. Within a slot the same is done again, until its images are of one class or all of different classes. A
    large ``delta`` tends to a random order, a small one to images sorted by class; the usual one is 0.1.

    The draw over slots is that of NOTE (Gong et al., 2022) and RoTTA (Yuan et al., 2023). It differs from their code
    within a slot, where they put the images of a class in one block whatever ``delta``: that keeps a large ``delta``
    from being a random order. So at the same ``delta`` ours is the weaker correlation: at 0.1, 64 neighbours of 10 000
    images in 10 classes are of 1.8 classes on average, against 1.4 there; of 50 000 in 1000 classes, 45 against 26.

    Attributes:
        delta: Concentration of the Dirichlet distribution.

    Example:
        >>> labels = np.arange(12) % 3
        >>> (segment,) = Correlated(delta=1e-9).plan(("fog",), (5,), labels, seed=0)
        >>> labels[segment.images]
        array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    """

    name: ClassVar[str] = "correlated"
    kind: ClassVar[str] = "Correlated"
    draws_images: ClassVar[bool] = True

    delta: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.delta, bool) or not isinstance(self.delta, int | float) or not 0 < self.delta < math.inf:
            raise ValueError(
                f"Expected `delta` to be a number above 0, but got {self.delta!r}. The usual one is 0.1; a smaller one "
                "sorts the images more by class."
            )

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return the segments, each with its own order of images."""
        return [
            Segment((domain,), self._arrange(labels, _generator(seed, self.name, *domain)))
            for domain in self._visits(corruptions, severities)
        ]

    def _arrange(self, labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
        arranged, waiting = [], [np.arange(len(labels))]
        while waiting:
            images = waiting.pop()
            classes, members = np.unique(labels[images], return_inverse=True)
            if len(classes) in (1, len(images)):
                arranged.append(generator.permutation(images))
                continue
            slots = min(len(classes), _SLOTS)
            shares = generator.dirichlet(np.full(slots, float(self.delta)), len(classes)).cumsum(1).clip(max=1)
            # An image's slot is where its draw falls among the shares of its class. Those of class c are moved to the
            # interval from c to c + 1, so that one search serves all classes.
            ends = (shares[:, :-1] + np.arange(len(classes))[:, None]).ravel()
            slot = np.searchsorted(ends, members + generator.random(len(images)), side="right")
            slot = (slot - members * (slots - 1)).clip(max=slots - 1)
            order = slot.argsort(kind="stable")
            parts = np.split(images[order], np.searchsorted(slot[order], np.arange(1, slots)))
            waiting.extend(part for part in reversed(parts) if len(part))
        return np.concatenate(arranged)

    def remark(self) -> str:
        """Return what a stream's sentence says of the labels."""
        return f"labels correlated by delta {self.delta:g}"

    def __str__(self) -> str:
        return f"One corruption after another, labels of neighbouring images correlated by delta {self.delta:g}."


PROTOCOLS: Final[dict[str, type[Continual]]] = {
    protocol.name: protocol
    for protocol in (Continual, Gradual, Orders, Loops, ResetEachShift, MixedDomains, Correlated)
}
"""The protocols by the names users know."""


def build_protocol(name: str, **options: Any) -> Continual:
    """Return a protocol by its name.

    Args:
        name: One of `PROTOCOLS`.
        options: Its numbers: ``order`` of ``orders``, ``rounds`` of ``loops``, ``delta`` of ``correlated``.

    Raises:
        ValueError: There is no such protocol or option, or a wrong number.

    Example:
        >>> build_protocol("loops", rounds=3)
        Loops(rounds=3)
        >>> build_protocol("mixed")
        Traceback (most recent call last):
        ValueError: Expected `protocol` to be one of continual, gradual, orders, loops, reset_each_shift, \
mixed_domains, correlated, but got 'mixed'. Did you mean 'mixed_domains'?
    """
    if not isinstance(name, str) or name not in PROTOCOLS:
        raise unknown_name("protocol", name, PROTOCOLS)
    known = [field.name for field in fields(PROTOCOLS[name])]
    for option in options:
        if option not in known:
            raise ValueError(
                f"Expected options of the protocol {name} to be {', '.join(known) or 'none'}, but got {option!r}."
            )
    return PROTOCOLS[name](**options)


def _generator(*words: object) -> np.random.Generator:
    """Return the random numbers that belong to these words."""
    text = "/".join(map(str, ("vcotta.protocols", *words)))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count > 1)}"


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
