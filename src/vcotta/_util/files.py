"""The cache folder, files and folders written whole or not at all, JSON files, SHA-256."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = [
    "atomic_path",
    "cache_dir",
    "parse_json",
    "read_json",
    "replaced_folder",
    "require_file",
    "sha256",
    "sync_folder",
    "write_json",
    "write_text",
]


def cache_dir() -> Path:
    """Return the cache folder, ``$VCOTTA_CACHE`` or else the platform's usual place; it need not exist."""
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
    """Yield a temporary path beside ``path``, which replaces ``path`` after success and is removed after failure.

    A reader never sees half a file; a kill or a power cut at any moment leaves the whole old or the whole new file.
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


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces ``folder`` after success and is removed after failure.

    Raises:
        OSError: The disk is full, or the folder cannot be written; the old folder is still there.
    """
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        if folder.exists():
            folder.replace(old)
        try:
            new.replace(folder)
        except OSError:
            if old.exists():
                old.replace(folder)
            raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"Could not write {folder}: {error.strerror or error}. Nothing was changed there; free some space or "
            "choose another folder",
        ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Flush a folder's entries to disk, where the platform can."""
    with suppress(OSError):  # Windows opens no folders, and some file systems cannot sync them
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
    """Write ``value`` as indented JSON, atomically; raise `ValueError` for not-a-number and infinity."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def require_file(path: str | os.PathLike[str], what: str = "a file") -> Path:
    """Return ``path`` if it is a file, else raise an error that says ``what`` it should be.

    Example:
        >>> require_file("weights.pt", "a checkpoint")
        Traceback (most recent call last):
        FileNotFoundError: Expected weights.pt to be a checkpoint, but there is no such file. Check the path.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"Expected {path} to be {what}, but it is a folder. Give the path of a file.")
    if not path.exists():
        raise FileNotFoundError(f"Expected {path} to be {what}, but there is no such file. Check the path.")
    return path


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; a `ValueError` for what is not JSON names the file."""
    return parse_json(Path(path).read_bytes(), str(path))


def parse_json(text: str | bytes, name: str, *, pairs: bool = False) -> Any:
    """Parse JSON; raise a `ValueError` that names the file for anything else, wrong encoding and depth included.

    With ``pairs`` objects become lists of pairs, in which a name may be there twice.

    Example:
        >>> parse_json("[1,", "a")
        Traceback (most recent call last):
        ValueError: Expected a to be JSON, but it is damaged: Expecting value: line 1 column 4 (char 3). Restore it.
    """
    try:
        return json.loads(text, object_pairs_hook=list if pairs else None)
    except RecursionError as error:
        raise ValueError(f"Expected {name} to be JSON, but it is nested too deeply. Restore it.") from error
    except ValueError as error:
        raise ValueError(f"Expected {name} to be JSON, but it is damaged: {error}. Restore it.") from error


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
