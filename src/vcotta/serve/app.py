"""The application: its routes and their documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from vcotta._version import __version__
from vcotta.report.html import render
from vcotta.serve.admission import Admission
from vcotta.serve.auth import Auth, Tokens
from vcotta.serve.decoders import Decoders
from vcotta.serve.described import describe_stream
from vcotta.serve.documented import (
    BEARER,
    BODY,
    PREDICT,
    Adapt,
    Coverage,
    Probabilities,
    Since,
    answered,
    problems,
)
from vcotta.serve.observed import Observed, handle_errors
from vcotta.serve.oip_routes import add_oip_routes
from vcotta.serve.predicting import answer_images, check_health, only, reset_stream
from vcotta.serve.schemas import Health, PredictResponse, ResetResponse, State
from vcotta.serve.service import Service
from vcotta.serve.stream_routes import add_stream_routes
from vcotta.serve.streams import DEFAULT

__all__ = ["create_app"]


def create_app(service: Service, tokens: Tokens | str | None = None, name: str = "vcotta") -> FastAPI:
    """Return the application for a service, which the caller starts and stops.

    Args:
        service: The service.
        tokens: As for `Auth`.
        name: Name of the model in the Open Inference Protocol.
    """
    app = FastAPI(
        title="vcotta",
        version=__version__,
        description="A classifier that adapts to the images it is sent.",
        docs_url=None,  # FastAPI's own pages load scripts from other servers
        redoc_url=None,
        lifespan=_decoding,
        redirect_slashes=False,  # a redirect would repeat the Host header, which the client chooses
    )
    app.state.service, app.state.auth = service, Auth(tokens)
    app.state.decoders = _decoders(service)
    app.state.admission = Admission(service.limits.requests)
    handle_errors(app)
    app.add_api_route("/", _status, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/docs", _docs, include_in_schema=False, response_class=HTMLResponse)
    app.add_api_route("/healthz", _health, response_model=Health, responses=problems(503), summary="Health")
    app.add_api_route(
        "/metrics",
        _metrics,
        response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        summary="Metrics for Prometheus",
    )
    app.add_api_route(
        "/v1/state", _state, response_model=State, responses=problems(422), summary="The model and its state"
    )
    app.add_api_route(
        "/v1/predict",
        _predict,
        methods=["POST"],
        response_model=PredictResponse,
        responses=answered(problems(*PREDICT)),
        openapi_extra={"requestBody": BODY, "security": [{}]},  # {}: predictions without adaptation need no token
        dependencies=[BEARER],
        summary="Predict images and adapt to them",
    )
    app.add_api_route(
        "/v1/reset",
        _reset,
        methods=["POST"],
        response_model=ResetResponse,
        responses=problems(401, 403, 422, 429, 500, 503),
        dependencies=[BEARER],
        summary="Return to the start",
    )
    add_stream_routes(app)
    add_oip_routes(app, name)
    app.add_middleware(Observed, metrics=service.metrics, routes={route.path for route in app.routes})  # type: ignore[attr-defined]
    return app


@asynccontextmanager
async def _decoding(app: FastAPI) -> AsyncIterator[None]:
    """Start decoding processes with the server, and end them with it; it may be started again."""
    app.state.decoders.start()
    yield
    app.state.decoders.close()
    app.state.decoders = _decoders(app.state.service)


def _decoders(service: Service) -> Decoders:
    return Decoders(service.limits.decode_seconds, service.limits.requests)


async def _predict(
    request: Request, adapt: Adapt = True, coverage: Coverage = None, probabilities: Probabilities = True
) -> Response:
    """Predict images, then adapt to them; the predictions are from before the adaptation."""
    return await answer_images(request, DEFAULT, adapt, coverage, probabilities)


async def _reset(request: Request) -> dict[str, int]:
    """Return to the state of the bundle, after the requests that already wait."""
    return await reset_stream(request, DEFAULT)


async def _state(request: Request, since: Since = 0) -> dict[str, Any]:
    """Return which model is served, and the counters and latest batches of the stream `default`."""
    only(request, "since")
    service: Service = request.app.state.service
    return describe_stream(service, service.find(DEFAULT), since, token_needed=request.app.state.auth.needed)


async def _health(request: Request) -> dict[str, str]:
    """Return 200 while requests are served."""
    check_health(request.app.state.service)
    return {"status": "ok"}


async def _metrics(request: Request) -> Response:
    """Return the metrics in the Prometheus text format, or in OpenMetrics where the Accept header asks for it."""
    content, content_type = request.app.state.service.metrics.text(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": content_type})


async def _status() -> HTMLResponse:
    return HTMLResponse(render("status.html.j2", package="vcotta.serve", script="status.js", connect=True))


async def _docs(request: Request) -> HTMLResponse:
    return HTMLResponse(render("docs.html.j2", package="vcotta.serve", document=request.app.openapi()))
