"""The server's log: one line an event, as text or JSON, on standard error.

A line never holds a token, the content of an image, or the query of an address.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, TextIO
from urllib.parse import quote

__all__ = ["LogFormat", "hold_warnings", "log_event", "log_message", "log_to", "request_id", "safe_path"]

LogFormat = Literal["text", "json"]

_log = logging.getLogger("vcotta.serve")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BARE = re.compile(r'[^\s"=\\]+')  # a value that the text form shows without quotation marks
_LONGEST_PATH = 200
_held = threading.local()


def log_to(form: LogFormat, stream: TextIO | None = None) -> None:
    """Write the log of the server, and all warnings, to a stream, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    for name, level in (("vcotta.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    warnings.showwarning = _log_warning


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line with an event's name and fields."""
    text = " ".join([event, *(f"{name}={_shown(value)}" for name, value in fields.items())])
    _log.log(level, "%s", text, extra={"event": event, "fields": fields})


def log_message(text: str) -> None:
    """Write one line with a warning in words."""
    _log.warning("%s", " ".join(text.split()))


@contextmanager
def hold_warnings(category: type[Warning]) -> Iterator[list[str]]:
    """Collect the texts of this thread's warnings of a category instead of logging them, once `log_to` was called."""
    _held.category, _held.texts = category, []
    try:
        yield _held.texts
    finally:
        del _held.category, _held.texts


def request_id(given: str) -> str:
    """Return the client's id of a request if it is short and plain, or else a new one.

    Example:
        >>> request_id("camera-7.1042"), len(request_id("two words"))
        ('camera-7.1042', 16)
    """
    return given if _ID.fullmatch(given) else secrets.token_hex(8)


def safe_path(path: str) -> str:
    r"""Return a request's path on one line, and not longer than 200 characters.

    Example:
        >>> safe_path("/v1/state"), safe_path("/a b\nc")
        ('/v1/state', '/a%20b%0Ac')
    """
    return quote(path[:_LONGEST_PATH], errors="replace")[:_LONGEST_PATH]


def _log_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Log a Python warning on one line; `logging.captureWarnings` would add its source on a second one."""
    if hasattr(_held, "category") and issubclass(category, _held.category):
        _held.texts.append(str(message))
    else:
        log_message(str(message))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_time(record)} {record.levelname} {record.getMessage()}{trace}"


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower()}
        if hasattr(record, "fields"):
            line |= {"event": record.event, **record.fields}  # type: ignore[attr-defined]
        else:
            line |= {"event": "message", "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else "-" if value is None else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)
