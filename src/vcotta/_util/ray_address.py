"""Whether anything answers at the address of a Ray cluster."""

from __future__ import annotations

import socket

__all__ = ["knock"]


def knock(address: str | None) -> None:
    """Raise `OSError` unless the address answers; Ray itself would keep trying for many minutes.

    Example:
        >>> knock("local"), knock(None)
        (None, None)
    """
    place = (address or "").removeprefix("ray://").partition("/")[0]
    host, colon, port = place.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
