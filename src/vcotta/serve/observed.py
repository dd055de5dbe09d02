"""What every answer has in common: headers, an id, a line in the log, and errors as ``{"detail": text}``."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vcotta.serve.logs import log_event, request_id, safe_path
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import RefusedError, discard

__all__ = ["FAILED", "HEADERS", "Observed", "error_as_json", "handle_errors", "reason_of"]

_PARAMETERS = {  # what each parameter must be, for error messages
    "adapt": "true or false",
    "coverage": "a number above 0 and at most 1",
    "model": "a name of at most 64 characters",
    "probabilities": "true or false",
    "since": "a whole number, at least 0 and less than 2**53",
    "stream": "a stream's name of 1 to 64 characters a-z, 0-9, '.', '_' and '-', a letter or digit first",
}
_LONGEST_REASON = 500
FAILED = "The server failed; see its log."
"""What a request is answered that failed unexpectedly."""

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
]


def handle_errors(app: FastAPI) -> None:
    """Let an application answer every error with a text of ours."""
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_such_route)
    app.add_exception_handler(Exception, _failed)


def error_as_json(request: Request, detail: str, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as ``{"detail": text}``, or ``{"error": text}`` in the Open Inference Protocol."""
    v2 = request.url.path == "/v2" or request.url.path.startswith("/v2/")
    return JSONResponse({"error" if v2 else "detail": detail}, status, headers)


def reason_of(error: Exception) -> str:
    """Return why a request failed, as its line in the log has it."""
    return f"{type(error).__name__}: {error}"[:_LONGEST_REASON]


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    if error.status >= 500:
        request.state.reason = error.detail
    return error_as_json(request, error.detail, error.status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name, given = str(first["loc"][-1]), str(first["input"])[:80]
    await discard(request, request.app.state.service.limits)
    return error_as_json(request, f"Expected `{name}` to be {_PARAMETERS[name]}, but got {given!r}.", 422)


async def _no_such_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail, path = str(error.detail), request.url.path[:80]
    if error.status_code == 404:
        known = ", ".join(route.path for route in request.app.routes)
        detail = f"Expected one of the paths {known}, but got {path!r}. See /docs."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"Expected {allowed} for {path}, but got {request.method[:20]}. See /docs."
    return error_as_json(request, detail, error.status_code, error.headers)


async def _failed(request: Request, _: Exception) -> JSONResponse:
    """Answer an unexpected error, which uvicorn logs; starlette sends this past `Observed`."""
    headers = {name.decode(): value.decode() for name, value in HEADERS}
    headers["x-request-id"] = request.state.request_id
    return error_as_json(request, FAILED, 500, headers)


class Observed:
    """Counts and logs every request, and adds the common headers and the request's id to every answer.

    The line of a request that was answered 5xx is a warning with the reason.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: set[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        state = scope.setdefault("state", {})  # which `Request.state` shows
        state |= {"request_id": request_id(given), "images": 0}
        headers = [*HEADERS, (b"x-request-id", state["request_id"].encode())]

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *headers]
            await send(message)

        try:
            await self.app(scope, receive, observed)
        except Exception as error:
            state["reason"] = reason_of(error)
            raise
        finally:
            path = getattr(scope.get("route"), "path", scope["path"])  # of streams the route, not the name
            path = path if path in self.routes else "other"
            seconds = time.monotonic() - started
            self.metrics.add_request(path, status, seconds)
            log_event(
                "request",
                logging.WARNING if status >= 500 else logging.INFO,
                id=state["request_id"],
                **({"stream": state["stream"]} if "stream" in state else {}),
                method=scope["method"][:20],
                path=safe_path(scope["path"]),
                status=status,
                images=state["images"],
                ms=round(1000 * seconds, 1),
                **({"reason": state["reason"]} if "reason" in state else {}),
            )
