"""Fetching one file from the web: resumed where it stopped, and in its place only if its SHA-256 is right."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final

from vcotta.files import sha256 as sha256_of

__all__ = ["download"]

_CHUNK: Final = 1 << 18


def download(
    url: str,
    path: str | os.PathLike[str],
    sha256: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
) -> Path:
    """Download a file, unless it is there already and right.

    What has come is kept in ``PATH.part``, and a later call goes on from there if the server can.

    Args:
        url: Where from, ``http`` or ``https``.
        path: Where to.
        sha256: What its SHA-256 must be, as hexadecimal text.
        progress: Called with the bytes so far and, where known, the bytes in all.
        timeout: Seconds without a byte after which an attempt is given up.
        attempts: How often a broken connection is taken up again.

    Returns:
        The path.

    Raises:
        OSError: The file cannot be fetched or stored.
        ValueError: It has another hash; it is then deleted.
    """
    target = Path(path)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"Expected `url` to begin with https://, but got {url!r}.")
    if target.is_file() and sha256_of(target) == sha256:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    _fetch_all(url, part, progress, timeout, attempts)
    found = sha256_of(part)
    if found != sha256:
        part.unlink()
        raise ValueError(
            f"Expected {url} to have SHA-256 {sha256}, but got {found}. It was deleted; the server may have sent an "
            "error page, so try again later or get the file elsewhere."
        )
    part.replace(target)
    return target


def _fetch_all(
    url: str, part: Path, progress: Callable[[int, int | None], None] | None, timeout: float, attempts: int
) -> None:
    for attempt in range(1, attempts + 1):
        try:
            if _fetch(url, part, progress, timeout):
                return
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # the part is longer than the file: not a part of it
                part.unlink()
                reason = "the partial file did not fit"
            else:
                raise OSError(f"Could not download {url}: the server answered {error.code} {error.reason}.") from error
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt == attempts:
            raise OSError(
                f"Could not download {url} in {attempts} attempt{'s' * (attempts > 1)}: {reason}. What has come is "
                "kept; the same command goes on from there."
            )


def _fetch(url: str, part: Path, progress: Callable[[int, int | None], None] | None, timeout: float) -> bool:
    """Append to the partial file, and say whether all of it has come."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "vcotta"} | ({"Range": f"bytes={done}-"} if done else {})
    response: HTTPResponse
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        if response.status != 206:  # no ranges here: from the start
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("ab" if done else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
    return total is None or done >= total
