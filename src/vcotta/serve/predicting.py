"""Requests for predictions: from the body of the request to that of the answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from vcotta.serve.jobs import Served
from vcotta.serve.requests import RefusedError, discard, read_images
from vcotta.serve.service import Service

__all__ = ["SAVED", "answer_images", "body_of", "check_health", "only", "reset_stream", "saved_header"]

SAVED = "vcotta-saved"
"""The header with the state version that a killed server would continue from."""


async def answer_images(
    request: Request, stream: str, adapt: bool, coverage: float | None, probabilities: bool
) -> Response:
    """Answer a request for predictions of a stream."""
    state, service = request.app.state, request.app.state.service
    request.state.stream = stream
    try:
        only(request, "adapt", "coverage", "probabilities")
        if adapt:
            state.auth.check(request.headers, stream)
            if coverage is not None:
                raise RefusedError(422, "Expected `coverage` only with adapt=false, but got it with adapt=true.")
        else:
            service.find(stream)
        with service.metrics.open_requests.track_inprogress():
            with state.admission.admit(stream):
                images = await read_images(request, service.bundle.preprocess, service.limits, state.decoders)
            request.state.images = len(images)
            render = partial(body_of, names=service.bundle.class_names, probabilities=probabilities)
            identity = request.state.request_id
            job = service.predict(
                images, adapt=adapt, coverage=coverage, request=identity, render=render, stream=stream
            )
            served = await asyncio.wrap_future(job)
    except RefusedError:
        await discard(request, service.limits)
        raise
    return Response(served.body, headers=saved_header(served), media_type="application/json")


async def reset_stream(request: Request, stream: str) -> dict[str, int]:
    """Answer a request to reset a stream."""
    request.state.stream = stream
    only(request)
    request.app.state.auth.check(request.headers, stream)
    served = await asyncio.wrap_future(request.app.state.service.reset(stream))
    return {"steps": served.step or 0, "changes": served.changes}


def check_health(service: Service) -> None:
    """Raise `RefusedError` (503) unless requests are served."""
    if not service.alive:
        raise RefusedError(503, "The server is stopping.")
    if service.engine.lost is not None:
        raise RefusedError(503, service.engine.lost)


def only(request: Request, *known: str) -> None:
    """Refuse unknown parameters: a misspelt `adpat=false` must not adapt."""
    if odd := [name for name in request.query_params if name not in known]:
        expected = ", ".join(known) or "no parameters"
        raise RefusedError(422, f"Expected {expected} in the address, but got {odd[0][:80]!r}.")


def saved_header(served: Served) -> dict[str, str]:
    """Return the header that says which of a stream's changes would survive a kill.

    It is no part of the body, as it depends on the clock: bodies depend on what their stream was sent alone.
    """
    return {} if served.saved is None else {SAVED: str(served.saved)}


def body_of(served: Served, names: tuple[str, ...], probabilities: bool) -> bytes:
    """Return the body of an answer; see `vcotta.serve.schemas.PredictResponse`."""
    return bytes(JSONResponse(_as_json(served, names, probabilities)).body)


def _as_json(served: Served, names: tuple[str, ...], probabilities: bool) -> dict[str, Any]:
    answer = served.answer
    most, labels = answer.probabilities.max(1)
    columns: dict[str, list[Any]] = {
        "label": labels.tolist(),
        "name": [names[label] for label in labels.tolist()],
        "probability": most.round(decimals=6).tolist(),
        "entropy": answer.entropy.round(decimals=6).tolist(),
    }
    if probabilities:
        columns["probabilities"] = answer.probabilities.round(decimals=6).tolist()
    for name, values in answer.more.items():
        columns[name] = (values.double().round(decimals=6) if values.is_floating_point() else values).tolist()
    return {
        "predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        "batch": {
            "step": served.step,
            "changes": served.changes,
            "images": served.batch_images,
            "requests": served.batch_requests,
            "offset": served.offset,
            "adapted": answer.adapted,
        },
    }
