"""What a table of methods says of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Facts"]


@dataclass(frozen=True)
class Facts:
    """A method in a few words.

    Attributes:
        venue: Where it was published.
        trains: What changes: ``nothing``, ``normalisation``, ``everything``, ...
        source: What it needs of the source data before testing, ``nothing`` or in words.
        passes: Forward and backward passes over a batch, N being the number of views.
        provenance: What it was written from.
        distributed: Whether several processes can share a batch and give the result of one, as the tests show.
    """

    venue: str
    trains: str
    source: str
    passes: str
    provenance: Literal["official code", "re-implementation", "paper text"]
    distributed: bool = False
