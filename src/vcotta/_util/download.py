"""Downloads one file: resumable, and checked by its SHA-256 before it gets its name."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Final

from vcotta._util.files import sha256 as sha256_of

__all__ = ["BytesDone", "download"]

_CHUNK: Final = 1 << 18

BytesDone = Callable[[int, int | None], None]
"""Called with the number of bytes done and in all, None if that is unknown."""


def download(
    url: str,
    path: str | os.PathLike[str],
    sha256: str,
    *,
    progress: BytesDone | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
) -> Path:
    """Download a file to ``path``, unless it is there already with the right hash, and return the path.

    An incomplete download stays in ``PATH.part``; a later call resumes it if the server supports that. An attempt fails
    after ``timeout`` seconds without a byte.

    Raises:
        OSError: The file cannot be downloaded or stored.
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
            f"Expected {url} to have SHA-256 {sha256}, but got {found}. It was deleted. The server may have sent "
            "an error page: try again later, or get the file elsewhere."
        )
    part.replace(target)
    return target


def _fetch_all(url: str, part: Path, progress: BytesDone | None, timeout: float, attempts: int) -> None:
    for attempt in range(1, attempts + 1):
        try:
            if _fetch(url, part, progress, timeout):
                return
            reason = "the connection ended early"
        except urllib.error.HTTPError as error:
            if error.code == 416 and part.exists():  # longer than the file, so not a part of it
                part.unlink()
                reason = "the partial file did not fit"
            else:
                raise OSError(f"Could not download {url}: the server answered {error.code} {error.reason}.") from error
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt == attempts:
            raise OSError(
                f"Could not download {url} in {attempts} attempt{'s' * (attempts > 1)}: {reason}. Repeat the command "
                "to resume the download."
            )


def _fetch(url: str, part: Path, progress: BytesDone | None, timeout: float) -> bool:
    """Append to the partial file; return whether it is complete."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "vcotta"} | ({"Range": f"bytes={done}-"} if done else {})
    response: HTTPResponse
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        if response.status != 206:  # the server does not resume: start again
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
