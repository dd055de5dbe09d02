"""A queue of requests, and one worker thread that serves them in order.

A request with at least ``pool`` images is a batch of its own. Smaller ones that follow each other are pooled, because
the batch statistics of a few images are poor: until the next would make more than ``pool`` images, or ``wait`` seconds
have passed since the first. Predictions without adaptation are never pooled. So with requests of ``pool`` images or
more, or ``pool=1``, answers depend only on the order of the requests, not on the clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vcotta._util.locks import locked
from vcotta._version import __version__
from vcotta.nn.runtime import Runtime
from vcotta.serve.bundle import Bundle
from vcotta.serve.diversity import DiversityEvent
from vcotta.serve.engine import Answer, Engine, StateLostError
from vcotta.serve.jobs import Job, Served, replies, stopping
from vcotta.serve.logs import log_event, log_message
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.state_store import StateStore

__all__ = ["Service"]

_log = logging.getLogger("vcotta.serve")


class Service:
    """A context manager that serves requests within its block.

    At the end it finishes the current batch, refuses the waiting requests (503), and saves the state.

    Args:
        bundle: The bundle to serve.
        state: Folder of the checkpoints; None if the state need not survive.
        limits: Bounds on requests.
        pool: Small requests are pooled up to this many images; None for the bundle's batch size.
        wait: Seconds a small request waits for others.
        checkpoint_seconds: Seconds between two checkpoints.
        runtime: Device and precision.
        trusted: As for `Bundle.build_network`.

    Raises:
        BlockingIOError: Another server uses the state folder.
        ValueError: The bundle's network cannot be built, or the state folder is of another bundle.

    Attributes:
        bundle: The bundle without its tensors, which the adapter has copied.
        engine: The adapter.
        metrics: Counters and the latest batches.
        diversity: Whether the latest batches seem to hold few classes.
        waiting: Number of images that wait for the adapter.
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
        self.bundle = replace(bundle, weights={}, prepared={})
        self.state, self.limits = state, limits or Limits()
        self.pool, self.wait = bundle.batch_size if pool is None else pool, wait
        self.metrics, self.diversity = Metrics(), DiversityEvent()
        store = StateStore(state, self.bundle, checkpoint_seconds, self.metrics.failed_checkpoints.inc)
        self.engine = Engine(bundle, runtime, trusted, self.pool, store=store)
        self.metrics.describe(version=__version__, method=bundle.method, bundle=bundle.sha256[:12])
        self.metrics.watch(
            {
                "steps": lambda: self.engine.adapter.steps,
                "changes": lambda: self.engine.changes,
                "waiting_images": lambda: self.waiting,
            }
        )
        self.waiting = 0
        self._queue: deque[Job] = deque()
        self._ready = threading.Condition()
        self._stopping = False
        self._worker = threading.Thread(target=self._work, name="vcotta-adapter", daemon=True)
        self._held = ExitStack()

    def __enter__(self) -> Service:
        if self.state is not None:
            busy = f"Expected {self.state} to be free, but another server is using it."
            self._held.enter_context(locked(self.state / ".lock", busy))
        self._held.callback(self.engine.store.close)
        try:
            self.engine.resume()
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

    def predict(
        self,
        images: Tensor,
        *,
        adapt: bool = True,
        coverage: float | None = None,
        request: str = "",
        render: Callable[[Served], bytes] | None = None,
    ) -> Future[Served]:
        """Queue a request; its future always gets an answer or a `RefusedError`.

        Args:
            images: The images.
            adapt: Whether to adapt to them.
            coverage: As for `Engine.predict`.
            request: Name of the request in the log.
            render: Makes the body of the answer; if it raises, the step is undone.

        Raises:
            RefusedError: 429 if too many images are waiting, 503 if the server is stopping.
        """
        return self._submit(Job("adapt" if adapt else "predict", images, coverage, request, render))

    def reset(self) -> Future[Served]:
        """Queue a return to the start, behind the waiting requests; errors as for `predict`."""
        return self._submit(Job("reset", torch.empty(0)))

    @property
    def alive(self) -> bool:
        """Whether the worker is running and not about to stop."""
        return self._worker.is_alive() and not self._stopping

    def _submit(self, job: Job) -> Future[Served]:
        with self._ready:
            if not self.alive:
                raise stopping()
            most = self.limits.queue
            if self.waiting + len(job) > most or len(self._queue) >= most:  # a reset has no images
                detail = (
                    f"Expected at most {most} images and as many requests to wait, but {self.waiting} images in "
                    f"{len(self._queue)} requests already do. Try again in a moment."
                )
                raise RefusedError(429, detail, Retry_After="1")
            job.future.set_running_or_notify_cancel()  # an accepted request can no longer be cancelled
            self._queue.append(job)
            self.waiting += len(job)
            self._ready.notify()
        return job.future

    def _stop(self) -> None:
        """Accept no more requests, and refuse those that wait."""
        with self._ready:
            self._stopping = True
            while self._queue:
                self._take().future.set_exception(stopping())
            self._ready.notify()

    # Called by the worker only.

    def _work(self) -> None:
        try:
            self._serve_all()
        finally:  # however the worker ends, no request waits for ever
            self._stop()
        if not self.engine.saved:
            self.engine.save()

    def _serve_all(self) -> None:
        while (jobs := self._next_batch()) is not None:
            try:
                if jobs:
                    self._serve(jobs)
            except Exception as error:  # the next batch must still be served
                if not isinstance(error, StateLostError):  # which was logged when the state was lost
                    _log.exception("A batch could not be served")
                self._refuse(jobs, error)
            if (due := self.engine.due()) is not None and due <= 0:
                self.engine.save()

    def _next_batch(self) -> list[Job] | None:
        """Wait for the jobs of the next batch; an empty list if a checkpoint is due first, None at the end."""
        with self._ready:
            if not self._queue and not self._stopping:
                self._ready.wait(self.engine.due())
            if not self._queue:
                return None if self._stopping else []
            jobs = [self._take()]
            while self._wants_more(jobs):
                if self._queue:
                    jobs.append(self._take())
                    continue
                left = jobs[0].accepted + self.wait - time.monotonic()
                if left <= 0 or self._stopping or not self._ready.wait(left):
                    break
            return jobs

    def _take(self) -> Job:
        job = self._queue.popleft()
        self.waiting -= len(job)
        return job

    def _wants_more(self, jobs: Sequence[Job]) -> bool:
        """Whether the next job, if there is one, belongs to this batch."""
        images = sum(map(len, jobs))
        if jobs[0].kind != "adapt" or images >= self.pool:
            return False
        following = self._queue[0] if self._queue else None
        return following is None or (following.kind == "adapt" and images + len(following) <= self.pool)

    def _serve(self, jobs: list[Job]) -> None:
        if jobs[0].kind == "reset":
            self.engine.reset()
            self.diversity = DiversityEvent()
            empty = Answer(torch.empty(0), torch.empty(0), {}, {})
            jobs[0].future.set_result(Served(empty, 0, self.engine.changes, 0, 0, 0))
        elif jobs[0].kind == "predict":
            answer = self.engine.predict(jobs[0].images, jobs[0].coverage)
            (reply,) = replies(jobs, answer, self.engine.adapter.steps, self.engine.changes)
            jobs[0].future.set_result(reply)
        else:
            self._adapt(jobs)

    def _adapt(self, jobs: list[Job]) -> None:
        """Adapt to a pooled batch; if that fails, as if the requests that fail on their own had not been sent."""
        started = time.monotonic()
        made: list[Served] = []

        def finish(answer: Answer) -> None:  # while the step can be undone: an answer must not fail after it
            steps, changes = self.engine.adapter.steps, self.engine.changes + 1
            made.extend(replies(jobs, answer, steps, changes))
            distance = self.engine.adapter.parameter_distance()
            self.metrics.add_batch(answer, time.monotonic() - started, len(jobs), steps, changes, distance)

        try:
            answer = self.engine.adapt(torch.cat([job.images for job in jobs]), finish)
        except StateLostError:
            self.metrics.failed_batches.inc()
            raise
        except Exception as error:
            self.metrics.failed_batches.inc()
            _log.exception("A batch of %d requests failed and was undone", len(jobs))
            if len(jobs) == 1:
                self._refuse(jobs, error)
            else:
                self._adapt_without_failing(jobs)
            return
        for job, reply in zip(jobs, made, strict=True):
            job.future.set_result(reply)
        self._log_events(answer, made[0], [job.request for job in jobs])

    def _log_events(self, answer: Answer, reply: Served, requests: list[str]) -> None:
        """Log what the guard did, and the start and end of low class diversity."""
        notes = answer.notes
        counts = {"step": reply.step, "changes": reply.changes, "images": reply.batch_images, "requests": requests}
        guard, phase = notes.get("guard") or {"action": "note"}, self.diversity.see(notes)
        if guard["action"] != "note":
            log_event("guard", logging.WARNING, **guard, **counts)
        if phase is not None:
            level = logging.WARNING if phase == "start" else logging.INFO
            found = {name: notes.get(name) for name in ("effective_classes", "class_diversity")}
            rounded = {name: None if value is None else round(value, 3) for name, value in found.items()}
            log_event("diversity", level, phase=phase, **rounded, **counts)
        for text in () if self.diversity.low else answer.warned:  # the event says it
            log_message(text)

    def _adapt_without_failing(self, jobs: list[Job]) -> None:
        good = []
        for job in jobs:
            try:
                self.engine.try_out(job.images)
                good.append(job)
            except StateLostError:
                raise
            except Exception as error:
                self._refuse([job], error)
        if len(good) == len(jobs):  # each succeeds on its own, they only fail together
            for job in jobs:
                self._adapt([job])
        elif good:
            self._adapt(good)

    def _refuse(self, jobs: Sequence[Job], error: Exception) -> None:
        lost = isinstance(error, StateLostError)
        detail = str(error) if lost else "The adapter failed on these images. Its state is as it was before."
        for job in jobs:
            if not job.future.done():
                refusal = RefusedError(503 if lost else 500, detail)
                refusal.__cause__ = error
                job.future.set_exception(refusal)
