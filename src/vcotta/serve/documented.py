"""What the OpenAPI document says of bodies and errors, and who needs a token."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query
from fastapi.security import HTTPBearer

from vcotta.serve.predicting import SAVED
from vcotta.serve.requests import FORM, NPY
from vcotta.serve.schemas import Failure, Problem

__all__ = [
    "BEARER",
    "BODY",
    "PREDICT",
    "Adapt",
    "Coverage",
    "Probabilities",
    "Since",
    "StreamName",
    "answered",
    "failures",
    "problems",
]

BODY = {
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
    404: "There is no such stream.",
    408: "The request took too long to arrive.",
    409: "There are too many streams already, or this one is being deleted or cannot be.",
    413: "The request has too many bytes, images or pixels, or takes too long to decode.",
    415: "The body is neither a form nor an array.",
    422: "The request is not valid.",
    429: "Too many requests are waiting. Try again in a moment.",
    500: "The adapter failed on these images. Its state is as it was before.",
    503: "The server is stopping, no process is free to decode images, or a failed step could not be undone.",
}
PREDICT = tuple(_PROBLEMS)
"""What may go wrong with a request for predictions."""

BEARER = Depends(HTTPBearer(auto_error=False, description="A token, for requests that change the state."))

Adapt = Annotated[bool, Query(description="Whether to adapt to the images. Without adaptation no token is needed.")]
Coverage = Annotated[
    float | None,
    Query(gt=0, le=1, description="Share of images to answer; the rest abstain. Only with adapt=false."),
]
Probabilities = Annotated[bool, Query(description="Whether to return the probabilities of all classes.")]
Since = Annotated[int, Query(ge=0, lt=2**53, description="Return only the batches after this state version.")]
StreamName = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9._-]{0,63}$", description="Name of the stream.")]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route."""
    return {status: {"model": Problem, "description": _PROBLEMS[status]} for status in statuses}


def answered(described: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Add the header of answers with predictions to the refusals of a route."""
    about = "The stream's state version that a killed server would continue from; left out if states do not survive."
    return {200: {"headers": {SAVED: {"description": about, "schema": {"type": "integer"}}}}, **described}


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the refusals of a route of the Open Inference Protocol."""
    return {status: {"model": Failure, "description": _PROBLEMS[status]} for status in statuses}
