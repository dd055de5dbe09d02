"""Who may change the state: clients with a token or, if the server has none, everybody on this machine.

A token is for all streams or for one.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vcotta._util.files import parse_json
from vcotta._util.warn import warn
from vcotta.serve.requests import RefusedError
from vcotta.serve.streams import check_name

__all__ = ["ALL", "Auth", "Tokens", "check_exposure", "hash_token", "read_tokens"]

ALL = "*"
"""The name under which a token for all streams stands."""

Tokens = dict[str, bytes]
"""SHA-256 of the token of each stream, and of all under `ALL`."""

_SHORTEST = 16
_LARGEST_FILE = 2**20
_HASH = re.compile(r"sha256:([0-9a-f]{64})")


def hash_token(token: str) -> bytes:
    """Return the SHA-256 of a token, which is all that the server keeps of it."""
    return hashlib.sha256(token.encode()).digest()


def read_tokens(path: str | os.PathLike[str]) -> Tokens:
    """Read a file with one token for all streams, or a JSON object with a token for each.

    A token has at least 16 visible ASCII characters, no spaces. In JSON, ``{"*": "...", "camera-7": "..."}``, each may
    also be its hash, ``"sha256:"`` and 64 hexadecimal digits.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds anything else, or one token twice.
    """
    path = Path(path)
    content = path.read_bytes()[: _LARGEST_FILE + 1]
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"Expected at most {_LARGEST_FILE} bytes of tokens in {path}, but it is larger.")
    if content.lstrip().startswith(b"{"):
        tokens = {
            _checked(name, path): _digest(value, f"{path}, entry {name!r}") for name, value in _pairs(content, path)
        }
        if len(set(tokens.values())) < len(tokens):
            raise ValueError(f"Expected a token of its own for each stream in {path}, but one stands there twice.")
    else:
        tokens = {ALL: _digest(content.decode("ascii", errors="replace").strip(), str(path))}
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        warn(f"Other users of this machine can read the token: chmod 600 {path}")
    return tokens


def _pairs(content: bytes, path: Path) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = parse_json(content, str(path), pairs=True)
    names = [name for name, _ in found]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"Expected one token for each stream in {path}, but {double!r} has two.")
    return found


def _checked(name: str, path: Path) -> str:
    try:
        return name if name == ALL else check_name(name)
    except RefusedError as error:
        raise ValueError(f"{path}: {error}") from error


def _digest(token: object, where: str) -> bytes:
    text = token if isinstance(token, str) else ""
    if found := _HASH.fullmatch(text):
        return bytes.fromhex(found[1])
    if len(text) < _SHORTEST or not all("!" <= c <= "~" for c in text):
        raise ValueError(
            f"Expected a token of at least {_SHORTEST} visible ASCII characters without spaces in {where}, but its "
            f"{len(text)} characters are too few or others. Make one: head -c 24 /dev/urandom | base64"
        )
    return hash_token(text)


def check_exposure(host: str, token: object) -> None:
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
        tokens: The tokens, or one for all streams, of which ``Authorization: Bearer ...`` must hold one. None trusts
            everybody on this machine; the server must then listen on a loopback address only.

    Example:
        >>> Auth("correct horse battery").check({"authorization": "Bearer correct horse battery"})
        >>> Auth("correct horse battery").check({})
        Traceback (most recent call last):
        vcotta.serve.requests.RefusedError: Expected `Authorization: Bearer TOKEN`, but got no token or another one.
    """

    def __init__(self, tokens: Mapping[str, bytes] | str | None) -> None:
        self._tokens = {ALL: hash_token(tokens)} if isinstance(tokens, str) else tokens

    @property
    def needed(self) -> bool:
        """Whether requests that change the state need a token."""
        return self._tokens is not None

    def check(self, headers: Mapping[str, str], stream: str | None = None) -> None:
        """Raise `RefusedError` unless a request with these headers may change a stream; None for all streams."""
        if self._tokens is None:
            _check_local(headers)
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        digest = hash_token(given.strip())
        # Hashes have one length, so the time of the comparison does not reveal even the length of the token; nor does
        # it reveal which streams have tokens of their own.
        nobody = b"\0" * len(digest)
        expected = [self._tokens.get(ALL, nobody), self._tokens.get(stream or "", nobody)]
        same = sum(hmac.compare_digest(digest, one) for one in expected)
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
