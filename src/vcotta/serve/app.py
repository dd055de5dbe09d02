"""The HTTP routes and their documentation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vcotta._version import __version__
from vcotta.report.html import render
from vcotta.serve.auth import Auth
from vcotta.serve.decoders import Decoders
from vcotta.serve.logs import log_event, request_id, safe_path
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import FORM, NPY, RefusedError, discard, read_images
from vcotta.serve.schemas import Health, PredictResponse, Problem, ResetResponse, State
from vcotta.serve.service import Served, Service

__all__ = ["create_app"]

_BODY = {
    "required": True,
    "content": {
        FORM: {
            "schema": {
                "type": "object",
                "description": "PNG or JPEG files in the field `images`.",
                "required": ["images"],
                "additionalProperties": False,
                "properties": {
                    "images": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
                },
            }
        },
        NPY: {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "A float32 array (images, channels, size, size) in [0, 1] as numpy.save writes it.",
            }
        },
    },
}
_PROBLEMS = {
    400: "The request is incomplete.",
    401: "The token is missing or wrong.",
    403: "The server has no token, so only requests from its own machine may change the state.",
    408: "The request took too long to arrive.",
    413: "The request has too many bytes, images or pixels, or takes too long to decode.",
    415: "The body is neither a form nor an array.",
    422: "The request is not valid.",
    429: "Too many requests are waiting. Try again in a moment.",
    500: "The adapter failed on these images. Its state is as it was before.",
    503: "The server is stopping, no process is free to decode images, or a failed step could not be undone.",
}
_PARAMETERS = {  # what each parameter must be, for error messages
    "adapt": "true or false",
    "coverage": "a number above 0 and at most 1",
    "probabilities": "true or false",
    "since": "a whole number, at least 0 and less than 2**53",
}
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
]

_bearer = Depends(HTTPBearer(auto_error=False, description="The token, for requests that change the state."))


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """Return the application for a service, which the caller starts and stops; see `Auth` for the token."""
    app = FastAPI(
        title="vcotta",
        version=__version__,
        description="A classifier that adapts to the images it is sent.",
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
        lifespan=_decoding,
        redirect_slashes=False,  # a redirect would repeat the Host header, which the client chooses
    )
    app.state.service, app.state.auth, app.state.token_needed = service, Auth(token), token is not None
    app.state.decoders = Decoders(service.limits.decode_seconds, service.limits.requests)
    app.state.open_requests = 0
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_exception_handler(Exception, _failed)
    app.add_api_route("/", _status, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/docs", _docs, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/healthz", _health, response_model=Health, responses=_problems(503), summary="Health")
    app.add_api_route(
        "/metrics",
        _metrics,
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Metrics for Prometheus",
    )
    app.add_api_route(
        "/v1/state", _state, response_model=State, responses=_problems(422), summary="The model and its state"
    )
    app.add_api_route(
        "/v1/predict",
        _predict,
        methods=["POST"],
        response_model=PredictResponse,
        responses=_problems(*_PROBLEMS),
        openapi_extra={"requestBody": _BODY, "security": [{}]},  # {}: predictions without adaptation need no token
        dependencies=[_bearer],
        summary="Predict images and adapt to them",
    )
    app.add_api_route(
        "/v1/reset",
        _reset,
        methods=["POST"],
        response_model=ResetResponse,
        responses=_problems(401, 403, 422, 429, 500, 503),
        dependencies=[_bearer],
        summary="Return to the start",
    )
    app.add_middleware(_Observed, metrics=service.metrics, routes={route.path for route in app.routes})  # type: ignore[attr-defined]
    return app


@asynccontextmanager
async def _decoding(app: FastAPI) -> AsyncIterator[None]:
    """Start decoding processes with the server, and end them with it."""
    app.state.decoders.start()
    yield
    app.state.decoders.close()


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in statuses}


# Routes.


async def _predict(
    request: Request,
    adapt: Annotated[
        bool, Query(description="Whether to adapt to the images. Without adaptation no token is needed.")
    ] = True,
    coverage: Annotated[
        float | None,
        Query(gt=0, le=1, description="Share of images to answer; the rest abstain. Only with adapt=false."),
    ] = None,
    probabilities: Annotated[bool, Query(description="Whether to return the probabilities of all classes.")] = True,
) -> Response:
    """Predict images, then adapt to them; the predictions are from before the adaptation."""
    state, service = request.app.state, request.app.state.service
    limits = service.limits
    try:
        _only(request, "adapt", "coverage", "probabilities")
        if adapt:
            state.auth.check(request.headers)
            if coverage is not None:
                raise RefusedError(422, "Expected `coverage` only with adapt=false, but got it with adapt=true.")
        if state.open_requests >= limits.requests:
            detail = f"There are {limits.requests} open requests already, the most allowed. Try again in a moment."
            raise RefusedError(429, detail, Retry_After="1")
        state.open_requests += 1
        service.metrics.open_requests.inc()
        try:
            images = await read_images(request, service.bundle.preprocess, limits, state.decoders)
            request.state.images = len(images)
            names, identity = service.bundle.class_names, request.state.request_id
            render = partial(_body, names=names, probabilities=probabilities)
            job = service.predict(images, adapt=adapt, coverage=coverage, request=identity, render=render)
            served = await asyncio.wrap_future(job)
        finally:
            state.open_requests -= 1
            service.metrics.open_requests.dec()
    except RefusedError:
        await discard(request, limits)
        raise
    return Response(served.body, media_type="application/json")


async def _reset(request: Request) -> dict[str, int]:
    """Return to the state of the bundle, after the requests that already wait."""
    _only(request)
    request.app.state.auth.check(request.headers)
    served = await asyncio.wrap_future(request.app.state.service.reset())
    return {"steps": served.step, "changes": served.changes}


async def _state(
    request: Request,
    since: Annotated[int, Query(ge=0, lt=2**53, description="Return only the batches after this state version.")] = 0,
) -> dict[str, Any]:
    """Return which model is served, its counters and its latest batches."""
    _only(request, "since")
    service: Service = request.app.state.service
    bundle, adapter, metrics = service.bundle, service.engine.adapter, service.metrics
    return {
        "version": __version__,
        "network": bundle.network.name,
        "method": bundle.method,
        "settings": bundle.settings,
        "guard": bundle.guard,
        "bundle": bundle.sha256,
        "class_names": bundle.class_names,
        "channels": bundle.preprocess.channels,
        "size": bundle.preprocess.size,
        "preprocess": bundle.preprocess.how,
        "pool": service.pool,
        "limits": asdict(service.limits),
        "token_needed": request.app.state.token_needed,
        "uptime": time.monotonic() - metrics.started,
        "steps": adapter.steps,
        "skipped": adapter.skipped,
        "changes": service.engine.changes,
        "waiting": service.waiting,
        "images": metrics.total("images"),
        "updates": metrics.total("updates"),
        "guarded": metrics.total("guard_events"),
        "low_diversity": service.diversity.low,
        "history": metrics.batches_since(since),
    }


async def _health(request: Request) -> dict[str, str]:
    """Return 200 while requests are served."""
    service: Service = request.app.state.service
    if not service.alive:
        raise RefusedError(503, "The server is stopping.")
    if service.engine.lost is not None:
        raise RefusedError(503, service.engine.lost)
    return {"status": "ok"}


async def _metrics(request: Request) -> Response:
    """Return the metrics in the Prometheus text format, or in OpenMetrics where the Accept header asks for it."""
    content, content_type = request.app.state.service.metrics.text(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type})


async def _status() -> HTMLResponse:
    return HTMLResponse(render("status.html.j2", package="vcotta.serve", script="status.js", connect=True))


async def _docs(request: Request) -> HTMLResponse:
    return HTMLResponse(render("docs.html.j2", package="vcotta.serve", document=request.app.openapi()))


def _only(request: Request, *known: str) -> None:
    """Refuse unknown parameters: a misspelt `adpat=false` must not adapt."""
    if odd := [name for name in request.query_params if name not in known]:
        expected = ", ".join(known) or "no parameters"
        raise RefusedError(422, f"Expected {expected} in the address, but got {odd[0][:80]!r}.")


def _body(served: Served, names: tuple[str, ...], probabilities: bool) -> bytes:
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


# Errors, always as {"detail": text}.


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return JSONResponse({"detail": error.detail}, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name, given = str(first["loc"][-1]), str(first["input"])[:80]
    await discard(request, request.app.state.service.limits)
    return JSONResponse({"detail": f"Expected `{name}` to be {_PARAMETERS[name]}, but got {given!r}."}, 422)


async def _no_such_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail, path = str(error.detail), request.url.path[:80]
    if error.status_code == 404:
        known = ", ".join(route.path for route in request.app.routes)
        detail = f"Expected one of the paths {known}, but got {path!r}. See /docs."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"Expected {allowed} for {path}, but got {request.method[:20]}. See /docs."
    return JSONResponse({"detail": detail}, error.status_code, error.headers)


async def _failed(request: Request, _: Exception) -> JSONResponse:
    """Answer an error that nothing foresaw, which uvicorn logs; starlette sends this past `_Observed`."""
    headers = {name.decode(): value.decode() for name, value in _HEADERS}
    headers["x-request-id"] = request.state.request_id
    return JSONResponse({"detail": "The server failed; see its log."}, 500, headers)


class _Observed:
    """Counts and logs every request, and adds the common headers and the request's id to every answer."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: set[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        state = scope.setdefault("state", {})  # which `Request.state` shows
        state |= {"request_id": request_id(given), "images": 0}
        headers = [*_HEADERS, (b"x-request-id", state["request_id"].encode())]

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *headers]
            await send(message)

        try:
            await self.app(scope, receive, observed)
        finally:
            path = scope["path"] if scope["path"] in self.routes else "other"
            seconds = time.monotonic() - started
            self.metrics.add_request(path, status, seconds)
            log_event(
                "request",
                id=state["request_id"],
                method=scope["method"][:20],
                path=safe_path(scope["path"]),
                status=status,
                images=state["images"],
                ms=round(1000 * seconds, 1),
            )
