"""What waits for the adapter, and what it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from vcotta.serve.engine import Answer, StateLostError
from vcotta.serve.requests import RefusedError

__all__ = ["Job", "Served", "nothing_served", "refuse", "replies", "stopping"]


@dataclass(frozen=True)
class Served:
    """The predictions for a request's images, and the batch they were part of; see `vcotta.serve.schemas.BatchInfo`.

    ``step`` is None while a pinned stream's state on the disk was not needed.
    ``body`` is what the request's ``render`` made of it, and ``saved`` the state version that a killed process would
    continue from, None if states need not survive.
    """

    answer: Answer
    step: int | None
    changes: int
    batch_images: int
    batch_requests: int
    offset: int
    body: bytes = b""
    saved: int | None = None


@dataclass
class Job:
    """A request that waits for the adapter: images to predict, or something to do (``act``) in its turn."""

    kind: Literal["adapt", "predict", "act"]
    images: Tensor = field(default_factory=lambda: torch.empty(0))
    coverage: float | None = None
    request: str = ""
    render: Callable[[Served], bytes] | None = None
    act: Callable[[], Served] | None = None
    accepted: float = field(default_factory=time.monotonic)
    future: Future[Served] = field(default_factory=Future)

    def __len__(self) -> int:
        return len(self.images)


def replies(jobs: Sequence[Job], answer: Answer, steps: int | None, changes: int) -> Iterator[Served]:
    """The part of a batch's answer that belongs to each request."""
    images, offset = sum(map(len, jobs)), 0
    for job in jobs:
        reply = Served(answer.part(offset, offset + len(job)), steps, changes, images, len(jobs), offset)
        yield reply if job.render is None else replace(reply, body=job.render(reply))
        offset += len(job)


def nothing_served(changes: int) -> Served:
    """What is answered where no image was predicted."""
    return Served(Answer(torch.empty(0), torch.empty(0), {}, {}), 0, changes, 0, 0, 0)


def refuse(jobs: Sequence[Job], error: Exception) -> None:
    """Let the requests that have no answer yet fail for this reason."""
    if isinstance(error, RefusedError):
        status, detail, headers = error.status, error.detail, error.headers
    else:
        lost = isinstance(error, StateLostError)
        status, headers = 503 if lost else 500, {}
        detail = str(error) if lost else "The adapter failed on these images. Its state is as it was before."
    for job in jobs:
        if not job.future.done():
            refusal = RefusedError(status, detail, **headers)
            refusal.__cause__ = error
            job.future.set_exception(refusal)


def stopping() -> RefusedError:
    """What a request is answered that comes or waits while the server stops."""
    return RefusedError(503, "The server is stopping. Try again when it is back.", Retry_After="5")
