"""Images of several domains that differ by nature, such as photographs and sketches, or the cameras of two places."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from vcotta.data.types import ImageSource

__all__ = ["DomainData"]

_RESERVED = ("mixed", "blank", "noise", "stuck")  # names of batches that are of no single domain


@dataclass(frozen=True, eq=False)
class DomainData:
    """Labelled images of several domains with the same classes, for a stream that visits one after another.

    Attributes:
        parts: The images of each domain by its name, in order of appearance; their numbers may differ.
        name: Name for manifests.

    Example:
        >>> from vcotta.data import load_digits
        >>> train, test = load_digits()
        >>> len(DomainData({"school": train, "office": test}, "digits of two places"))
        1797
    """

    parts: Mapping[str, ImageSource] = field(repr=False)
    name: str

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("Expected at least one domain, but got none.")
        for domain in self.parts:
            if domain in _RESERVED:
                raise ValueError(
                    f"Expected a domain to have another name than {domain!r}, which streams use. Rename it."
                )
        for (one, first), (other, second) in pairwise(self.parts.items()):
            for odd in sorted(set(first.class_names) ^ set(second.class_names)):
                here, there = (one, other) if odd in first.class_names else (other, one)
                raise ValueError(
                    f"Expected the domains of {self.name} to have the same classes, but {here} has {odd!r} and {there} "
                    "has not. Rename the class, or move it away."
                )
            if first.class_names != second.class_names:
                raise ValueError(f"Expected the classes of {one} and {other} in the same order.")

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class, the same in all domains."""
        return next(iter(self.parts.values())).class_names

    @property
    def smallest(self) -> int:
        """Number of images of the smallest domain."""
        return min(map(len, self.parts.values()))

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def sha256(self) -> str:
        """Return a hash that identifies the images of all domains, and their order."""
        digest = hashlib.sha256()
        for domain, part in self.parts.items():
            digest.update(f"{domain}\t{part.sha256()}\n".encode())
        return digest.hexdigest()
