"""The routes of the Open Inference Protocol, below ``/v2``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.responses import Response

from vcotta._version import __version__
from vcotta.serve.documented import BEARER, PREDICT, answered, failures
from vcotta.serve.oip import HEADER_LENGTH, describe_model, read_inference, render_inference
from vcotta.serve.predicting import check_health, only, saved_header
from vcotta.serve.requests import RefusedError, discard, read_body
from vcotta.serve.schemas import InferenceResponse, Live, ModelMetadata, ModelReady, Ready, ServerMetadata
from vcotta.serve.streams import check_name

__all__ = ["add_oip_routes"]

_Model = Annotated[str, Path(max_length=64, description="Name of the model, by default `vcotta`.")]
_TENSOR = {
    "type": "object",
    "required": ["name", "datatype", "shape"],
    "properties": {
        "name": {"const": "images"},
        "datatype": {"const": "FP32"},
        "shape": {"type": "array", "items": {"type": "integer"}},
        "data": {"type": "array", "items": {"type": "number"}},
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer"}}},
    },
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "One tensor `images`, FP32 (images, channels, size, size) in [0, 1]. The parameters "
                "`stream` and `adapt` say for which stream, and whether to adapt.",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "stream": {"type": "string"},
                            "adapt": {"type": "boolean"},
                            "binary_data_output": {"type": "boolean"},
                        },
                    },
                    "inputs": {"type": "array", "minItems": 1, "maxItems": 1, "items": _TENSOR},
                    "outputs": {
                        "type": "array",
                        "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                    },
                },
            }
        }
    },
}


def add_oip_routes(app: FastAPI, name: str) -> None:
    """Add the routes for a model of this name."""
    app.state.model_name = name
    app.add_api_route("/v2", _server, response_model=ServerMetadata, summary="The server, for inference clients")
    app.add_api_route("/v2/health/live", _live, response_model=Live, summary="Liveness, for inference clients")
    app.add_api_route(
        "/v2/health/ready", _ready, response_model=Ready, responses=failures(503), summary="Readiness of the server"
    )
    app.add_api_route(
        "/v2/models/{model}",
        _model,
        response_model=ModelMetadata,
        responses=failures(404, 422),
        summary="The model's tensors",
    )
    app.add_api_route(
        "/v2/models/{model}/ready",
        _model_ready,
        response_model=ModelReady,
        responses=failures(404, 422, 503),
        summary="Readiness of the model",
    )
    app.add_api_route(
        "/v2/models/{model}/infer",
        _infer,
        methods=["POST"],
        response_model=InferenceResponse,
        response_model_exclude_none=True,
        responses=answered(failures(*PREDICT)),
        openapi_extra={"requestBody": _BODY, "security": [{}]},
        dependencies=[BEARER],
        summary="Predict a tensor of images and adapt to it",
    )


async def _server() -> dict[str, Any]:
    """Return name, version and extensions."""
    return {"name": "vcotta", "version": __version__, "extensions": ["binary_tensor_data"]}


async def _live() -> dict[str, bool]:
    """Return 200 while the server runs."""
    return {"live": True}


async def _ready(request: Request) -> dict[str, bool]:
    """Return 200 while requests are served."""
    check_health(request.app.state.service)
    return {"ready": True}


async def _model(request: Request, model: _Model) -> dict[str, Any]:
    """Return names, types and shapes of the tensors."""
    _check_model(request, model)
    return describe_model(model, request.app.state.service.bundle)


async def _model_ready(request: Request, model: _Model) -> dict[str, Any]:
    """Return 200 while requests are served."""
    _check_model(request, model)
    check_health(request.app.state.service)
    return {"name": model, "ready": True}


async def _infer(request: Request, model: _Model) -> Response:
    """Predict a tensor of images, then adapt to it unless the parameter `adapt` is false."""
    state, service = request.app.state, request.app.state.service
    limits, preprocess = service.limits, service.bundle.preprocess
    try:
        _check_model(request, model)
        only(request)
        if "content-encoding" in request.headers:
            raise RefusedError(415, "Expected a body that is not compressed.")
        with service.metrics.open_requests.track_inprogress():
            # The stream is in the body: whoever reads it takes a place of one stream that is nobody's.
            with state.admission.admit(""):
                body, head = await read_body(request, limits), request.headers.get(HEADER_LENGTH)
                read = partial(read_inference, body, head, preprocess, limits)
                asked = await asyncio.get_running_loop().run_in_executor(state.decoders.threads, read)
            request.state.stream = check_name(asked.stream)
            request.state.images = len(asked.images)
            if asked.adapt:
                state.auth.check(request.headers, asked.stream)
            job = service.predict(
                asked.images,
                adapt=asked.adapt,
                request=request.state.request_id,
                render=partial(render_inference, asked=asked, model=model),
                stream=asked.stream,
            )
            served = await asyncio.wrap_future(job)
    except RefusedError:
        await discard(request, limits)
        raise
    headers = saved_header(served)
    if asked.head is None:
        return Response(served.body, headers=headers, media_type="application/json")
    headers[HEADER_LENGTH] = str(asked.head)
    return Response(served.body, headers=headers, media_type="application/octet-stream")


def _check_model(request: Request, model: str) -> None:
    if model != request.app.state.model_name:
        raise RefusedError(404, f"Expected the model {request.app.state.model_name!r}, but got {model[:80]!r}.")
