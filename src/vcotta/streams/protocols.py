"""Test protocols: which images arrive in which order, and how they are corrupted.

A protocol has a few numbers. From the corruptions, their severities and the labels of the images it makes a plan, a
list of segments, which `ProtocolStream` cuts into batches. The score of a run is the mean over its segments, or over
the domains of a segment that mixes several.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from vcotta._util.errors import counted, unknown_name
from vcotta._util.validation import Count, Positive, Settings, between

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
"""Number of random orders of the corruptions, see `Orders`."""

_SLOTS: Final = 100  # most slots of a domain in `Correlated`, as in RoTTA's code

Domain = tuple[str, int]
"""A corruption and its severity."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a stream; each batch lies within one segment.

    Attributes:
        domains: One domain, or those that are mixed in it.
        images: Indices of the images in the data (n,), in order of arrival.
        which: For each image the index of its domain in ``domains`` (n,); None if there is only one.
        reset: Whether the adapter is reset before it.
    """

    domains: tuple[Domain, ...]
    images: NDArray[np.int64]
    which: NDArray[np.int64] | None = None
    reset: bool = False


@dataclass(frozen=True)
class Continual(Settings):
    """The standard protocol: one corruption after another, each image once for each. The others are derived from it.

    Example:
        >>> [segment.domains for segment in Continual().plan(("fog", "snow"), (5,), np.zeros(3, np.int64), seed=0)]
        [(('fog', 5),), (('snow', 5),)]
    """

    name: ClassVar[str] = "continual"
    kind: ClassVar[str] = "Continual"
    draws_images: ClassVar[bool] = False
    resets: ClassVar[bool] = False

    def severities(self, severity: int | Sequence[int]) -> tuple[int, ...]:
        """Return the severities of each corruption for those that the user gave."""
        return (severity,) if isinstance(severity, int) else tuple(severity)

    def path(self, severities: Sequence[int]) -> tuple[int, ...]:
        """Return the severities in the order in which each corruption has them."""
        return tuple(severities)

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the corruptions in order of appearance."""
        return tuple(corruptions)

    def plan(
        self, corruptions: Sequence[str], severities: Sequence[int], labels: NDArray[np.int64], seed: int
    ) -> list[Segment]:
        """Return the segments in order, for `severities` and the labels of a domain's images."""
        return [
            Segment((domain,), self._images(labels, seed, domain), reset=self.resets and index > 0)
            for index, domain in enumerate(self._visits(corruptions, severities))
        ]

    def _visits(self, corruptions: Sequence[str], severities: Sequence[int]) -> list[Domain]:
        return [(name, severity) for name in self.ordered(corruptions) for severity in self.path(severities)]

    def _images(self, labels: NDArray[np.int64], seed: int, domain: Domain) -> NDArray[np.int64]:
        """The images of a domain in order of arrival."""
        return np.arange(len(labels))

    def describe(self) -> dict[str, Any]:
        """Return the protocol's name and numbers, for the manifest of a run."""
        return {"protocol": self.name, **asdict(self)}

    def remark(self) -> str:
        """Return what the text of a stream says about the protocol in addition to its kind."""
        return ""


@dataclass(frozen=True)
class Gradual(Continual):
    """Each corruption grows step by step and fades again: severities 1-2-3-4-5-4-3-2-1, all images at each step.

    Every step is a segment, so a score is the mean over 9 times 15 of them. A single severity is the peak, and the way
    up starts at 1; several severities are the way up.

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


@dataclass(frozen=True)
class Orders(Continual):
    """`Continual` with the corruptions in one of ten different random orders, the same for every seed of the stream.

    Attributes:
        order: Number of the order, from 0.

    Example:
        >>> Orders(3).ordered(("fog", "snow", "frost"))
        ('fog', 'frost', 'snow')
    """

    name: ClassVar[str] = "orders"

    order: Annotated[int, between(0, ORDERS - 1)] = 0

    def ordered(self, corruptions: Sequence[str]) -> tuple[str, ...]:
        """Return the corruptions in this order."""
        count = len(corruptions)
        if self.order >= math.factorial(count):
            raise ValueError(
                f"Expected `order` to be less than {math.factorial(count)}, the number of orders of "
                f"{counted(count, 'corruption')}, but got {self.order}."
            )
        generator, found = _generator("orders", count), list[tuple[int, ...]]()
        while len(found) <= self.order:
            order = tuple(generator.permutation(count).tolist())
            if order not in found:
                found.append(order)
        return tuple(corruptions[index] for index in found[-1])

    def describe(self) -> dict[str, Any]:
        """Return the protocol's name and the number of the order; ``order`` itself names the corruptions."""
        return {"protocol": self.name, "order_number": self.order}

    def remark(self) -> str:
        """Return the number of the order."""
        return f"in random order {self.order}"


@dataclass(frozen=True)
class Loops(Continual):
    """`Continual` several times in a row, with the same order and pixels: does a method hold out, or forget?

    Attributes:
        rounds: Number of times.

    Example:
        >>> len(Loops(rounds=3).plan(("fog", "snow"), (5,), np.zeros(3, np.int64), seed=0))
        6
    """

    name: ClassVar[str] = "loops"

    rounds: Count = 10

    def _visits(self, corruptions: Sequence[str], severities: Sequence[int]) -> list[Domain]:
        return super()._visits(corruptions, severities) * self.rounds

    def remark(self) -> str:
        """Return the number of rounds."""
        return f"in {counted(self.rounds, 'round')}"


@dataclass(frozen=True)
class ResetEachShift(Continual):
    """`Continual` with the adapter reset before each domain but the first: the change of domain is made known to it.

    Example:
        >>> plan = ResetEachShift().plan(("fog", "snow", "frost"), (5,), np.zeros(3, np.int64), seed=0)
        >>> [segment.reset for segment in plan]
        [False, True, True]
    """

    name: ClassVar[str] = "reset_each_shift"
    resets: ClassVar[bool] = True

    def remark(self) -> str:
        """Return that the adapter is reset."""
        return "the adapter reset at each shift"


@dataclass(frozen=True)
class MixedDomains(Continual):
    """All domains at once, each image once for each.

    Images come in rounds, one of every domain in random order, and each domain has its own random order of images. So
    the domains of a batch are as even as possible; a plain shuffle would be even only on average.

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
        """Return that domains are mixed."""
        return "domains mixed in every batch"


@dataclass(frozen=True)
class Correlated(Continual):
    """`Continual` with correlated labels of neighbouring images, as in a video.

    Time is cut into slots, as many as there are classes but at most 100. Each class draws its shares of the slots from
    a symmetric Dirichlet distribution of concentration ``delta``, and each of its images a slot from these shares.
    Within a slot the same is done again, until its images are of one class or all of different classes. A large
    ``delta`` tends to a random order, a small one to images sorted by class; the usual value is 0.1.

    The draw over slots is that of NOTE (Gong et al., 2022) and RoTTA (Yuan et al., 2023). Differs from their code
    within a slot: they put the images of a class in one block whatever ``delta``, so that even a large ``delta`` is not
    a random order. At the same ``delta`` ours is the weaker correlation: at 0.1, 64 neighbours of 10 000 images in 10
    classes are of 1.8 classes on average, against 1.4 there; of 50 000 in 1000 classes, 45 against 26.

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

    delta: Positive = 0.1

    def _images(self, labels: NDArray[np.int64], seed: int, domain: Domain) -> NDArray[np.int64]:
        generator = _generator(seed, self.name, *domain)
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
        """Return the strength of the correlation."""
        return f"labels correlated by delta {self.delta:g}"


PROTOCOLS: Final[dict[str, type[Continual]]] = {
    protocol.name: protocol
    for protocol in (Continual, Gradual, Orders, Loops, ResetEachShift, MixedDomains, Correlated)
}
"""The protocols by name."""


def build_protocol(name: str, **options: Any) -> Continual:
    """Return one of `PROTOCOLS` by its name.

    Its options are ``order`` of ``orders``, ``rounds`` of ``loops`` and ``delta`` of ``correlated``.

    Example:
        >>> build_protocol("loops", rounds=3)
        Loops(rounds=3)
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
    """Return a generator seeded by these words."""
    text = "/".join(map(str, ("vcotta.protocols", *words)))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))
