"""Streams as JSON."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from vcotta._version import __version__
from vcotta.serve.service import Service
from vcotta.serve.streams import Stream

__all__ = ["describe_stream", "describe_streams"]


def describe_stream(service: Service, stream: Stream, since: int, *, token_needed: bool) -> dict[str, Any]:
    """Return which model is served, and the counters and latest batches of a stream; see `schemas.State`."""
    bundle, engine, history = service.bundle, stream.engine, stream.history
    return {
        "version": __version__,
        "network": bundle.network.name,
        "method": bundle.method,
        "settings": bundle.settings,
        "guard": bundle.guard,
        "bundle": bundle.sha256,
        "class_names": bundle.class_names,
        "channels": bundle.preprocess.channels,
        "size": bundle.preprocess.size,
        "preprocess": bundle.preprocess.how,
        "pool": service.pool,
        "limits": asdict(service.limits),
        "token_needed": token_needed,
        "uptime": time.monotonic() - service.metrics.started,
        "skipped": engine.skipped,
        "low_diversity": stream.diversity.low,
        "history": history.since(since),
        **_counters(stream),
    }


def describe_streams(service: Service, most: int) -> dict[str, Any]:
    """Return the streams, the flagged and pinned ones first, and their memory; see `schemas.StreamList`."""
    streams = service.list_streams()
    ordered = sorted(streams, key=lambda one: (not one.flagged, not one.pinned, one.name))
    return {
        "streams": [_counters(stream) | _latest(stream) for stream in ordered[:most]],
        "total": len(streams),
        "most": service.streams.limits.streams,
        "in_memory": sum(stream.engine.awake for stream in streams),
        "memory": service.streams.memory,
        "held": sum(stream.engine.nbytes for stream in streams),
        "source": service.source_bytes,
    }


def _counters(stream: Stream) -> dict[str, Any]:
    engine, history = stream.engine, stream.history
    return {
        "stream": stream.name,
        "steps": engine.steps,
        "changes": engine.changes,
        "saved": engine.saved_changes,
        "waiting": stream.waiting,
        "images": history.images,
        "updates": history.updates,
        "guarded": history.guarded,
        "in_memory": engine.awake,
        "bytes": engine.nbytes,
        "pinned": stream.pinned,
        "signs": stream.signs,
        "contradiction": stream.comparison.contradiction,
    }


def _latest(stream: Stream) -> dict[str, Any]:
    latest = stream.history.latest or {}
    return {name: latest.get(name) for name in ("entropy", "parameter_distance", "effective_classes")}
