"""The event of low class diversity: when it starts and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["DiversityEvent"]

_DIVERSE = 0.5  # the share of a random order's variety at which the event ends
_WEIGHT = 1 / 8  # of a batch in the mean of recent batches


class DiversityEvent:
    """Follows a stream that may show few classes for a while.

    The event starts when the adapter says so, and ends when recent batches hold half the variety of a random order
    again on average, or labels come in random order; a single diverse batch does not end it.

    Attributes:
        low: Whether the event lasts.

    Example:
        >>> event = DiversityEvent()
        >>> event.see({"class_diversity": 0.1, "guard": {"causes": ["diversity"], "action": "note"}})
        'start'
        >>> [event.see({"class_diversity": 1.0}) for _ in range(5)]
        [None, None, None, None, 'end']
    """

    def __init__(self) -> None:
        self.low = False
        self._mean = 0.0

    def see(self, notes: Mapping[str, Any]) -> Literal["start", "end"] | None:
        """Take in `Adapter.last` of a step, and return what the step changed."""
        known = [value for name in ("class_diversity", "random_order") if (value := notes.get(name)) is not None]
        diversity = max(known, default=None)
        named = "diversity" in (notes.get("guard") or {}).get("causes", ())
        if not self.low:
            self.low, self._mean = named, 0.0 if diversity is None else diversity
            return "start" if named else None
        if diversity is not None:
            self._mean += _WEIGHT * (diversity - self._mean)
        self.low = named or self._mean < _DIVERSE
        return None if self.low else "end"
