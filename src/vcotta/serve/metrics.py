"""Counters for Prometheus, and the latest batches for ``/v1/state``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from vcotta.serve.engine import Answer

__all__ = ["Metrics"]

_KEPT = 600  # batches
_GAUGES = {
    "steps": "Batches since the latest reset.",
    "changes": "State version: counts updates and resets, survives restarts.",
    "waiting_images": "Images that wait for the adapter.",
}
_OF_BATCH = {
    "entropy": "Mean entropy of the latest batch's predictions, in nats.",
    "alpha": "Weight of the source prior in the latest batch.",
    "parameter_distance": "Distance of the parameters from their start, relative to the norm of the start.",
    "effective_classes": "Number of classes that the latest batch seems to hold.",
    "class_diversity": "The same as a share of what a batch in random order would hold, 0 to 1.",
    "batch_share": "Share of the latest batches in BatchNorm's statistics, 0 to 1; the rest is the source's.",
}


class Metrics:
    """Counts requests and batches; any thread may call its methods.

    Example:
        >>> metrics = Metrics()
        >>> metrics.add_request("/healthz", 200, 0.02)
        >>> metrics.total("requests", path="/healthz", status="200")
        1
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "vcotta_requests", "Requests by path and status.", ["path", "status"], registry=self.registry
        )
        self._predict_seconds = Histogram(
            "vcotta_predict_seconds",
            "Seconds from a request to its predictions; only status 200 counts.",
            registry=self.registry,
        )
        self._batches = self._counter("batches", "Batches of requests with adaptation since the server started.")
        self._images = self._counter("images", "Images in requests with adaptation since the server started.")
        self._updates = self._counter("updates", "Batches after which an update was taken.")
        self._seconds = self._counter("batch_seconds", "Seconds spent in the adapter.")
        self._skipped = self._counter("skipped", "Batches whose update was skipped.")
        self._guarded = self._counter("guard_events", "Batches in which the guard acted.")
        self.failed_batches = self._counter("failed_batches", "Batches on which the adapter failed.")
        self.failed_checkpoints = self._counter("checkpoint_failures", "Checkpoints that could not be written.")
        about = "Requests for predictions that are not answered yet."
        self.open_requests = Gauge("vcotta_open_requests", about, registry=self.registry)
        self._latest: dict[str, Gauge] = {}
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vcotta_{name}", about, registry=self.registry)

    def describe(self, **labels: str) -> None:
        """Add ``vcotta_info``, whose labels say what is served."""
        Info("vcotta", "What is served.", registry=self.registry).info(labels)

    def watch(self, values: Mapping[str, Callable[[], float]]) -> None:
        """Add the gauges of ``_GAUGES``, each with the function that reads it."""
        for name, read in values.items():
            Gauge(f"vcotta_{name}", _GAUGES[name], registry=self.registry).set_function(read)

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; ``path`` must be one of the routes, not the client's text."""
        self._requests.labels(path, str(status)).inc()
        if path == "/v1/predict" and status == 200:  # refusals are quick and would lower the quantiles
            self._predict_seconds.observe(seconds)

    def add_batch(self, answer: Answer, seconds: float, requests: int, step: int, change: int, distance: float) -> None:
        """Record a batch of requests with adaptation; see `vcotta.serve.schemas.StepInfo`."""
        guard = answer.notes.get("guard") or None
        skipped = bool(answer.notes.get("skipped", False))
        entry: dict[str, Any] = {
            "change": change,
            "step": step,
            "at": round(time.monotonic() - self.started, 3),
            "images": len(answer.probabilities),
            "requests": requests,
            "seconds": round(seconds, 6),
            "entropy": float(answer.entropy.mean()),
            "alpha": answer.notes.get("alpha"),
            "parameter_distance": distance,
            **{name: answer.notes.get(name) for name in ("effective_classes", "class_diversity", "batch_share")},
            "adapted": answer.adapted,
            "skipped": skipped,
            "guard": guard,
        }
        with self._lock:
            self._kept.append(entry)
        self._batches.inc()
        self._images.inc(entry["images"])
        self._seconds.inc(seconds)
        self._skipped.inc(skipped)
        self._updates.inc(answer.adapted)
        self._guarded.inc(guard is not None and guard.get("action") != "note")
        for name, about in _OF_BATCH.items():
            if entry[name] is not None:
                if name not in self._latest:
                    self._latest[name] = Gauge(f"vcotta_{name}", about, registry=self.registry)
                self._latest[name].set(entry[name])

    def batches_since(self, change: int) -> list[dict[str, Any]]:
        """Return the latest batches after the given state version, oldest first."""
        with self._lock:
            return [entry for entry in self._kept if entry["change"] > change]

    def total(self, name: str, **labels: str) -> int:
        """Return the value of a counter."""
        return int(self.registry.get_sample_value(f"vcotta_{name}_total", labels) or 0)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics and their content type, in the Prometheus format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
