"""Merges the streams of several processes that share a state folder.

Each process stops between two batches, puts the states of its streams to disk and offers them. One process merges
these and writes the result to the shared folder. Then each writes a checkpoint for its own streams, and only if all
could do so they continue from these. Nothing is answered meanwhile, and no step is lost.

If a process is killed before all have written, no stream of the others is changed; after that all are merged. Its own
streams continue from their newest checkpoint, which may be the merged one.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vcotta._util.tensorfile import read_state, write_state
from vcotta.runs.checkpoints import KIND
from vcotta.serve.logs import log_event
from vcotta.serve.merging import ChangeWatch, MergeOutcome, MergeRule, Merging, Offer, failure_logged, fuse
from vcotta.serve.requests import RefusedError

__all__ = [
    "ORDER_SECONDS",
    "SILENT_SECONDS",
    "JointMerge",
    "MergeMember",
    "MergePart",
    "Reply",
    "merge_periodically",
]

ORDER_SECONDS = 300.0
"""Seconds in which all processes must have followed an order; then the merge has failed."""

SILENT_SECONDS = 3 * ORDER_SECONDS
"""Seconds a process waits for the next order; then it serves its streams again.

It is longer, so that a process that was quick does not give the merge up while a slow one may still write and both are
then told to continue from what was merged.
"""

_log = logging.getLogger("vcotta.serve")
_FILE = "merged.safetensors"


class MergePart:
    """The part of one process in a merge: orders that its worker follows one after the other, until the last one."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[Merging], Any], Future[Any], bool]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def order(self, act: Callable[[Merging], Any], last: bool = False) -> Future[Any]:
        """Let the worker do something; raise `RefusedError` (503) after the last order."""
        done: Future[Any] = Future()
        done.set_running_or_notify_cancel()  # an order can no longer be cancelled
        with self._lock:
            if self._over:
                raise RefusedError(503, "The streams are served again: the merge took too long, or the server stops.")
            self._over = last
            self._orders.put((act, done, last))
        return done

    def close(self) -> None:
        """Give the merge up, unless it is over; it counts as failed."""
        with suppress(RefusedError):
            self.order(partial(Merging.drop, failed=True), last=True)

    def follow(self, merging: Merging, seconds: float = SILENT_SECONDS) -> None:
        """Follow the orders until the last one, or until none has come for so long; called by the worker."""
        last = False
        while not last:
            try:
                act, done, last = self._orders.get(timeout=seconds)
            except queue.Empty:
                _log.warning("A merge was given up, as no order came for %g s", seconds)
                self.close()  # an order that came just now is followed first
                continue
            try:
                done.set_result(act(merging))
            except Exception as error:
                if not isinstance(error, RefusedError):
                    _log.exception("Streams could not be merged")
                done.set_exception(error)


@dataclass(frozen=True)
class Reply:
    """What a process says to an order: its offer if it was asked for one, or why it could not follow.

    Attributes:
        process: Its name.
        bundle: Hash of its bundle.
        offer: Its offer.
        status: As for `RefusedError`; 0 if it did what it was asked for.
        problem: As ``detail`` of `RefusedError`.
    """

    process: str
    bundle: str
    offer: Offer | None = None
    status: int = 0
    problem: str = ""


class MergeMember:
    """One of the processes that share streams, which takes part in one merge at a time.

    Args:
        join: Returns a part in a merge, whose orders the worker of this process follows from its next batch on.
        bundle: Hash of its bundle.
    """

    def __init__(self, join: Callable[[], MergePart], bundle: str) -> None:
        self._join, self._bundle = join, bundle
        self._name = secrets.token_hex(8)
        self._merge, self._part = "", MergePart()
        self._files: dict[str, Path] = {}

    async def follow(self, order: str, merge: str, *details: Any) -> Reply:
        """Follow an order of `JointMerge` for the merge of a name."""
        try:
            if order == "offer":
                self._part.close()  # whoever began it is gone
                self._merge, self._part = merge, self._join()
            elif merge != self._merge:
                raise RefusedError(503, "This process was started during the merge.")
            done = self._part.order(partial(getattr(self, f"_{order}"), *details), last=order in ("finish", "drop"))
            return Reply(self._name, self._bundle, await asyncio.wrap_future(done))
        except RefusedError as error:
            return Reply(self._name, self._bundle, None, error.status, error.detail)

    # Called by the worker.

    def _offer(self, merging: Merging) -> Offer:
        offer = merging.offer()
        self._files = offer.files
        return offer

    def _write(self, path: Path, takers: Sequence[str], merging: Merging) -> None:
        if own := [name for name in takers if name in self._files]:
            states = ((name, read_state(self._files[name], KIND)["adapter"]) for name in own)
            merging.write(states, read_state(path, KIND)["adapter"])

    def _finish(self, with_news: Sequence[str], refused: Sequence[str], merging: Merging) -> None:
        merging.finish(with_news, refused)

    def _drop(self, failed: bool, merging: Merging) -> None:
        merging.drop(failed)


class JointMerge:
    """Merges the streams of all processes; one merge at a time.

    Args:
        order_all: Sends an order to all processes, ``(order, merge, *details)`` of `MergeMember.follow`, and returns
            what they say; raises `RefusedError` (503) if one is lost meanwhile.
        rule: Which streams are merged.
    """

    def __init__(self, order_all: Callable[..., list[Reply]], rule: MergeRule) -> None:
        self._order_all, self._rule = order_all, rule
        self._watch = ChangeWatch()

    def run(self, folder: Path, only_changed: bool = False) -> MergeOutcome | None:
        """Merge the streams; return None if ``only_changed`` and none has changed since the latest merge.

        Args:
            folder: A folder that all processes can read; the merged state is there meanwhile.
            only_changed: Whether to do nothing if no stream has changed.

        Raises:
            RefusedError: 409 if fewer than two streams can be merged; 503 if states cannot be written, or a process is
                lost or does not answer.
        """
        began, merge, path = time.monotonic(), secrets.token_hex(8), folder / _FILE
        failed = False
        try:
            replies = self._ask("offer", merge)
            offers = [reply.offer for reply in replies if reply.offer is not None]
            changes = {name: version for offer in offers for name, version in sorted(offer.changes.items())}
            if only_changed and not self._watch.changed(changes):
                self._order_all("drop", merge, False)
                return None
            files = {name: path for offer in offers for name, path in offer.files.items()}
            found = fuse(dict(sorted(files.items())), self._rule.streams)
            write_state(path, KIND, {"adapter": found.learned})
            self._ask("write", merge, path, list(found.states), of=replies)
        except Exception as error:
            failed = not isinstance(error, RefusedError) or error.status >= 500
            with suppress(Exception):  # the error that follows says more
                self._order_all("drop", merge, failed)
            if isinstance(error, OSError):
                raise RefusedError(503, f"The merged state cannot be written: {error}", Retry_After="30") from error
            raise
        finally:
            with suppress(OSError):  # the next merge writes over it
                path.unlink(missing_ok=True)
        try:
            self._ask("finish", merge, found.with_news, found.refused, of=replies)
        except Exception as error:
            if not isinstance(error, RefusedError):
                _log.exception("A merge could not be finished")
            why = error if isinstance(error, RefusedError) else "see the log."
            detail = f"Merged states were written, but not every replica says that it continues from them: {why}"
            raise RefusedError(503, detail, Retry_After="30") from error
        self._watch.merged(changes, found.states)
        outcome = found.outcome(sorted(changes), began)
        log_event("merge", **asdict(outcome))
        return outcome

    def _ask(self, order: str, merge: str, *details: Any, of: Sequence[Reply] | None = None) -> list[Reply]:
        """Send an order; raise unless all processes followed it, or those of ``of``."""
        replies = self._order_all(order, merge, *details)
        asked = {reply.process for reply in (replies if of is None else of)}
        followed = [reply for reply in replies if reply.process in asked]
        if bad := next((reply for reply in followed if reply.status), None):
            raise RefusedError(bad.status, bad.problem, Retry_After="30")
        if len(followed) < len(asked) or len({reply.bundle for reply in followed}) != 1:
            raise RefusedError(503, "Replicas came or went during the merge. Try again later.", Retry_After="30")
        return followed


@contextmanager
def merge_periodically(merge: Callable[[], object], every: float | None) -> Iterator[None]:
    """Within the block, merge every so many seconds, never for None; a merge that fails is logged."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every):
            with failure_logged():
                merge()

    thread = threading.Thread(target=work, name="vcotta-merge", daemon=True)
    if every is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if every is not None:
            thread.join()
