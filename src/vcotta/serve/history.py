"""What the latest steps saw, for the status page and the metrics."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from vcotta.serve.engine import Answer

__all__ = ["History"]

_KEPT = 600


class History:
    """The latest steps, and totals since the server started; written by the worker, read by anybody.

    Example:
        >>> import torch
        >>> history = History()
        >>> answer = Answer(torch.full((2, 2), 0.5), torch.full((2,), 0.69), {}, {"alpha": 0.3, "skipped": False})
        >>> history.add(answer, seconds=0.1, requests=1, step=1, change=1, drift=0.0)
        >>> history.since(0)[0]["alpha"], history.images
        (0.3, 2)
    """

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.steps = self.images = self.skipped = self.guarded = 0
        self.seconds = 0.0
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._lock = threading.Lock()

    def add(self, answer: Answer, seconds: float, requests: int, step: int, change: int, drift: float) -> None:
        """Note a step.

        Args:
            answer: What it answered.
            seconds: How long it took.
            requests: How many requests were pooled into it.
            step: Its number since the latest reset.
            change: Its number since ever.
            drift: How far the network is from its start, after it.
        """
        guard = answer.notes.get("guard") or None
        skipped = bool(answer.notes.get("skipped", False))
        entry = {
            "change": change,
            "step": step,
            "at": round(time.monotonic() - self.started, 3),
            "images": len(answer.probabilities),
            "requests": requests,
            "seconds": round(seconds, 6),
            "entropy": float(answer.entropy.mean()),
            "alpha": answer.notes.get("alpha"),
            "drift": drift,
            "skipped": skipped,
            "guard": guard,
        }
        with self._lock:
            self._kept.append(entry)
            self.steps += 1
            self.images += len(answer.probabilities)
            self.skipped += skipped
            self.guarded += guard is not None
            self.seconds += seconds

    def since(self, change: int) -> list[dict[str, Any]]:
        """Return the kept steps after the given change, oldest first."""
        with self._lock:
            return [entry for entry in self._kept if entry["change"] > change]

    def latest(self) -> dict[str, Any]:
        """Return the latest step, empty if there was none."""
        with self._lock:
            return self._kept[-1] if self._kept else {}
