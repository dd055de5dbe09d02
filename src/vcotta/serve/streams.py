"""The streams of a server: each has an adapter, a queue and a history of its own.

The adapters in memory are bounded: those that are needed last are put to disk, and come back exactly.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vcotta._util.files import write_json
from vcotta._util.validation import Count, Settings
from vcotta.runs.checkpoints import newest_checkpoint
from vcotta.serve.adapters import Adapters
from vcotta.serve.claims import Claims
from vcotta.serve.comparison import Comparison
from vcotta.serve.diversity import DiversityEvent
from vcotta.serve.engine import Engine
from vcotta.serve.history import History
from vcotta.serve.jobs import Job
from vcotta.serve.requests import RefusedError
from vcotta.serve.state_store import StateStore

__all__ = ["DEFAULT", "Stream", "StreamLimits", "Streams", "check_name"]

DEFAULT = "default"
"""The stream of the routes that name none."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")  # no capitals: some file systems do not tell them apart
_FOLDER, _CLAIMS, _PINNED = "streams", "claims", "pinned.json"
_KEPT, _KEPT_OF_MANY = 600, 60  # batches
_LEAST = 2 * 2**30  # bytes for states, where `memory` is not given and two states need less
_NO_FILES_LEFT = {errno.EMFILE, errno.ENFILE}
_SPARE_FILES = 32  # file descriptors for requests and checkpoints
_log = logging.getLogger("vcotta.serve")


def check_name(name: str) -> str:
    """Return the name of a stream; raise `RefusedError` if it is none.

    Example:
        >>> check_name("camera-7")
        'camera-7'
        >>> check_name("../a")
        Traceback (most recent call last):
        vcotta.serve.requests.RefusedError: Expected a stream's name of 1 to 64 characters a-z, 0-9, ".", "_" and "-", \
a letter or digit first, but got '../a'.
    """
    if _NAME.fullmatch(name) is None:
        raise RefusedError(
            422,
            'Expected a stream\'s name of 1 to 64 characters a-z, 0-9, ".", "_" and "-", a letter or digit first, but '
            f"got {name[:80]!r}.",
        )
    return name


@dataclass(frozen=True)
class StreamLimits(Settings):
    """Bounds on what streams may cost together.

    Attributes:
        streams: Most streams, the default one included.
        memory: Bytes of the adapters' states in memory; None for 2 GiB, or two states if they need more. The state in
            use is always in memory, even if it has grown beyond that.
        queue: Images of all streams together that may wait for the adapter; each stream has `Limits.queue` besides.
    """

    streams: Count = 64
    memory: Count | None = None
    queue: Count = 4096


class Stream:
    """One stream of images.

    Attributes:
        name: Its name.
        engine: Its adapter.
        queue: Requests that wait for the adapter.
        waiting: Images among them.
        batches: Batches with adaptation since the server started.
        diversity: Whether the latest batches seem to hold few classes.
        history: Counters and the latest batches.
        comparison: Whether it seems to do worse than the source network.
        pinned: Whether it answers as the source network and does not adapt.
        closing: Whether it is about to be deleted.
        outlier: Whether the latest merge refused it, as it learned something else than the others.
        leaving: Whether it is being handed over to another process.
        used: When it was last served, by `time.monotonic`.
    """

    def __init__(self, name: str, engine: Engine, history: History) -> None:
        self.name, self.engine, self.history = name, engine, history
        self.queue: deque[Job] = deque()
        self.waiting = self.batches = 0
        self.diversity, self.comparison = DiversityEvent(), Comparison()
        self.closing = self.leaving = self.outlier = False
        self.used = 0.0
        folder = engine.store.folder
        self.pinned = folder is not None and (folder / _PINNED).exists()

    @property
    def flagged(self) -> bool:
        """Whether the stream seems to do worse than the source; a pinned one does what the source does."""
        return bool(self.signs)

    @property
    def signs(self) -> list[str]:
        """By which signs the stream is flagged, see `Comparison.flags`; ``outlier`` besides."""
        return [] if self.pinned else [*self.comparison.flags(), *["outlier"] * self.outlier]

    def forget(self) -> None:
        """Forget what was noted of the stream before a reset."""
        self.diversity, self.comparison, self.outlier = DiversityEvent(), Comparison(), False

    def pin(self, pinned: bool) -> None:
        """Pin the stream to the source network, or release it; a restart does not change that."""
        if (folder := self.engine.store.folder) is not None:
            if pinned:
                self.engine.store.begin()
                write_json(folder / _PINNED, {"pinned": True})
            else:
                (folder / _PINNED).unlink(missing_ok=True)
        self.pinned = pinned


class Streams:
    """All streams by name; the caller sees to it that one thread at a time changes them.

    Args:
        adapters: Builds their adapters.
        limits: Bounds.
        state: Folder of the checkpoints; None if states need not survive.
        checkpoint_seconds: Seconds between two checkpoints of a stream; 0 for one after each step.
        on_failure: Called whenever a checkpoint cannot be written.
        shared: Whether other processes use the same folder; they must all say so.

    Attributes:
        memory: Bytes of the states that may be in memory.
        loads: How often a state was loaded from disk, or made.
        evictions: How often a state was put to disk to make room.

    Raises:
        ValueError: ``limits.memory`` is less than one state, or a folder belongs to another bundle.
    """

    def __init__(
        self,
        adapters: Adapters,
        limits: StreamLimits,
        state: Path | None,
        checkpoint_seconds: float = 30.0,
        on_failure: Callable[[], None] = lambda: None,
        shared: bool = False,
    ) -> None:
        self.limits, self._adapters, self._state = limits, adapters, state
        self._claims = Claims(state / _CLAIMS) if shared and state is not None else None
        self._seconds, self._on_failure = checkpoint_seconds, on_failure
        self._started = time.monotonic()
        self.loads = self.evictions = 0
        self.memory = max(_LEAST, 2 * adapters.state_bytes) if limits.memory is None else limits.memory
        if self.memory < adapters.state_bytes:
            raise ValueError(
                f"Expected `memory` to hold the state of one stream, {adapters.state_bytes} bytes, but got "
                f"{self.memory}. Raise it, or choose a method or network with a smaller state."
            )
        self._default = self._make(DEFAULT)
        self._streams = {DEFAULT: self._default} if self._claims is None else {}

    def begin(self) -> None:
        """Load the default stream and add the others that are on the disk, which are loaded when they are needed.

        Where other processes share the folder, no stream is used before it is needed; for errors see `StateStore`.
        """
        if self._claims is not None:
            self._default.engine.store.begin()  # checks whose folder it is
            return
        self._default.engine.resume()
        if self._state is None or not (folder := self._state / _FOLDER).is_dir():
            return
        for path in sorted(folder.iterdir()):
            if path.name.startswith("."):  # it was being deleted
                shutil.rmtree(path)
            elif _NAME.fullmatch(path.name) and path.is_dir() and path.name not in self._streams:
                stream = self._make(path.name)
                stream.engine.store.begin()
                self._streams[path.name] = stream

    def all(self) -> list[Stream]:
        """Return all streams, the oldest first."""
        return list(self._streams.values())

    @property
    def default(self) -> Stream:
        """The stream of the routes that name none; a stand-in at its start while another process may use it."""
        return self._streams.get(DEFAULT, self._default)

    def find(self, name: str) -> Stream:
        """Return a stream; raise `RefusedError` (422, 404 or 409) if there is none of that name.

        Where several processes share the folder, a stream is taken if it is free; 503 if another process uses it.
        """
        stream = self._streams.get(check_name(name)) or self._take_kept(name)
        if stream is None:
            detail = f"There is no stream {name!r}. A request that adapts makes it, or PUT /v1/streams/{name} does."
            raise RefusedError(404, detail)
        if stream.closing:
            raise RefusedError(409, f"The stream {name!r} is being deleted. Try again in a moment.", Retry_After="1")
        if stream.leaving:
            raise _elsewhere(name)
        return stream

    def find_or_make(self, name: str) -> tuple[Stream, bool]:
        """Return a stream and whether it is new; raise `RefusedError` as `find`, and 409 if there are too many."""
        if check_name(name) in self._streams or self._take_kept(name) is not None:
            return self.find(name), False
        if self._count() >= self.limits.streams:
            most = f"There are {self.limits.streams} streams already, the most allowed."
            raise RefusedError(409, f"{most} Delete one, or raise --streams.")
        if self._claims is not None and not self._claims.take(name):
            raise _elsewhere(name)
        self._streams[name] = self._make(name)
        return self._streams[name], True

    def take_free(self, chooses: Callable[[str], bool], lock: threading.Condition) -> None:
        """Take the streams with a chosen name that have adapted and that no process uses; log those it cannot take.

        The lock is held for one stream at a time. Each stream needs an open file: when there are no more, some streams
        are given back.
        """
        if self._claims is None:
            return
        try:
            names = [name for name in [DEFAULT, *self._kept()] if name not in self._streams and chooses(name)]
        except OSError as error:
            _log.warning("Streams that no process uses are not merged, as they cannot be listed: %s", error)
            return
        taken: list[Stream] = []
        for name in names:
            try:
                if self._has_adapted(name):
                    with lock, suppress(RefusedError):  # another process uses it
                        taken += [] if name in self._streams or (new := self._take_kept(name)) is None else [new]
            except OSError as error:
                _log.warning("The stream %s is not merged, as it cannot be taken: %s", name, error)
                if error.errno in _NO_FILES_LEFT:
                    with lock:
                        for stream in taken[-_SPARE_FILES:]:
                            if not stream.queue:
                                self.hand_over(stream)
                    return

    def ask_for(self, name: str) -> bool:
        """Return whether no other process uses a stream; ask the one that does to hand it over."""
        return self._claims is None or self._claims.ask(check_name(name))

    def hand_over_asked(self, lock: threading.Condition) -> None:
        """Save the streams that other processes ask for, and give them up; one that cannot be saved stays.

        The streams are changed while the lock is held, and saved while it is not. Streams with waiting requests stay.
        """
        if self._claims is None:
            return
        try:
            names = self._claims.asked()
        except OSError as error:
            _log.warning("Cannot look which streams other processes ask for: %s", error)
            return
        if not names:
            return
        with lock:
            found = [self._streams[name] for name in names if name in self._streams]
            asked = [stream for stream in found if not stream.queue and not stream.closing]
            for stream in asked:
                stream.leaving = True
        for stream in asked:
            engine = stream.engine
            done = engine.saved or engine.lost is not None or engine.save()
            with lock:
                stream.leaving = False
                if done:
                    self.hand_over(stream)

    def hand_over(self, stream: Stream) -> None:
        """Give a stream up that was saved, so that another process may take it."""
        stream.engine.store.close()
        del self._streams[stream.name]
        if self._claims is not None:
            self._claims.release(stream.name)

    def delete(self, stream: Stream) -> None:
        """Remove a stream, its state on the disk too."""
        stream.engine.store.remove()
        self.hand_over(stream)

    def make_room(self, using: Stream) -> None:
        """Put states to disk that are needed last, until the rest fits into memory with the one in use.

        Those go first for which no request waits, the one that was not used for longest before others; then, as
        streams take turns, the one that was just served.

        Raises:
            RefusedError: 503 if the one in use is not in memory, and the others cannot be put to disk.
        """
        needed = 0 if using.engine.awake else self._adapters.state_bytes
        self.loads += not using.engine.awake
        held = self.held() + needed
        others = [stream for stream in self._streams.values() if stream.engine.awake and stream is not using]
        for stream in sorted(others, key=_needed_last):
            if held <= self.memory:
                return
            size = stream.engine.nbytes
            if stream.engine.sleep():
                held -= size
                self.evictions += 1
        if held > self.memory and using.engine.awake:
            using.engine.save()  # which frees the journal
        elif needed and any(stream.engine.awake for stream in others) and held > self.memory:
            detail = "The states of other streams cannot be written to the disk, so there is no memory for this one."
            raise RefusedError(503, detail, Retry_After="30")

    def close(self) -> None:
        """Remove temporary folders, and give up what is shared with other processes."""
        for stream in self.all():
            stream.engine.store.close()
        if self._claims is not None:
            self._claims.close()

    def held(self) -> int:
        """Return the bytes of the states in memory, journals included."""
        return sum(stream.engine.nbytes for stream in self._streams.values())

    def _count(self) -> int:
        """How many streams there are, those that other processes use included."""
        kept = [] if self._claims is None else self._kept()
        return len({DEFAULT, *self._streams, *kept})

    def _kept(self) -> list[str]:
        """The names of the streams on the disk, without the default one."""
        if self._state is None or not (folder := self._state / _FOLDER).is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))

    def _take_kept(self, name: str) -> Stream | None:
        """Take a stream of the shared folder, if there is one; raise `RefusedError` (503) if another process has it."""
        if self._claims is None or not self._is_kept(name):
            return None
        if not self._claims.take(name):
            raise _elsewhere(name)
        try:
            if self._is_kept(name):
                self._streams[name] = self._make(name)
        finally:
            if name not in self._streams:  # deleted by the process that had it, or it cannot be read
                self._claims.release(name)
        return self._streams.get(name)

    def _is_kept(self, name: str) -> bool:
        folder = self._folder(name)
        return name == DEFAULT or (folder is not None and folder.is_dir())

    def _has_adapted(self, name: str) -> bool:
        folder = self._folder(name)
        return folder is not None and newest_checkpoint(folder) > 0

    def _folder(self, name: str) -> Path | None:
        return self._state if name == DEFAULT or self._state is None else self._state / _FOLDER / name

    def _make(self, name: str) -> Stream:
        folder = self._folder(name)
        store = StateStore(folder, self._adapters.bundle, self._seconds, self._on_failure)
        kept = _KEPT if name == DEFAULT else _KEPT_OF_MANY
        return Stream(name, Engine(self._adapters, store=store), History(kept, self._started))


def _needed_last(stream: Stream) -> tuple[bool, float]:
    """What sorts streams so that those come first whose states are probably needed last."""
    waits = bool(stream.queue)
    return waits, -stream.used if waits else stream.used


def _elsewhere(name: str) -> RefusedError:
    detail = f"Another replica is handing the stream {name!r} over. Try again in a moment."
    return RefusedError(503, detail, Retry_After="1")
