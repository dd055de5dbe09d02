"""Who may change the state: the holder of the token or, where there is none, whoever sits at this machine."""

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

from vcotta.serve.limits import RefusedError

__all__ = ["Gate", "is_loopback", "read_token"]

_SHORTEST = 16


def read_token(path: str | os.PathLike[str]) -> str:
    """Read the token from a file: one line, at least 16 visible ASCII characters.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds anything else.
    """
    path = Path(path)
    content = path.read_bytes()[:4096]
    token = content.decode("ascii", errors="replace").strip()
    if len(token) < _SHORTEST or not all("!" <= c <= "~" for c in token):
        raise ValueError(
            f"Expected a token of at least {_SHORTEST} letters, digits and signs in {path}, but got {len(token)} "
            "characters or others. Make one: head -c 24 /dev/urandom | base64 > FILE"
        )
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"Others on this machine can read {path}. Keep it to yourself: chmod 600 {path}", stacklevel=2)
    return token


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own, and no other's.

    Example:
        >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0"), is_loopback("example.org")
        (True, True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Decides whether a request may change the state.

    Args:
        token: What ``Authorization: Bearer ...`` must hold; None trusts everybody who reaches the server, which is
            then to listen on the loopback address alone.

    Example:
        >>> Gate("correct horse battery").check({"authorization": "Bearer correct horse battery"})
        >>> Gate("correct horse battery").check({})
        Traceback (most recent call last):
        vcotta.serve.limits.RefusedError: Expected `Authorization: Bearer TOKEN`, but got none or another token.
    """

    def __init__(self, token: str | None) -> None:
        self._digest = None if token is None else hashlib.sha256(token.encode()).digest()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise `RefusedError` unless a request with these headers may change the state.

        Without a token a web page opened on this machine could send requests here: what comes from a page of another
        origin, or asks for another host than this machine, is refused.
        """
        if self._digest is None:
            self._check_local(headers)
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        # The hashes have one length, so the comparison tells nothing, not even how long the token is.
        same = hmac.compare_digest(hashlib.sha256(given.strip().encode()).digest(), self._digest)
        if kind.lower() != "bearer" or not same:
            detail = "Expected `Authorization: Bearer TOKEN`, but got none or another token."
            raise RefusedError(401, detail, WWW_Authenticate="Bearer")

    def _check_local(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        try:
            host = urlsplit(f"//{headers.get('host', '')}")
            local = is_loopback(host.hostname or "")
            same = origin is None or urlsplit(origin).netloc == host.netloc
        except ValueError:  # no address at all
            local = same = False
        if not (local and same):
            raise RefusedError(
                403, "Expected a request from this machine, but it names another host or comes from a page of another."
            )
