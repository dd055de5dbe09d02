"""Where the package keeps its files, and how it writes them without ever leaving half of one."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["atomic_path", "cache_dir", "sha256", "sync_folder", "write_json", "write_text"]


def cache_dir() -> Path:
    """Return the one cache folder: ``$VCOTTA_CACHE``, else the platform's own place (not created here)."""
    if given := os.environ.get("VCOTTA_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "vcotta"


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and takes ``path``'s place, else it is removed.

    A reader never sees half a file, and a kill or a power cut at any moment leaves the old file whole, or the new one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)  # mkstemp's 0600 would keep the file from everyone else
        aside.replace(target)
        sync_folder(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make sure that what was created, renamed or removed in a folder outlives a power cut, where that is possible."""
    with suppress(OSError):  # Windows opens no folders, and some file systems sync none
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically."""
    with atomic_path(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically; not-a-number is refused rather than written."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
