"""Test protocols: which images arrive in which order, and how they are corrupted.

A protocol has a few numbers. From the corruptions, their severities and the labels of the images it makes a plan, a
list of segments, which `ProtocolStream` cuts into batches. The score of a run is the mean over its segments, or over
the domains of a segment that mixes several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from vcotta._util.errors import counted, unknown_name
from vcotta._util.validation import Count, between
from vcotta.streams.camera import Bursts, DayNight
from vcotta.streams.continual import Continual, Domain, Labels, Segment, generator, labels_of
from vcotta.streams.correlated import Correlated, Practical, Recurring

__all__ = [
    "ORDERS",
    "PROTOCOLS",
    "Bursts",
    "Continual",
    "Correlated",
    "DayNight",
    "Domain",
    "Gradual",
    "Loops",
    "MixedDomains",
    "Orders",
    "Practical",
    "Recurring",
    "ResetEachShift",
    "Segment",
    "build_protocol",
]

ORDERS: Final = 10
"""Number of random orders of the corruptions, see `Orders`."""


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
        rng, found = generator("orders", count), list[tuple[int, ...]]()
        while len(found) <= self.order:
            order = tuple(rng.permutation(count).tolist())
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

    def plan(self, corruptions: Sequence[str], severities: Sequence[int], labels: Labels, seed: int) -> list[Segment]:
        """Return a single segment of all domains."""
        domains = tuple(self._visits(corruptions, severities))
        sizes = [len(labels_of(labels, domain)) for domain in domains]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"Expected domains of equally many images for the protocol {self.name}, but got {sizes}. Use a `limit` "
                f"of at most {min(sizes)}."
            )
        images = np.stack([generator(seed, self.name, *domain).permutation(sizes[0]) for domain in domains], 1)
        which = generator(seed, self.name).random(images.shape).argsort(1)
        return [Segment(domains, np.take_along_axis(images, which, 1).ravel(), which.ravel())]

    def remark(self) -> str:
        """Return that domains are mixed."""
        return "domains mixed in every batch"


PROTOCOLS: Final[dict[str, type[Continual]]] = {
    protocol.name: protocol
    for protocol in (
        Continual,
        Gradual,
        Orders,
        Loops,
        ResetEachShift,
        MixedDomains,
        Correlated,
        Practical,
        Recurring,
        Bursts,
        DayNight,
    )
}
"""The protocols by name."""


def build_protocol(name: str, **options: Any) -> Continual:
    """Return one of `PROTOCOLS` by its name.

    Its options are ``order`` of ``orders``, ``rounds`` of ``loops``, ``delta`` of ``correlated``, ``practical`` and
    ``recurring``, ``visits`` of ``recurring``, ``frames`` of ``bursts`` and ``turns`` of ``day_night``.

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
