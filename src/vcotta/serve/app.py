"""The HTTP side: routes, their documentation, and nothing that decides anything about a model."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vcotta._version import __version__
from vcotta.serve.body import FORM, NPY, discard, read_images
from vcotta.serve.gate import Gate
from vcotta.serve.limits import RefusedError
from vcotta.serve.metrics import CONTENT_TYPE, RequestMetrics, text_metrics
from vcotta.serve.pages import docs_page, policy_of, status_page
from vcotta.serve.schemas import Health, Predictions, Problem, ResetDone, State
from vcotta.serve.service import Served, Service

__all__ = ["create_app"]

_BODY = {
    "required": True,
    "content": {
        FORM: {
            "schema": {
                "type": "object",
                "required": ["images"],
                "additionalProperties": False,
                "properties": {
                    "images": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "format": "binary"},
                        "description": "PNG or JPEG files.",
                    }
                },
            }
        },
        NPY: {
            "schema": {
                "type": "string",
                "format": "binary",
                "description": "What numpy.save writes of a float32 array (images, channels, size, size) in [0, 1].",
            }
        },
    },
}
_WHY = {
    400: "The request was not whole.",
    401: "The token is missing or wrong.",
    403: "Without a token only this machine may change the state.",
    408: "The request took too long to arrive.",
    413: "More bytes, images or pixels than allowed.",
    415: "Neither a form nor an array.",
    422: "Something in the request makes no sense.",
    429: "Too much is waiting; come back in a moment.",
    500: "The adapter failed on these images; its state is as it was.",
    503: "The server is stopping.",
}
_PARAMETERS = {  # what each must be, for those who sent something else
    "adapt": "true or false",
    "coverage": "a number above 0 and at most 1",
    "probabilities": "true or false",
    "since": "a whole number, at least 0 and less than 2**53",
}

_bearer = Depends(HTTPBearer(auto_error=False, description="Needed for what changes the state."))


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """Return the application for a running service.

    Args:
        service: The service; the caller starts and stops it.
        token: What is needed for everything that changes the state; None trusts whoever reaches the server.
    """
    app = FastAPI(
        title="vcotta",
        version=__version__,
        description="A classifier that adapts itself to what it sees.",
        docs_url=None,  # FastAPI's pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service, app.state.gate, app.state.token_needed = service, Gate(token), token is not None
    app.state.metrics = RequestMetrics()
    app.state.decoders = ThreadPoolExecutor(2, thread_name_prefix="vcotta-decode")
    app.state.in_flight = 0
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_api_route("/", _status, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/docs", _docs, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/healthz", _health, response_model=Health, responses=_problems(503), summary="Is it alive?")
    app.add_api_route(
        "/metrics",
        _metrics,
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Numbers for Prometheus",
    )
    app.add_api_route(
        "/v1/state", _state, response_model=State, responses=_problems(422), summary="The model, and how it is"
    )
    app.add_api_route(
        "/v1/predict",
        _predict,
        methods=["POST"],
        response_model=Predictions,
        responses=_problems(*_WHY),
        openapi_extra={"requestBody": _BODY, "security": [{}]},  # {}: without adaptation no token is needed
        dependencies=[_bearer],
        summary="Predict images, and adapt to them",
    )
    app.add_api_route(
        "/v1/reset",
        _reset,
        methods=["POST"],
        response_model=ResetDone,
        responses=_problems(401, 403, 422, 429, 500, 503),
        dependencies=[_bearer],
        summary="Return to the start",
    )
    app.add_middleware(_Observed, metrics=app.state.metrics, routes={route.path for route in app.routes})  # type: ignore[attr-defined]
    return app


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem, "description": _WHY[status]} for status in statuses}


# Routes.


async def _predict(
    request: Request,
    adapt: Annotated[bool, Query(description="Whether to adapt to the images; without, no token is needed.")] = True,
    coverage: Annotated[
        float | None,
        Query(gt=0, le=1, description="Share of images to answer, the others abstain; only without adapting."),
    ] = None,
    probabilities: Annotated[bool, Query(description="Whether to return those of all classes.")] = True,
) -> JSONResponse:
    """Predict images; the prediction is made before the model adapts to them."""
    state, service = request.app.state, request.app.state.service
    limits = service.limits
    try:
        _only(request, "adapt", "coverage", "probabilities")
        if adapt:
            state.gate.check(request.headers)
            if coverage is not None:
                raise RefusedError(422, "Expected `coverage` only with adapt=false, but got it with adaptation.")
        if state.in_flight >= limits.requests:
            raise RefusedError(
                429,
                f"Expected at most {limits.requests} requests at once, but as many are being served. "
                "Try again in a moment.",
                Retry_After="1",
            )
        state.in_flight += 1
        try:
            images = await read_images(request, service.bundle.preprocess, limits, state.decoders)
            served = await asyncio.wrap_future(service.predict(images, adapt=adapt, coverage=coverage))
        finally:
            state.in_flight -= 1
    except RefusedError:
        await discard(request, limits)
        raise
    return JSONResponse(_told(served, service.bundle.class_names, adapt, probabilities))


async def _reset(request: Request) -> dict[str, int]:
    """Return to the state of the bundle, behind the requests that are waiting already."""
    _only(request)
    request.app.state.gate.check(request.headers)
    served = await asyncio.wrap_future(request.app.state.service.reset())
    return {"steps": served.step, "changes": served.changes}


async def _state(
    request: Request,
    since: Annotated[int, Query(ge=0, lt=2**53, description="Tell only the steps after this change.")] = 0,
) -> dict[str, Any]:
    """Tell which model is served, what it has seen, and the latest steps."""
    _only(request, "since")
    service: Service = request.app.state.service
    bundle, history = service.bundle, service.history
    return {
        "version": __version__,
        "network": bundle.network.name,
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
        "uptime": time.monotonic() - history.started,
        "images": history.images,
        "guarded": history.guarded,
        "history": history.since(since),
        **service.facts(),
    }


async def _health(request: Request) -> dict[str, str]:
    """Answer 200 while requests are served."""
    if not request.app.state.service.alive:
        raise RefusedError(503, "The server is stopping.")
    return {"status": "ok"}


async def _metrics(request: Request) -> PlainTextResponse:
    """Tell what is measured, in the text format of Prometheus."""
    state = request.app.state
    text = text_metrics(state.service, state.metrics, state.in_flight)
    return PlainTextResponse(text, media_type=CONTENT_TYPE)


async def _status() -> HTMLResponse:
    page = status_page()
    return HTMLResponse(page, headers={"Content-Security-Policy": policy_of(page)})


async def _docs(request: Request) -> HTMLResponse:
    page = docs_page(request.app.openapi())
    return HTMLResponse(page, headers={"Content-Security-Policy": policy_of(page)})


def _only(request: Request, *known: str) -> None:
    """Refuse a misspelt parameter: with `adpat=false` somebody wished not to adapt."""
    if odd := [name for name in request.query_params if name not in known]:
        expected = ", ".join(known) or "no parameters"
        raise RefusedError(422, f"Expected {expected} in the address, but got {odd[0][:80]!r}.")


def _told(served: Served, names: tuple[str, ...], adapted: bool, everything: bool) -> dict[str, Any]:
    """An answer as JSON, with six decimals."""
    answer = served.answer
    most, labels = answer.probabilities.max(1)
    columns: dict[str, list[Any]] = {
        "label": labels.tolist(),
        "name": [names[label] for label in labels.tolist()],
        "probability": most.round(decimals=6).tolist(),
        "entropy": answer.entropy.round(decimals=6).tolist(),
    }
    if everything:
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
            "adapted": adapted,
        },
    }


# What goes wrong, always as {"detail": text}.


async def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return JSONResponse({"detail": error.detail}, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    await discard(request, request.app.state.service.limits)
    came = str(first["input"])[:80]
    return JSONResponse({"detail": f"Expected `{name}` to be {_PARAMETERS[name]}, but got {came!r}."}, 422)


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


class _Observed:
    """Counts every request, and adds the headers that every answer has."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, routes: set[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        try:
            await self.app(scope, receive, observed)
        finally:
            path = scope["path"] if scope["path"] in self.routes else "other"
            self.metrics.add(path, status, time.monotonic() - started)


_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
