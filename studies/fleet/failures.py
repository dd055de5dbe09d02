"""What a server's log says went wrong, with its whole text."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["failures"]

_REPLICA = re.compile(r"^(?:\x1b\[\d+m)?\([^()]*pid=\d+[^()]*\)(?:\x1b\[\d+m)? ", re.MULTILINE)  # Ray's, of each line
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\dT\S+Z [A-Z]+ |[A-Z]+ \d{4}-\d\d-\d\d )", re.MULTILINE)
_FAILED = re.compile(r"\S+Z (?:ERROR|CRITICAL) |(?:ERROR|CRITICAL) \d|\S+Z [A-Z]+ request .* status=5\d\d ")
_VARIES = re.compile(r"\b(?:id|stream|ms|images)=\S+|\b[0-9a-f]{16}\b|\d+(?:\.\d+)?")
_LONGEST = 4000


def failures(log: str) -> list[dict[str, Any]]:
    """Return every kind of failure in a log, the most frequent first: ``count``, and the ``text`` of the first one.

    Failures are errors, with their tracebacks, and requests that were answered 5xx, with their reasons. Those that
    differ in numbers, ids and names of streams only are of one kind.

    Args:
        log: The log of `vcotta serve`, in text form.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for record in _RECORD.split(_REPLICA.sub("", log)):
        if _FAILED.match(record):
            text = record.strip()
            kind = _VARIES.sub("", text)
            kinds.setdefault(kind, {"count": 0, "text": text[:_LONGEST]})["count"] += 1
    return sorted(kinds.values(), key=lambda found: -found["count"])
