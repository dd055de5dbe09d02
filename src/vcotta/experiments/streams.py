"""The streams on which `vcotta reproduce streams` and the study of streams compare methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vcotta.experiments.benchmarks import find_benchmark
from vcotta.streams.protocols import build_protocol

__all__ = ["METHODS", "StreamSetting", "stream_name", "stream_settings"]

METHODS = ("source", "bn", "tent", "cotta", "rotta", "roid", "tca", "vcotta")
"""The methods that are compared unless others are chosen."""

QUICK_VISITS = 3
"""Visits of each domain in a quick ``recurring`` stream; the protocol's own number is 20."""


@dataclass(frozen=True)
class StreamSetting:
    """One stream.

    Attributes:
        protocol: Name of the protocol, one of `vcotta.streams.PROTOCOLS`.
        batch_size: Images in a batch.
        options: The protocol's numbers.
    """

    protocol: str
    batch_size: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def delta(self) -> float | None:
        """Concentration of the labels' Dirichlet distribution; None where labels are in random order."""
        found: float | None = getattr(build_protocol(self.protocol, **self.options), "delta", None)
        return None if found is None else float(found)

    @property
    def name(self) -> str:
        """Its name, see `stream_name`."""
        return stream_name(self.protocol, self.delta, self.batch_size)


def stream_name(protocol: str, delta: float | None, batch_size: int) -> str:
    """Return the name of a stream: protocol, ``delta`` where the streams differ in it, and batch size.

    Example:
        >>> stream_name("correlated", 0.1, 16), stream_name("correlated", 0, 16), stream_name("practical", 0.1, 64)
        ('correlated-0.1-16', 'sorted-16', 'practical-64')
    """
    if protocol != "correlated":
        return f"{protocol}-{batch_size}"
    return f"correlated-{delta:g}-{batch_size}" if delta else f"sorted-{batch_size}"


def stream_settings(dataset: str, quick: bool = False) -> list[StreamSetting]:
    """Return the streams of a data set: small batches, correlated labels, and a camera's other troubles.

    Args:
        dataset: Its name. Its usual batch size is that of all streams that do not vary it.
        quick: Leave out batches of one image, and visit every domain of ``recurring`` only three times.

    Example:
        >>> [stream.name for stream in stream_settings("digits", quick=True)][:5]
        ['continual-50', 'continual-16', 'continual-8', 'continual-4', 'continual-2']
    """
    usual = find_benchmark(dataset).batch_size
    parts: list[tuple[str, int, dict[str, Any]]]
    parts = [("continual", size, {}) for size in (usual, 16, 8, 4, 2, *(() if quick else (1,)))]
    parts += [("correlated", usual, {"delta": delta}) for delta in (1.0, 0.1)]
    parts += [("correlated", size, {"delta": 0.1}) for size in (64, 16)]
    parts += [("correlated", usual, {"delta": 0.01})]
    parts += [("correlated", size, {"delta": 0.0}) for size in (usual, 16)]
    parts += [("practical", 64, {}), ("mixed_domains", usual, {})]
    parts += [("recurring", usual, {"visits": QUICK_VISITS} if quick else {})]
    parts += [("bursts", usual, {}), ("day_night", usual, {})]
    settings = [StreamSetting(protocol, size, options) for protocol, size, options in parts]
    return list({one.name: one for one in settings}.values())  # 64 may be the usual size
