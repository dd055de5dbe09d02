"""Numbers for Prometheus, in its text format."""

from __future__ import annotations

import bisect
import math
import resource
import sys
import threading
from collections import Counter
from pathlib import Path

from vcotta._version import __version__
from vcotta.serve.service import Service

__all__ = ["CONTENT_TYPE", "RequestMetrics", "resident_bytes", "text_metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class RequestMetrics:
    """Counts requests by path and status, and how long they took.

    Example:
        >>> metrics = RequestMetrics()
        >>> metrics.add("/healthz", 200, 0.02)
        >>> print(metrics.text().splitlines()[2])
        vcotta_requests_total{path="/healthz",status="200"} 1
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def add(self, path: str, status: int, seconds: float) -> None:
        """Note a request; ``path`` must be a route's own, not what a client wrote."""
        with self._lock:
            self._counts[path, status] += 1
            if path == "/v1/predict":
                self._buckets[bisect.bisect_left(_BOUNDS, seconds)] += 1
                self._seconds += seconds

    def text(self) -> str:
        """Return the counters and the histogram as Prometheus reads them."""
        with self._lock:
            counts, buckets, seconds = sorted(self._counts.items()), list(self._buckets), self._seconds
        lines = _head("vcotta_requests_total", "counter", "Requests by path and status.")
        lines += [f'vcotta_requests_total{{path="{p}",status="{s}"}} {n}' for (p, s), n in counts]
        name = "vcotta_predict_seconds"
        lines += _head(name, "histogram", "Seconds from the head of a request for predictions to its answer.")
        total = 0
        for bound, count in zip((*_BOUNDS, math.inf), buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{"+Inf" if bound == math.inf else bound}"}} {total}')
        return "\n".join([*lines, f"{name}_sum {seconds}", f"{name}_count {total}", ""])


def text_metrics(service: Service, requests: RequestMetrics, in_flight: int) -> str:
    """Return everything that is measured of a service, in Prometheus' text format."""
    history, latest = service.history, service.history.latest()
    adapter = service.engine.adapter
    values: list[tuple[str, str, str, float | None]] = [
        ("vcotta_batches_total", "counter", "Batches adapted to since the server started.", history.steps),
        ("vcotta_images_total", "counter", "Images adapted to since the server started.", history.images),
        ("vcotta_batch_seconds_total", "counter", "Seconds spent in the adapter.", history.seconds),
        ("vcotta_skipped_total", "counter", "Batches whose update was dropped.", history.skipped),
        ("vcotta_guard_events_total", "counter", "Batches in which a guard stepped in.", history.guarded),
        ("vcotta_failed_batches_total", "counter", "Batches the adapter failed on.", service.failed_batches),
        ("vcotta_checkpoint_failures_total", "counter", "Checkpoints not written.", service.keeper.failures),
        ("vcotta_steps", "gauge", "Batches since the latest reset.", adapter.steps),
        ("vcotta_changes", "gauge", "Changes of the state, resets and earlier lives included.", service.changes),
        ("vcotta_waiting_images", "gauge", "Images that wait for the adapter.", service.waiting),
        ("vcotta_open_requests", "gauge", "Requests that are read, decoded or waited for.", in_flight),
        ("vcotta_entropy", "gauge", "Mean entropy of the latest batch's predictions, in nats.", latest.get("entropy")),
        ("vcotta_alpha", "gauge", "Weight of the source prior in the latest batch.", latest.get("alpha")),
        ("vcotta_drift", "gauge", "Distance of the weights from their start, relative.", latest.get("drift")),
        ("vcotta_resident_bytes", "gauge", "Memory of the process.", resident_bytes()),
    ]
    lines = _head("vcotta_info", "gauge", "What is served.")
    bundle = service.bundle
    lines.append(f'vcotta_info{{version="{__version__}",method="{bundle.method}",bundle="{bundle.sha256[:12]}"}} 1')
    for name, kind, about, value in values:
        if value is not None:
            lines += [*_head(name, kind, about), f"{name} {value}"]
    return "\n".join(lines) + "\n" + requests.text()


def resident_bytes() -> int:
    """Return the memory this process holds now; where only its peak is known, that."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
