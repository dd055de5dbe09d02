"""How many requests are read at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from vcotta.serve.requests import RefusedError

__all__ = ["Admission"]


class Admission:
    """Bounds the requests whose bodies are being read, and so the memory for them; one stream may take half.

    Args:
        most: Requests that may be read at once.

    Attributes:
        reading: Requests that are being read.
    """

    def __init__(self, most: int) -> None:
        self.most, self.reading = most, 0
        self._by_stream: Counter[str] = Counter()

    @contextmanager
    def admit(self, stream: str) -> Iterator[None]:
        """Count a request of a stream while it is read; raise `RefusedError` (429) if there are too many."""
        half = max(1, self.most // 2)
        if self.reading >= self.most or self._by_stream[stream] >= half:
            detail = (
                f"The server reads at most {self.most} requests at once, {half} of them of one stream, and does so "
                "already. Try again in a moment."
            )
            raise RefusedError(429, detail, Retry_After="1")
        self.reading += 1
        self._by_stream[stream] += 1
        try:
            yield
        finally:
            self.reading -= 1
            self._by_stream[stream] -= 1
            if not self._by_stream[stream]:
                del self._by_stream[stream]
