"""Who may change the state: clients with the token or, if the server has none, everybody on this machine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vcotta.serve.requests import RefusedError

__all__ = ["Auth", "check_exposure", "read_token"]

_SHORTEST = 16


def read_token(path: str | os.PathLike[str]) -> str:
    """Read the token from a file: one line, at least 16 visible ASCII characters.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds anything else.
    """
    path = Path(path)
    token = path.read_bytes()[:4096].decode("ascii", errors="replace").strip()
    if len(token) < _SHORTEST or not all("!" <= c <= "~" for c in token):
        raise ValueError(
            f"Expected one token of at least {_SHORTEST} visible ASCII characters in {path}, but its {len(token)} "
            "characters are too few or others. Make one: head -c 24 /dev/urandom | base64 > FILE"
        )
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"Other users of this machine can read the token: chmod 600 {path}", stacklevel=2)
    return token


def check_exposure(host: str, token: str | None) -> None:
    """Raise unless there is a token or only this machine can reach the server.

    Example:
        >>> check_exposure("127.0.0.1", None)
        >>> check_exposure("0.0.0.0", None)
        Traceback (most recent call last):
        ValueError: Expected a token to listen on 0.0.0.0, but got none. Add --token-file, or listen on 127.0.0.1.
    """
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"Expected a token to listen on {host}, but got none. Add --token-file, or listen on 127.0.0.1."
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Auth:
    """Decides whether a request may change the state.

    Args:
        token: Token that ``Authorization: Bearer ...`` must hold. None trusts everybody on this machine; the server
            must then listen on a loopback address only.

    Example:
        >>> Auth("correct horse battery").check({"authorization": "Bearer correct horse battery"})
        >>> Auth("correct horse battery").check({})
        Traceback (most recent call last):
        vcotta.serve.requests.RefusedError: Expected `Authorization: Bearer TOKEN`, but got no token or another one.
    """

    def __init__(self, token: str | None) -> None:
        self._digest = None if token is None else hashlib.sha256(token.encode()).digest()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `RefusedError` unless a request with these headers may change the state."""
        if self._digest is None:
            _check_local(headers)
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        # Hashes have one length, so the time of the comparison does not reveal even the length of the token.
        same = hmac.compare_digest(hashlib.sha256(given.strip().encode()).digest(), self._digest)
        if kind.lower() != "bearer" or not same:
            detail = "Expected `Authorization: Bearer TOKEN`, but got no token or another one."
            raise RefusedError(401, detail, WWW_Authenticate="Bearer")


def _check_local(headers: Mapping[str, str]) -> None:
    """Refuse requests that a page of another origin sends, or that name another host: both may come from a browser."""
    origin = headers.get("origin")
    try:
        host = urlsplit(f"//{headers.get('host', '')}")
        allowed = _is_loopback(host.hostname or "") and (origin is None or urlsplit(origin).netloc == host.netloc)
    except ValueError:  # not an address
        allowed = False
    if not allowed:
        detail = "Expected a request from this machine, but it names another host or comes from another origin."
        raise RefusedError(403, detail)
