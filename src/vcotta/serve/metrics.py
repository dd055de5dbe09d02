"""Counters and gauges for Prometheus, of the whole server and of its streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from vcotta.serve.service import Service
    from vcotta.serve.streams import Stream

__all__ = ["OTHER", "Metrics"]

OTHER = "other"
"""Label of the streams beyond the first `NAMED`."""

NAMED = 50
"""Streams with a label of their own, so that clients cannot make ever more time series."""

_PREDICT = ("/v1/predict", "/v1/streams/{stream}/predict", "/v2/models/{model}/infer")
_OF_BATCH = {
    "entropy": "Mean entropy of the latest batch's predictions, in nats.",
    "alpha": "Weight of the source prior in the latest predictions; it rises while the teacher is unsure.",
    "parameter_distance": "Distance of the parameters from their start, relative to the norm of the start.",
    "effective_classes": "Number of classes that the latest batch seems to hold.",
    "class_diversity": "The same as a share of what a batch in random order would hold, 0 to 1.",
    "batch_share": "Share of the latest batches in BatchNorm's statistics, 0 to 1; the rest is the source's.",
}
_OF_STREAM = {
    "batches": "Batches of requests with adaptation since the server started.",
    "images": "Images in requests with adaptation since the server started.",
    "updates": "Batches after which an update was taken.",
    "seconds": "Seconds spent in the adapter.",
    "guard_events": "Batches in which the guard acted.",
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
        self.merges = self._counter("merges", "Merges of what streams have learned; each replica counts.")
        self.failed_merges = self._counter("merge_failures", "Merges that failed and changed no stream here.")
        self.merge_refusals = self._counter("merge_refusals", "Streams that were refused by merges.")
        about = "Requests for predictions that are not answered yet."
        self.open_requests = Gauge("vcotta_open_requests", about, registry=self.registry)
        self._of_stream = {
            name: Counter(f"vcotta_stream_{name}", f"{about} By stream.", ["stream"], registry=self.registry)
            for name, about in _OF_STREAM.items()
        }
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vcotta_{name}", about, registry=self.registry)

    def describe(self, **labels: str) -> None:
        """Add ``vcotta_info``, whose labels say what is served."""
        Info("vcotta", "What is served.", registry=self.registry).info(labels)

    def watch(self, service: Service) -> None:
        """Add the gauges that are read from a service whenever somebody asks for the metrics."""
        self.registry.register(_Watching(service, self))

    def add_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; ``path`` must be one of the routes, not the client's text."""
        self._requests.labels(path, str(status)).inc()
        if path in _PREDICT and status == 200:
            self._predict_seconds.observe(seconds)  # refusals are quick and would lower the quantiles

    def add_batch(self, stream: str, entry: dict[str, Any]) -> None:
        """Count a batch of a stream, an entry of its `vcotta.serve.history.History`."""
        guard = entry["guard"]
        guarded = guard is not None and guard.get("action") != "note"
        self._batches.inc()
        self._images.inc(entry["images"])
        self._seconds.inc(entry["seconds"])
        self._skipped.inc(entry["skipped"])
        self._updates.inc(entry["adapted"])
        self._guarded.inc(guarded)
        with self._lock:
            label = self.label(stream, claim=True)
            added = (1, entry["images"], entry["adapted"], entry["seconds"], guarded)
            for counter, amount in zip(self._of_stream.values(), added, strict=True):
                counter.labels(label).inc(amount)

    def forget(self, stream: str) -> None:
        """Drop the label of a deleted stream; another stream may get its place."""
        with self._lock:
            if stream in self._named:
                self._named.remove(stream)
                for counter in self._of_stream.values():
                    counter.remove(stream)

    def label(self, stream: str, *, claim: bool = False) -> str:
        """Return the label of a stream; with ``claim`` it gets one of its own if there is one left."""
        if claim and len(self._named) < NAMED and stream != OTHER:
            self._named.add(stream)
        return stream if stream in self._named else OTHER

    def total(self, name: str, **labels: str) -> int:
        """Return the value of a counter."""
        return int(self.registry.get_sample_value(f"vcotta_{name}_total", labels) or 0)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics and their content type, in the Prometheus format that the Accept header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _Watching:
    """The gauges that are read from a service; those without a stream's label are of the default stream."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service, self.metrics = service, metrics

    def describe(self) -> Iterator[Metric]:
        """Tell the registry nothing in advance, as the service is not complete yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Read all gauges."""
        service, streams = self.service, self.service.list_streams()
        default = service.streams.default
        yield _gauge("steps", "Batches since the latest reset.", default.engine.steps or 0)
        yield _gauge("changes", "State version: counts updates and resets, survives restarts.", default.engine.changes)
        yield _gauge("waiting_images", "Images that wait for the adapter, of all streams.", service.waiting)
        for name, about in _OF_BATCH.items():
            value = None if default.history.latest is None else default.history.latest.get(name)
            if value is not None:
                yield _gauge(name, about, value)
        yield _gauge("streams", "Streams.", len(streams))
        awake = sum(stream.engine.awake for stream in streams)
        yield _gauge("streams_in_memory", "Streams whose state is in memory.", awake)
        yield _gauge("state_bytes", "Bytes of the states in memory.", sum(one.engine.nbytes for one in streams))
        yield _gauge("state_bytes_limit", "Bytes of states that may be in memory.", service.streams.memory)
        loads, evictions = service.streams.loads, service.streams.evictions
        yield CounterMetricFamily("vcotta_state_loads", "States made, or loaded from the disk.", loads)
        yield CounterMetricFamily("vcotta_state_evictions", "States put to the disk to make room.", evictions)
        yield from self._of_streams(streams)

    def _of_streams(self, streams: list[Stream]) -> Iterator[Metric]:
        totals = {
            "waiting_images": ("Images that wait for the adapter.", lambda one: one.waiting),
            "flagged": ("Whether the stream seems to do worse than the source.", lambda one: one.flagged),
            "pinned": ("Whether the stream answers as the source and does not adapt.", lambda one: one.pinned),
        }
        for name, (about, read) in totals.items():
            values: dict[str, float] = {}
            for stream in streams:
                label = self.metrics.label(stream.name)
                values[label] = values.get(label, 0.0) + float(read(stream))
            yield _by_stream(name, f"{about} By stream.", values)
        for name in ("entropy", "parameter_distance", "effective_classes"):
            latest = {stream.name: (stream.history.latest or {}).get(name) for stream in streams}
            yield _by_stream(name, f"{_OF_BATCH[name]} By stream.", self._known(latest))
        contradicted = {stream.name: stream.comparison.contradiction for stream in streams}
        about = "Share of the images the source is sure of that the stream classifies otherwise. By stream."
        yield _by_stream("contradiction", about, self._known(contradicted))

    def _known(self, values: dict[str, float | None]) -> dict[str, float]:
        """Those of streams with a label of their own."""
        return {
            name: value for name, value in values.items() if value is not None and self.metrics.label(name) != OTHER
        }


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"vcotta_{name}", about, value)


def _by_stream(name: str, about: str, values: dict[str, float]) -> Metric:
    family = GaugeMetricFamily(f"vcotta_stream_{name}", about, labels=["stream"])
    for label, value in values.items():
        family.add_metric([label], value)
    return family
