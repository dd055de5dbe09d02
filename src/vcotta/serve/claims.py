"""Which process may use which stream of a state folder that several processes share.

A process that uses a stream holds a lock on a file of the stream's name, so that no two processes ever write one
stream; the lock ends with its process, even if that is killed. Another process that needs the stream leaves a note
beside the lock; the holder looks for notes, saves the stream and gives it up.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["LOOK_SECONDS", "Claims"]

_NOTE = ".asked"
LOOK_SECONDS = 0.2
"""Seconds between two looks for notes."""


class Claims:
    """The streams that this process holds; its methods must be called by one thread at a time.

    Args:
        folder: Folder of the locks, the same for all processes; it must be on a file system with locks.

    Raises:
        OSError: The folder cannot be written, or its file system has no locks.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> one, other = Claims(folder), Claims(folder)
        >>> one.take("camera-7"), other.take("camera-7")
        (True, False)
        >>> other.ask("camera-7"), one.asked()
        (False, ['camera-7'])
        >>> one.release("camera-7")
        >>> other.ask("camera-7"), other.take("camera-7")
        (True, True)
        >>> other.close()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._locks: dict[str, FileLock] = {}
        self._looked = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._locked(".probe", wait=10.0)
        except (OSError, NotImplementedError) as error:  # a Timeout is an OSError, too
            raise OSError(
                f"Expected {folder} to be on a file system with locks, which streams of several processes need, but "
                f"a file there cannot be locked: {error}. Choose another --state folder."
            ) from error
        self.release(".probe")

    def take(self, name: str) -> bool:
        """Take a stream, if no other process holds it; return whether this process holds it now."""
        if name not in self._locks:
            try:
                self._locked(name)
            except Timeout:
                return False
            self._note(name).unlink(missing_ok=True)
        return True

    def ask(self, name: str) -> bool:
        """Return whether the stream can be taken; if another process holds it, leave it a note."""
        path = self.folder / name
        if name in self._locks or not path.exists():
            return True
        probe = FileLock(path, timeout=0, thread_local=False)
        try:
            probe.acquire()
        except Timeout:
            self._note(name).touch()
            return False
        _free(probe)
        return True

    def asked(self) -> list[str]:
        """Return the streams held here that others have asked for; it looks at most five times a second."""
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return []
        self._looked = time.monotonic()
        names = (path.name.removesuffix(_NOTE) for path in self.folder.glob(f"*{_NOTE}"))
        return sorted(name for name in names if name in self._locks)

    def release(self, name: str) -> None:
        """Give a stream up, after its state was saved."""
        self._note(name).unlink(missing_ok=True)
        _free(self._locks.pop(name))

    def close(self) -> None:
        """Give all streams up."""
        for name in list(self._locks):
            self.release(name)

    def _locked(self, name: str, wait: float = 0.0) -> None:
        lock = FileLock(self.folder / name, timeout=wait, thread_local=False)
        lock.acquire()
        self._locks[name] = lock

    def _note(self, name: str) -> Path:
        return self.folder / f"{name}{_NOTE}"


def _free(lock: FileLock) -> None:
    with suppress(PermissionError):  # Windows cannot remove an open file
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
