"""One worker thread that serves the requests of all streams: those of one stream in order, the streams in turn.

With requests of ``pool`` images or more, or ``pool=1``, a stream's answers depend only on the order of its requests,
not on the clock, and never on what other streams are sent.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vcotta._util.locks import locked
from vcotta._version import __version__
from vcotta.nn.runtime import Runtime
from vcotta.serve.adapters import Adapters
from vcotta.serve.batches import serve_batch
from vcotta.serve.bundle import Bundle
from vcotta.serve.claims import LOOK_SECONDS
from vcotta.serve.engine import Engine, StateLostError
from vcotta.serve.jobs import Job, Served, nothing_served, refuse, stopping
from vcotta.serve.joint_merge import SILENT_SECONDS, MergePart
from vcotta.serve.logs import log_event
from vcotta.serve.merging import MergeRule, Merging
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.schedule import Schedule
from vcotta.serve.streams import DEFAULT, Stream, StreamLimits, Streams

__all__ = ["Service"]

_log = logging.getLogger("vcotta.serve")


class Service:
    """A context manager that serves requests within its block.

    At the end it finishes the current batch, refuses the waiting requests (503), and saves the states.

    Args:
        bundle: The bundle to serve.
        state: Folder of the checkpoints; None if the states need not survive.
        limits: Bounds on requests.
        streams: Bounds on streams.
        pool: Small requests are pooled up to this many images; None for the bundle's batch size.
        wait: Seconds a small request waits for others.
        checkpoint_seconds: Seconds between two checkpoints of a stream; 0 for one before each answer.
        merging: Which streams are merged, and how often; None for all, when the operator asks.
        runtime: Device and precision.
        trusted: As for `Bundle.build_network`.
        shared: Whether other processes serve the same state folder; each stream is then served by one at a time.
        merge_seconds: Seconds without an order after which a merge with these processes is given up.

    Raises:
        BlockingIOError: Another server uses the state folder, and it is not shared.
        ValueError: The bundle's network cannot be built, the state folder is of another bundle, or a service that
            shares it is to merge by itself.

    Attributes:
        bundle: The bundle without its tensors.
        streams: The streams.
        metrics: Counters of all streams.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        state: Path | None = None,
        limits: Limits | None = None,
        streams: StreamLimits | None = None,
        pool: int | None = None,
        wait: float = 0.02,
        checkpoint_seconds: float = 30.0,
        merging: MergeRule | None = None,
        runtime: Runtime | None = None,
        trusted: str | None = None,
        shared: bool = False,
        merge_seconds: float = SILENT_SECONDS,
    ) -> None:
        if shared and merging is not None and merging.every is not None:
            raise ValueError(
                "Expected `merging.every` to be None where processes share streams, but got "
                f"{merging.every:g}. Merge those of all processes with `vcotta.serve.joint_merge.JointMerge`."
            )
        self.state, self.limits, self.metrics, self.shared = state, limits or Limits(), Metrics(), shared
        self.pool = bundle.batch_size if pool is None else pool
        self._adapters = Adapters(bundle, runtime, trusted, self.pool)
        self.bundle = self._adapters.bundle
        failed = self.metrics.failed_checkpoints.inc
        self.streams = Streams(self._adapters, streams or StreamLimits(), state, checkpoint_seconds, failed, shared)
        self._merging = Merging(self.streams, merging or MergeRule(), self.metrics, bundle.method)
        self.metrics.describe(version=__version__, method=bundle.method, bundle=bundle.sha256[:12])
        self.metrics.watch(self)
        self._schedule = Schedule(self.pool, wait)
        self._parts: deque[MergePart] = deque()
        self._merge_seconds = merge_seconds
        self._ready = threading.Condition()
        self._stopping = False
        self._worker = threading.Thread(target=self._work, name="vcotta-adapter", daemon=True)
        self._held = ExitStack()

    def __enter__(self) -> Service:
        if self.state is not None and not self.shared:
            busy = f"Expected {self.state} to be free, but another server is using it."
            self._held.enter_context(locked(self.state / ".lock", busy))
        self._held.callback(self.streams.close)
        try:
            self.streams.begin()
        except BaseException:
            self._held.close()
            raise
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._worker.join()
        self._held.close()

    # Called by any thread.

    @property
    def engine(self) -> Engine:
        """The adapter of the default stream."""
        return self.streams.default.engine

    @property
    def waiting(self) -> int:
        """Number of images that wait for the adapter, of all streams."""
        return self._schedule.waiting

    @property
    def source_bytes(self) -> int:
        """Bytes of the source network, which all streams share."""
        return self._adapters.source_bytes

    @property
    def alive(self) -> bool:
        """Whether the worker is running and not about to stop."""
        return self._worker.is_alive() and not self._stopping

    @property
    def saved(self) -> bool:
        """Whether the state of every stream is on disk, or need not be."""
        return all(stream.engine.saved for stream in self.streams.all())

    def list_streams(self) -> list[Stream]:
        """Return all streams, the oldest first."""
        with self._ready:
            return self.streams.all()

    def find(self, name: str) -> Stream:
        """Return a stream; errors as for `Streams.find`."""
        with self._ready:
            return self.streams.find(name)

    def predict(
        self,
        images: Tensor,
        *,
        adapt: bool = True,
        coverage: float | None = None,
        request: str = "",
        render: Callable[[Served], bytes] | None = None,
        stream: str = DEFAULT,
    ) -> Future[Served]:
        """Queue a request; its future always gets an answer or a `RefusedError`.

        Args:
            images: The images.
            adapt: Whether to adapt to them, which makes the stream if there is none.
            coverage: As for `Engine.predict`.
            request: Name of the request in the log.
            render: Makes the body of the answer; if it raises, the step is undone.
            stream: Name of the stream.

        Raises:
            RefusedError: 429 if too many images are waiting, 503 if the server is stopping, 404, 409 or 422 if there
                is no such stream, or cannot be.
        """
        job = Job("adapt" if adapt else "predict", images, coverage, request, render)
        return self._submit(stream, job, make=adapt)[0]

    def make(self, name: str) -> tuple[Future[Served], bool]:
        """Make a stream if there is none of that name; return whether there was none. Errors as for `predict`."""

        def begin(stream: Stream) -> Served:
            stream.engine.store.begin()
            return nothing_served(stream.engine.changes)

        return self._act(name, begin, make=True)

    def reset(self, name: str = DEFAULT) -> Future[Served]:
        """Queue a return to the start, behind the waiting requests; errors as for `predict`."""

        def reset(stream: Stream) -> Served:
            stream.engine.reset()
            stream.forget()
            self.streams.make_room(stream)
            return nothing_served(stream.engine.changes)

        return self._act(name, reset)[0]

    def pin(self, name: str, pinned: bool) -> Future[Served]:
        """Pin a stream to the source network from the next request on, or release it; errors as for `predict`."""

        def pin(stream: Stream) -> Served:
            stream.pin(pinned)
            log_event("pin", logging.WARNING, stream=name, pinned=pinned)
            return nothing_served(stream.engine.changes)

        return self._act(name, pin)[0]

    def export(self, name: str, path: Path) -> Future[Served]:
        """Write a stream's adapter to a file that `vcotta.load` reads, in its turn; errors as for `predict`."""

        def export(stream: Stream) -> Served:
            self.streams.make_room(stream)
            stream.engine.export(path)
            return nothing_served(stream.engine.changes)

        return self._act(name, export)[0]

    def merge(self) -> Future[Served]:
        """Merge what streams have learned, in turn; the answer's body is a `MergeOutcome`. Errors as for `predict`.

        Where other processes share the streams, 409: see `join_merge`.
        """
        if self.shared:
            detail = "This replica has only some of the streams. Send POST /v1/merge to the server's address."
            raise RefusedError(409, detail)

        def merge(stream: Stream) -> Served:
            return replace(nothing_served(stream.engine.changes), body=self._merging.run().as_json())

        return self._act(DEFAULT, merge)[0]

    def join_merge(self) -> MergePart:
        """Let the worker follow the orders of a merge of several processes, after the batch it serves now."""
        part = MergePart()
        with self._ready:
            if not self.alive:
                raise stopping()
            self._parts.append(part)
            self._ready.notify()
        return part

    def delete(self, name: str) -> Future[Served]:
        """Delete a stream after the requests that wait; later ones are refused. Errors as for `predict`."""
        if name == DEFAULT:
            raise RefusedError(409, "The stream 'default' cannot be deleted. Reset it instead.")

        def delete(stream: Stream) -> Served:
            try:
                with self._ready:
                    self.streams.delete(stream)
            except OSError as error:
                stream.closing = False
                raise RefusedError(503, f"The state of {name!r} cannot be removed from the disk: {error}") from error
            self.metrics.forget(name)
            return nothing_served(stream.engine.changes)

        return self._act(name, delete, closes=True)[0]

    def _act(
        self, name: str, act: Callable[[Stream], Served], *, make: bool = False, closes: bool = False
    ) -> tuple[Future[Served], bool]:
        job = Job("act")
        found: list[Stream] = []
        job.act = lambda: act(found[0])
        return self._submit(name, job, make=make, closes=closes, found=found)

    def _submit(
        self, name: str, job: Job, *, make: bool = False, closes: bool = False, found: list[Stream] | None = None
    ) -> tuple[Future[Served], bool]:
        with self._ready:
            if not self.alive:
                raise stopping()
            stream, new = self.streams.find_or_make(name) if make else (self.streams.find(name), False)
            self._schedule.check_room(stream, job, self.limits.queue, self.streams.limits.queue)
            if found is not None:
                found.append(stream)
            stream.closing = closes
            job.future.set_running_or_notify_cancel()  # an accepted request can no longer be cancelled
            self._schedule.add(stream, job)
            self._ready.notify()
        return job.future, new

    def _stop(self) -> None:
        """Accept no more requests, and refuse those that wait."""
        with self._ready:
            self._stopping = True
            for stream in self.streams.all():
                for job in self._schedule.clear(stream):
                    job.future.set_exception(stopping())
            for part in self._parts:
                part.close()
            self._ready.notify()

    # Called by the worker only.

    def _work(self) -> None:
        try:
            self._serve_all()
        finally:  # however the worker ends, no request waits for ever and all states are saved
            self._stop()
            try:
                self._follow_merges()
            finally:
                for stream in self.streams.all():
                    if not stream.engine.saved:
                        stream.engine.save()

    def _serve_all(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                stream, jobs = batch
                try:
                    self._serve(stream, jobs)
                except Exception as error:  # the next batch must still be served
                    if not isinstance(error, StateLostError | RefusedError):  # logged when the state was lost
                        _log.exception("A batch could not be served")
                    refuse(jobs, error)
            self._merging.run_if_due()
            self._follow_merges()
            self._save_due()
            self.streams.hand_over_asked(self._ready)

    def _next_batch(self) -> tuple[Stream, list[Job]] | tuple[()] | None:
        """Wait for the next batch; an empty one if there is something else to do first, None at the end."""
        with self._ready:
            while True:
                found = self._schedule.next()
                if isinstance(found, tuple):
                    return found
                if self._stopping:
                    return None
                if self._parts:
                    return ()
                checkpoint, merge = self._due(), self._merging.due()
                soonest = min((one for one in (checkpoint and checkpoint[0], merge) if one is not None), default=None)
                if soonest is not None and soonest <= 0:
                    return ()
                times = [found, soonest, LOOK_SECONDS if self.shared else None]
                wait = min((one for one in times if one is not None), default=None)
                if not self._ready.wait(wait) and self.shared:
                    return ()  # another process may have asked for a stream

    def _due(self) -> tuple[float, Stream] | None:
        """The stream whose checkpoint is due first, and in how many seconds."""
        found = ((stream.engine.due(), stream) for stream in self.streams.all())
        return min(((due, stream) for due, stream in found if due is not None), key=lambda pair: pair[0], default=None)

    def _follow_merges(self) -> None:
        """Do this process's part of merges, each until its end."""
        while self._parts:
            if not self._stopping:
                self.streams.take_free(self._merging.rule.chooses, self._ready)
            self._parts[0].follow(self._merging, self._merge_seconds)
            with self._ready:
                self._parts.popleft()  # until then `_stop` may end it

    def _save_due(self) -> None:
        """Save the state that is most overdue: one between two batches, so that requests do not wait for all."""
        if (due := self._due()) is not None and due[0] <= 0:
            due[1].engine.save()

    def _serve(self, stream: Stream, jobs: list[Job]) -> None:
        serve_batch(stream, jobs, self.streams, self.metrics)
