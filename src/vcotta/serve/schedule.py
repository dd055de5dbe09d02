"""Which stream's requests are served next, and how many of them together: streams take turns, batch by batch.

A request with at least ``pool`` images is a batch of its own. Smaller ones that follow each other in a stream are
pooled, because the batch statistics of a few images are poor: until the next would make more than ``pool`` images, or
``wait`` seconds have passed since the first. Predictions without adaptation are never pooled.
"""

from __future__ import annotations

import time
from collections import deque

from vcotta.serve.jobs import Job
from vcotta.serve.requests import RefusedError
from vcotta.serve.streams import Stream

__all__ = ["Schedule"]


class Schedule:
    """The streams with waiting requests, in the order of their turns; the caller holds a lock.

    Args:
        pool: Small requests are pooled up to this many images.
        wait: Seconds a small request waits for others.

    Attributes:
        waiting: Images that wait, of all streams.
    """

    def __init__(self, pool: int, wait: float) -> None:
        self.pool, self.wait = pool, wait
        self.waiting = 0
        self._turns: deque[Stream] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def add(self, stream: Stream, job: Job) -> None:
        """Let a request wait behind those of its stream."""
        if not stream.queue:
            self._turns.append(stream)
        stream.queue.append(job)
        stream.waiting += len(job)
        self.waiting += len(job)

    def check_room(self, stream: Stream, job: Job, most: int, most_of_all: int) -> None:
        """Raise `RefusedError` (429) if so many images, or as many requests, of its stream or of all wait already."""
        if stream.waiting + len(job) > most or len(stream.queue) >= most:  # a reset has no images
            detail = (
                f"Expected at most {most} images and as many requests to wait, but {stream.waiting} images in "
                f"{len(stream.queue)} requests already do. Try again in a moment."
            )
        elif self.waiting and self.waiting + len(job) > most_of_all:
            detail = (
                f"Expected at most {most_of_all} images of all streams to wait, but {self.waiting} already do. "
                "Try again in a moment."
            )
        else:
            return
        raise RefusedError(429, detail, Retry_After="1")

    def next(self) -> tuple[Stream, list[Job]] | float | None:
        """Take the next batch; or return the seconds until there is one, None if nothing waits."""
        now, soonest = time.monotonic(), None
        for place, stream in enumerate(self._turns):
            count, left = self._ready(stream, now)
            if left <= 0:
                del self._turns[place]
                jobs = [self._take(stream) for _ in range(count)]
                if stream.queue:
                    self._turns.append(stream)
                return stream, jobs
            soonest = left if soonest is None else min(soonest, left)
        return soonest

    def clear(self, stream: Stream) -> list[Job]:
        """Take all requests of a stream."""
        if stream.queue:
            self._turns.remove(stream)
        return [self._take(stream) for _ in range(len(stream.queue))]

    def _take(self, stream: Stream) -> Job:
        job = stream.queue.popleft()
        stream.waiting -= len(job)
        self.waiting -= len(job)
        return job

    def _ready(self, stream: Stream, now: float) -> tuple[int, float]:
        """How many of the stream's requests make its next batch, and the seconds until it is complete."""
        first, images = stream.queue[0], 0
        if first.kind != "adapt" or stream.pinned:
            return 1, 0.0
        for count, job in enumerate(stream.queue):
            if job.kind != "adapt" or (count and images + len(job) > self.pool):
                return count, 0.0
            images += len(job)
            if images >= self.pool:
                return count + 1, 0.0
        return len(stream.queue), first.accepted + self.wait - now
