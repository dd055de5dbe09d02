"""One adapter, many requests: a queue, and one worker that serves it in order.

Requests are answered in the order in which they were accepted, by one thread. A request with at least ``pool`` images
is a batch of its own. Smaller ones that follow each other are pooled, in order, until the next would make more than
``pool`` images or ``wait`` seconds have passed since the first came: networks are normalised by the statistics of their
batch, and a handful of images has poor ones. A prediction without adaptation is never pooled. So with requests of
``pool`` images or more, or ``pool=1``, answers depend on the order of the requests alone, not on the clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vcotta.locks import locked
from vcotta.runtime import Runtime
from vcotta.serve.bundle import Bundle
from vcotta.serve.engine import Answer, Engine
from vcotta.serve.history import History
from vcotta.serve.keeper import Keeper
from vcotta.serve.limits import Limits, RefusedError

__all__ = ["Served", "Service"]

_log = logging.getLogger("vcotta.serve")


@dataclass(frozen=True)
class Served:
    """An answer, and where it came from.

    Attributes:
        answer: What the adapter said of this request's images.
        step: The number of the batch since the start or the latest reset.
        changes: How often the state has changed, resets and earlier lives of the server included.
        batch_images: Images in the batch.
        batch_requests: Requests that were pooled into it.
        offset: Where this request's images are in it.
    """

    answer: Answer
    step: int
    changes: int
    batch_images: int
    batch_requests: int
    offset: int


@dataclass
class _Job:
    kind: Literal["adapt", "look", "reset"]
    images: Tensor
    coverage: float | None = None
    came: float = field(default_factory=time.monotonic)
    future: Future[Served] = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.images)


class Service:
    """A context manager: inside it requests are served.

    At its end the batch in hand is finished, what still waits is refused (503), and the state is saved.

    Args:
        bundle: What to serve.
        state: Folder of the checkpoints; None keeps nothing.
        limits: How much may wait.
        pool: Images up to which small requests are pooled; None for the bundle's batch size.
        wait: Seconds a small request waits for others.
        checkpoint_seconds: Seconds between two checkpoints.
        runtime: Device and precision.
        trusted: The one factory outside vcotta, torchvision and timm that the bundle may name.

    Raises:
        BlockingIOError: Another server uses the state folder.
        ValueError: The bundle's network cannot be made, or the state folder is another bundle's.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        state: Path | None = None,
        limits: Limits | None = None,
        pool: int | None = None,
        wait: float = 0.02,
        checkpoint_seconds: float = 30.0,
        runtime: Runtime | None = None,
        trusted: str | None = None,
    ) -> None:
        self.bundle, self.state, self.limits = bundle, state, limits or Limits()
        self.pool, self.wait = bundle.batch_size if pool is None else pool, wait
        self.engine = Engine(bundle, runtime, trusted, self.pool)
        self.keeper = Keeper(state, bundle, checkpoint_seconds)
        self.history = History()
        self.changes = self.failed_batches = 0
        self._waiting: deque[_Job] = deque()
        self._waiting_images = 0
        self._ready = threading.Condition()
        self._stopping = False
        self._worker = threading.Thread(target=self._work, name="vcotta-adapter", daemon=True)
        self._held = ExitStack()

    def __enter__(self) -> Service:
        if self.state is not None:
            busy = f"Expected {self.state} to be free, but another server is using it."
            self._held.enter_context(locked(self.state / ".lock", busy))
        try:
            self.changes = self.keeper.restore(self.engine.adapter)
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

    def predict(self, images: Tensor, *, adapt: bool = True, coverage: float | None = None) -> Future[Served]:
        """Queue a request of valid images; whoever gets a future will get an answer or the reason why not.

        Raises:
            RefusedError: 429 if too many images are waiting, 503 if the server is stopping.
        """
        return self._submit(_Job("adapt" if adapt else "look", images, coverage))

    def reset(self) -> Future[Served]:
        """Queue a return to the start, behind what is waiting already.

        Raises:
            RefusedError: As for `predict`.
        """
        return self._submit(_Job("reset", torch.empty(0)))

    @property
    def waiting(self) -> int:
        """Images that wait for the adapter."""
        return self._waiting_images

    @property
    def alive(self) -> bool:
        """Whether requests are being served."""
        return self._worker.is_alive() and not self._stopping

    def _submit(self, job: _Job) -> Future[Served]:
        with self._ready:
            if not self.alive:
                raise _stopping()
            most = self.limits.queue
            if self._waiting_images + len(job) > most or len(self._waiting) >= most:  # a reset has no images
                raise RefusedError(
                    429,
                    f"Expected at most {most} images and as many requests to wait, but {self._waiting_images} images "
                    f"in {len(self._waiting)} requests do already. Try again in a moment.",
                    Retry_After="1",
                )
            job.future.set_running_or_notify_cancel()  # an accepted request is served, wanted or not
            self._waiting.append(job)
            self._waiting_images += len(job)
            self._ready.notify()
        return job.future

    def _stop(self) -> None:
        """Take no more requests, and refuse those that wait."""
        with self._ready:
            self._stopping = True
            while self._waiting:
                self._take().future.set_exception(_stopping())
            self._ready.notify()

    # Called by the worker alone.

    def _work(self) -> None:
        try:
            self._serve_all()
        finally:  # whatever ended it, nobody waits for an answer that cannot come
            self._stop()
        self.keeper.save(self.engine.adapter, self.changes)

    def _serve_all(self) -> None:
        while (jobs := self._next_batch()) is not None:
            try:
                if jobs:
                    self._serve(jobs)
            except Exception as error:  # told to those who asked; the next batch is none of their business
                _log.exception("A batch could not be served")
                self._refuse(jobs, error)
            if (due := self.keeper.due(self.changes)) is not None and due <= 0:
                self.keeper.save(self.engine.adapter, self.changes)

    def _next_batch(self) -> list[_Job] | None:
        """Wait for the jobs of the next batch; none if a checkpoint is due first, None when the end has come."""
        with self._ready:
            if not self._waiting and not self._stopping:
                self._ready.wait(self.keeper.due(self.changes))
            if not self._waiting:
                return None if self._stopping else []
            jobs = [self._take()]
            while self._wants_more(jobs):
                if self._waiting:
                    jobs.append(self._take())
                    continue
                left = jobs[0].came + self.wait - time.monotonic()
                if left <= 0 or self._stopping or not self._ready.wait(left):
                    break
            return jobs

    def _take(self) -> _Job:
        job = self._waiting.popleft()
        self._waiting_images -= len(job)
        return job

    def _wants_more(self, jobs: Sequence[_Job]) -> bool:
        """Whether the next job in line, if there is one, belongs into this batch."""
        images = sum(map(len, jobs))
        if jobs[0].kind != "adapt" or images >= self.pool:
            return False
        following = self._waiting[0] if self._waiting else None
        return following is None or (following.kind == "adapt" and images + len(following) <= self.pool)

    def _serve(self, jobs: list[_Job]) -> None:
        if jobs[0].kind == "reset":
            self.engine.reset()
            self.changes += 1
            nothing = Answer(torch.empty(0, 0), torch.empty(0), {}, {})
            jobs[0].future.set_result(Served(nothing, 0, self.changes, 0, 0, 0))
        elif jobs[0].kind == "look":
            answer = self.engine.look(jobs[0].images, jobs[0].coverage)
            self._reply(jobs, answer)
        else:
            self._adapt(jobs)

    def _adapt(self, jobs: list[_Job]) -> None:
        """Adapt to a pooled batch; if it fails, to what is left without the requests that fail on their own.

        The others get what they would have got had those never been sent.
        """
        started = time.monotonic()
        try:
            answer = self.engine.adapt(torch.cat([job.images for job in jobs]))
        except Exception as error:
            self.failed_batches += 1
            _log.exception("A batch of %d requests failed; the adapter is as it was before", len(jobs))
            self._adapt_without_the_failing(jobs, error)
            return
        self.changes += 1
        self.history.add(
            answer, time.monotonic() - started, len(jobs), self.engine.adapter.steps, self.changes, self.engine.drift()
        )
        self._reply(jobs, answer)

    def _adapt_without_the_failing(self, jobs: list[_Job], error: Exception) -> None:
        if len(jobs) == 1:
            self._refuse(jobs, error)
            return
        good = []
        for job in jobs:
            try:
                self.engine.try_out(job.images)
                good.append(job)
            except Exception as alone:
                self._refuse([job], alone)
        if len(good) < len(jobs):
            if good:
                self._adapt(good)
            return
        for job in jobs:  # each is fine alone, only together they are not
            self._adapt([job])

    def _reply(self, jobs: Sequence[_Job], answer: Answer) -> None:
        images, offset, steps = sum(map(len, jobs)), 0, self.engine.adapter.steps
        for job in jobs:
            part = answer.part(offset, offset + len(job))
            job.future.set_result(Served(part, steps, self.changes, images, len(jobs), offset))
            offset += len(job)

    def _refuse(self, jobs: Sequence[_Job], error: Exception) -> None:
        reason = "The adapter failed on these images. Its state is as it was before them."
        for job in jobs:
            if not job.future.done():
                refusal = RefusedError(500, reason)
                refusal.__cause__ = error
                job.future.set_exception(refusal)

    def facts(self) -> dict[str, Any]:
        """What may be told of the state, plain values."""
        adapter = self.engine.adapter
        return {
            "method": adapter.name,
            "steps": adapter.steps,
            "skipped": adapter.skipped,
            "changes": self.changes,
            "waiting": self.waiting,
        }


def _stopping() -> RefusedError:
    return RefusedError(503, "The server is stopping. Try again when it is back.", Retry_After="5")
