"""The routes of single streams."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from vcotta.serve.described import describe_stream, describe_streams
from vcotta.serve.documented import (
    BEARER,
    BODY,
    PREDICT,
    Adapt,
    Coverage,
    Probabilities,
    Since,
    StreamName,
    answered,
    problems,
)
from vcotta.serve.predicting import answer_images, only, reset_stream
from vcotta.serve.requests import RefusedError
from vcotta.serve.schemas import MergeResponse, PredictResponse, ResetResponse, State, StreamChange, StreamList
from vcotta.serve.service import Service
from vcotta.serve.streams import DEFAULT

__all__ = ["add_stream_routes"]

_LISTED = 1000  # streams
_EXPORTS = 2  # at once: each needs room for a state on the disk
_STREAM = "/v1/streams/{stream}"
_CHANGE = (401, 403, 404, 409, 422, 429, 500, 503)
_FILE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}


def add_stream_routes(app: FastAPI) -> None:
    """Add the routes below ``/v1/streams``."""
    app.state.exports = 0
    app.add_api_route("/v1/streams", _list, response_model=StreamList, responses=problems(422), summary="All streams")
    app.add_api_route(
        _STREAM, _state, response_model=State, responses=problems(404, 409, 422), summary="A stream and its state"
    )
    app.add_api_route(
        f"{_STREAM}/predict",
        _predict,
        methods=["POST"],
        response_model=PredictResponse,
        responses=answered(problems(*PREDICT)),
        openapi_extra={"requestBody": BODY, "security": [{}]},
        dependencies=[BEARER],
        summary="Predict a stream's images and adapt to them",
    )
    app.add_api_route(
        f"{_STREAM}/export",
        _export,
        response_class=FileResponse,
        responses={**_FILE, **problems(*_CHANGE)},
        dependencies=[BEARER],
        summary="A stream's adapter as a file",
    )
    app.add_api_route(
        "/v1/merge",
        _merge,
        methods=["POST"],
        response_model=MergeResponse,
        responses=problems(401, 403, 409, 422, 429, 500, 503),
        dependencies=[BEARER],
        summary="Merge what streams have learned",
    )
    for path, method, route, summary in (
        (_STREAM, "PUT", _make, "Make a stream"),
        (_STREAM, "DELETE", _delete, "Delete a stream"),
        (f"{_STREAM}/reset", "POST", _reset, "Return a stream to the start"),
        (f"{_STREAM}/pin", "POST", _pin, "Pin a stream to the source"),
        (f"{_STREAM}/pin", "DELETE", _unpin, "Let a pinned stream adapt again"),
    ):
        app.add_api_route(
            path,
            route,
            methods=[method],
            response_model=ResetResponse if route is _reset else StreamChange,
            responses=problems(*_CHANGE) | ({201: {"model": StreamChange}} if route is _make else {}),
            dependencies=[BEARER],
            summary=summary,
        )


async def _list(request: Request) -> dict[str, Any]:
    """Return the streams, at most 1000, those first that seem to do worse than the source or are pinned."""
    only(request)
    return describe_streams(request.app.state.service, _LISTED)


async def _state(request: Request, stream: StreamName, since: Since = 0) -> dict[str, Any]:
    """Return which model is served, and the counters and latest batches of a stream."""
    only(request, "since")
    service: Service = request.app.state.service
    return describe_stream(service, service.find(stream), since, token_needed=request.app.state.auth.needed)


async def _predict(
    request: Request,
    stream: StreamName,
    adapt: Adapt = True,
    coverage: Coverage = None,
    probabilities: Probabilities = True,
) -> Response:
    """Predict images, then adapt to them, which makes the stream; without adaptation there must be one."""
    return await answer_images(request, stream, adapt, coverage, probabilities)


async def _reset(request: Request, stream: StreamName) -> dict[str, int]:
    """Return a stream to the state of the bundle, after the requests that already wait; a pinned one stays pinned."""
    return await reset_stream(request, stream)


async def _make(request: Request, stream: StreamName) -> JSONResponse:
    """Make a stream, or find it there."""
    service = _allowed(request, stream, stream)
    done, new = service.make(stream)
    return JSONResponse(_change(service, stream, (await asyncio.wrap_future(done)).changes), 201 if new else 200)


async def _delete(request: Request, stream: StreamName) -> dict[str, Any]:
    """Delete a stream and its state, after the requests that already wait. Needs the token for all streams."""
    service = _allowed(request, stream, None)
    return {"stream": stream, "changes": (await asyncio.wrap_future(service.delete(stream))).changes, "pinned": False}


async def _pin(request: Request, stream: StreamName) -> dict[str, Any]:
    """Let a stream answer as the source network and adapt no more. Needs the token for all streams."""
    service = _allowed(request, stream, None)
    return _change(service, stream, (await asyncio.wrap_future(service.pin(stream, True))).changes)


async def _unpin(request: Request, stream: StreamName) -> dict[str, Any]:
    """Let a pinned stream continue from the state it had. Needs the token for all streams."""
    service = _allowed(request, stream, None)
    return _change(service, stream, (await asyncio.wrap_future(service.pin(stream, False))).changes)


async def _merge(request: Request) -> Response:
    """Merge the streams that the server was told to merge. Needs the token for all streams."""
    service = _allowed(request, DEFAULT, None)
    return Response((await asyncio.wrap_future(service.merge())).body, media_type="application/json")


async def _export(request: Request, stream: StreamName) -> FileResponse:
    """Return a stream's adapter as a safetensors file for `vcotta.load`, after the requests that already wait."""
    service, state = _allowed(request, stream, stream), request.app.state
    if state.exports >= _EXPORTS:
        raise RefusedError(429, f"There are {_EXPORTS} exports already. Try again in a moment.", Retry_After="5")
    folder = tempfile.mkdtemp(prefix="vcotta-export-")

    def done() -> None:
        state.exports -= 1
        shutil.rmtree(folder, ignore_errors=True)

    state.exports += 1
    try:
        path = Path(folder, "adapter.safetensors")
        await asyncio.wrap_future(service.export(stream, path))
    except BaseException:
        done()
        raise
    return _Export(path, f"{stream}.safetensors", done)


class _Export(FileResponse):
    """A file that is removed when it was sent, or the client has gone."""

    def __init__(self, path: Path, filename: str, done: Callable[[], None]) -> None:
        super().__init__(path, filename=filename)
        self._done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._done()


def _allowed(request: Request, stream: str, scope: str | None) -> Service:
    """Check parameters and token; a token for ``scope``, a stream or None for all, is needed."""
    request.state.stream = stream
    only(request)
    request.app.state.auth.check(request.headers, scope)
    service: Service = request.app.state.service
    return service


def _change(service: Service, stream: str, changes: int) -> dict[str, Any]:
    return {"stream": stream, "changes": changes, "pinned": service.find(stream).pinned}
