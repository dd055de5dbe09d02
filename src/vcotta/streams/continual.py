"""`Continual`, the protocol that all others are derived from, and `Segment`, what a protocol plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vcotta._util.errors import counted
from vcotta._util.validation import Settings
from vcotta.streams.frames import Useless

__all__ = ["Continual", "Domain", "Labels", "Segment", "generator", "labels_of"]

Domain = tuple[str, int]
"""A corruption and its severity, or a domain of other images and 0."""

Labels = NDArray[np.int64] | Mapping[str, NDArray[np.int64]]
"""Labels of a domain's images: the same for all domains, or by the domain's name."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A part of a stream; each batch lies within one segment.

    Attributes:
        domains: One domain, or those that are mixed in it.
        images: Indices of the images in the data or, of mixed or other images, in their domain (n,), in order of
            arrival.
        which: For each image the index of its domain in ``domains`` (n,); None if there is only one.
        reset: Whether the adapter is reset before it.
        useless: Kind of frames that are shown in place of the images, and not scored; None for the images.
    """

    domains: tuple[Domain, ...]
    images: NDArray[np.int64]
    which: NDArray[np.int64] | None = None
    reset: bool = False
    useless: Useless | None = None


@dataclass(frozen=True)
class Continual(Settings):
    """The standard protocol: one corruption after another, each image once for each. The others are derived from it.

    Example:
        >>> [segment.domains for segment in Continual().plan(("fog", "snow"), (5,), np.zeros(3, np.int64), seed=0)]
        [(('fog', 5),), (('snow', 5),)]
    """

    name: ClassVar[str] = "continual"
    kind: ClassVar[str] = "Continual"
    corrupts: ClassVar[bool] = True
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

    def domains(self, corruptions: Sequence[str], severities: Sequence[int]) -> tuple[Domain, ...]:
        """Return the domains, each once, in the order of ``corruptions``."""
        return tuple((name, severity) for name in corruptions for severity in severities)

    def plan(self, corruptions: Sequence[str], severities: Sequence[int], labels: Labels, seed: int) -> list[Segment]:
        """Return the segments in order, for `severities` and the labels of a domain's images."""
        return [
            Segment((domain,), self._images(labels_of(labels, domain), seed, domain), reset=self.resets and index > 0)
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

    def contents(self, corruptions: Sequence[str]) -> str:
        """Return what the text of a stream says about its domains."""
        return counted(len(corruptions), "corruption")

    def remark(self) -> str:
        """Return what the text of a stream says about the protocol in addition to its kind."""
        return ""


def labels_of(labels: Labels, domain: Domain) -> NDArray[np.int64]:
    """Return the labels of a domain's images.

    Example:
        >>> labels_of({"photo": np.zeros(2, np.int64), "art": np.ones(1, np.int64)}, ("art", 0))
        array([1])
    """
    return labels[domain[0]] if isinstance(labels, Mapping) else labels


def generator(*words: object) -> np.random.Generator:
    """Return a random generator seeded by these words."""
    text = "/".join(map(str, ("vcotta.protocols", *words)))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))
