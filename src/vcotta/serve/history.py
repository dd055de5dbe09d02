"""The latest batches of a stream, and its counters since the server started."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from vcotta.serve.engine import Answer

__all__ = ["History"]

_NOTED = ("effective_classes", "class_diversity", "batch_share")


class History:
    """Counts a stream's batches and keeps the latest; any thread may call its methods.

    Args:
        kept: How many batches are kept.
        started: When the server started, by `time.monotonic`.

    Attributes:
        images: Images in requests with adaptation since the server started.
        updates: Updates of the model since the server started.
        guarded: Batches since the server started in which the guard acted.
        latest: The latest known values of a batch, None before the first.
    """

    def __init__(self, kept: int = 600, started: float | None = None) -> None:
        self.images = self.updates = self.guarded = 0
        self.latest: dict[str, Any] | None = None
        self._started = time.monotonic() if started is None else started
        self._kept: deque[dict[str, Any]] = deque(maxlen=kept)
        self._lock = threading.Lock()

    def add(
        self, answer: Answer, seconds: float, requests: int, step: int, change: int, distance: float
    ) -> dict[str, Any]:
        """Add a batch of requests with adaptation, and return its entry; see `vcotta.serve.schemas.StepInfo`."""
        guard = answer.notes.get("guard") or None
        entry: dict[str, Any] = {
            "change": change,
            "step": step,
            "at": round(time.monotonic() - self._started, 3),
            "images": len(answer.probabilities),
            "requests": requests,
            "seconds": round(seconds, 6),
            "entropy": float(answer.entropy.mean()),
            "alpha": answer.notes.get("prediction_alpha", answer.notes.get("alpha")),
            "parameter_distance": distance,
            **{name: answer.notes.get(name) for name in _NOTED},
            "adapted": answer.adapted,
            "skipped": bool(answer.notes.get("skipped", False)),
            "guard": guard,
        }
        with self._lock:
            self._kept.append(entry)
            self.latest = (self.latest or {}) | {name: value for name, value in entry.items() if value is not None}
            self.images += entry["images"]
            self.updates += answer.adapted
            self.guarded += guard is not None and guard.get("action") != "note"
        return entry

    def since(self, change: int) -> list[dict[str, Any]]:
        """Return the latest batches after the given state version, oldest first."""
        with self._lock:
            return [entry for entry in self._kept if entry["change"] > change]
