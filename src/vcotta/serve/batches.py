"""Serves one batch of a stream: an action, a prediction, or requests that are predicted and adapted to together."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import torch

from vcotta.serve.engine import Answer, StateLostError
from vcotta.serve.events import compare, log_batch
from vcotta.serve.jobs import Job, Served, refuse, replies
from vcotta.serve.metrics import Metrics
from vcotta.serve.streams import Stream, Streams

__all__ = ["serve_batch"]

_log = logging.getLogger("vcotta.serve")


def serve_batch(stream: Stream, jobs: list[Job], streams: Streams, metrics: Metrics) -> None:
    """Answer jobs that share a batch; called by the worker only."""
    stream.used = time.monotonic()
    if jobs[0].act is not None:
        jobs[0].future.set_result(jobs[0].act())
        return
    if stream.pinned:
        for job in jobs:
            _predict(stream, job)
        return
    streams.make_room(stream)
    if jobs[0].kind == "predict":
        _predict(stream, jobs[0])
    else:
        _adapt(stream, jobs, metrics)
    streams.make_room(stream)


def _predict(stream: Stream, job: Job) -> None:
    engine = stream.engine
    predict = engine.predict_as_source if stream.pinned else engine.predict
    answer = predict(job.images, job.coverage)
    (reply,) = replies([job], answer, engine.steps, engine.changes)
    job.future.set_result(replace(reply, saved=engine.saved_changes))


def _adapt(stream: Stream, jobs: list[Job], metrics: Metrics) -> None:
    """Adapt to a pooled batch; if that fails, as if the requests that fail on their own had not been sent."""
    started, engine = time.monotonic(), stream.engine
    made: list[Served] = []

    def finish(answer: Answer) -> None:  # while the step can be undone: an answer must not fail after it
        steps, changes = engine.adapter.steps, engine.changes + 1
        made.extend(replies(jobs, answer, steps, changes))
        distance, seconds = engine.adapter.parameter_distance(), time.monotonic() - started
        entry = stream.history.add(answer, seconds, len(jobs), steps, changes, distance)
        metrics.add_batch(stream.name, entry)

    images = torch.cat([job.images for job in jobs])
    try:
        answer = engine.adapt(images, finish)
    except StateLostError:
        metrics.failed_batches.inc()
        raise
    except Exception as error:
        metrics.failed_batches.inc()
        _log.exception("A batch of %d requests of the stream %s failed and was undone", len(jobs), stream.name)
        if len(jobs) == 1:
            refuse(jobs, error)
        else:
            _adapt_without_failing(stream, jobs, metrics)
        return
    if engine.saves_each_step and not engine.saved:
        engine.save()
    for job, reply in zip(jobs, made, strict=True):
        job.future.set_result(replace(reply, saved=engine.saved_changes))
    log_batch(stream, answer, made[0], [job.request for job in jobs])
    compare(stream, images, answer)


def _adapt_without_failing(stream: Stream, jobs: list[Job], metrics: Metrics) -> None:
    good = []
    for job in jobs:
        try:
            stream.engine.try_out(job.images)
            good.append(job)
        except StateLostError:
            raise
        except Exception as error:
            refuse([job], error)
    if len(good) == len(jobs):  # each succeeds on its own, they only fail together
        for job in jobs:
            _adapt(stream, [job], metrics)
    elif good:
        _adapt(stream, good, metrics)
