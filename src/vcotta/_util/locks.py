"""A lock file whose lock ends with its process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vcotta._util.warn import warn

__all__ = ["locked"]

_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


@contextmanager
def locked(path: str | os.PathLike[str], busy: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block lasts; the lock ends with its process, even if that is killed.

    A file left behind by a killed process is no lock. On a file system without locks the block runs with a warning.

    Args:
        path: The lock file, created for the block and removed after it.
        busy: Error message if another process holds the lock; None to wait for it.

    Raises:
        BlockingIOError: Another process holds the lock, and ``busy`` is given.
        ValueError: The lock file is a symbolic link.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, locked(folder + "/.lock", "busy"):
        ...     with locked(folder + "/.lock", "Another process writes here."):
        ...         pass
        Traceback (most recent call last):
        BlockingIOError: Another process writes here.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise ValueError(f"Expected {path} to be a lock file, but it is a symbolic link. Remove it.")
    with ExitStack() as held:
        try:
            # A moment's wait, as a holder that has just removed its file is not busy any more.
            held.enter_context(FileLock(path, timeout=-1 if busy is None else 0.1))
        except Timeout as error:
            raise BlockingIOError(busy) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warn(f"{path.parent} cannot be locked: make sure that no other process writes there.")
        try:
            yield
        finally:
            with suppress(PermissionError):  # Windows cannot remove an open file; there the lock removes it itself
                path.unlink(missing_ok=True)
