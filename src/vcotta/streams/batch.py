"""What a stream yields, and what a run needs of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Batch", "Stream"]


@dataclass(frozen=True, eq=False)
class Batch:
    """One step of a stream.

    Attributes:
        index: Index in the stream, from 0.
        domain: Name of the corruption or domain, or ``clean``, or ``mixed`` if there are several; or the kind of
            useless frames.
        severity: Its severity, 1 to 5, or 0 if there is no corruption or severities differ.
        images: Floats (n, channels, height, width) in [0, 1].
        labels: Integers (n,), for scoring only; no adapter sees them.
        reset: Whether the adapter is reset before this batch.
        domains: Of a ``mixed`` batch, the name of each image's corruption, for scoring only; else None.
        severities: Of a ``mixed`` batch, the severity of each image, for scoring only; else None.
    """

    index: int
    domain: str
    severity: int
    images: Tensor
    labels: Tensor
    reset: bool = False
    domains: tuple[str, ...] | None = None
    severities: tuple[int, ...] | None = None


class Stream(Protocol):
    """What `run_stream` needs of a stream."""

    def __len__(self) -> int:
        """Return the number of batches."""

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from index ``start`` on."""

    def describe(self) -> dict[str, Any]:
        """Return all that determines the stream, as JSON can hold it."""
