"""A lock file that dies with its process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["locked"]


@contextmanager
def locked(path: str | os.PathLike[str], busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block lasts; the lock dies with its process, however that ends.

    Where the platform or the file system has no locks a warning says so and the block runs without.

    Args:
        path: The lock file, made for the block and removed after it. One that a killed process left is no lock.
        busy: What to say if somebody else holds the lock; None to wait for it.

    Raises:
        BlockingIOError: Somebody else holds the lock, and ``busy`` is given.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(folder + "/.lock", "busy"):
        ...     with locked(folder + "/.lock", "Somebody else is at it."):
        ...         pass
        Traceback (most recent call last):
        BlockingIOError: Somebody else is at it.
    """
    unlocked = f"{Path(path).parent} cannot be locked here: see to it that no other process writes there."
    try:
        import fcntl
    except ImportError:  # Windows
        warnings.warn(unlocked, stacklevel=3)
        yield
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise BlockingIOError(busy) from error
        except OSError:  # a file system without locks
            warnings.warn(unlocked, stacklevel=3)
            break
        if _is_at(file.fileno(), path):
            break
        file.close()  # its last holder removed it between our opening and our locking: the lock is another file now
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
