"""The Open Inference Protocol, version 2: tensors as JSON, or as bytes behind the JSON (its binary extension)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcotta._util.files import parse_json
from vcotta.nn.inputs import check_images
from vcotta.serve.bundle import Bundle, Preprocess
from vcotta.serve.jobs import Served
from vcotta.serve.requests import Limits, RefusedError
from vcotta.serve.streams import DEFAULT

__all__ = ["HEADER_LENGTH", "Inference", "describe_model", "read_inference", "render_inference"]

HEADER_LENGTH = "inference-header-content-length"
"""The header that says where the JSON ends and the bytes of tensors begin."""

_MOST_JSON = 4 * 2**20  # bytes: as Python objects they take some twenty times as much
_INPUT = "images"
_OUTPUTS = {"probabilities": "FP32", "labels": "INT64", "entropy": "FP32"}


@dataclass
class Inference:
    """What a request asks for.

    Attributes:
        images: The images.
        stream: Name of the stream, by the request's parameter ``stream``.
        adapt: Whether to adapt to the images, by the parameter ``adapt``.
        identity: The request's ``id``, which the answer repeats.
        outputs: The tensors to return by name, and whether as bytes.
        head: Length of the answer's JSON, if bytes follow.
    """

    images: Tensor
    stream: str = DEFAULT
    adapt: bool = True
    identity: str = ""
    outputs: dict[str, bool] = field(default_factory=dict)
    head: int | None = None


def describe_model(name: str, bundle: Bundle) -> dict[str, Any]:
    """Return the model's metadata."""
    shapes = {"probabilities": [-1, len(bundle.class_names)], "labels": [-1], "entropy": [-1]}
    return {
        "name": name,
        "platform": "vcotta",
        "inputs": [{"name": _INPUT, "datatype": "FP32", "shape": [-1, *bundle.preprocess.shape]}],
        "outputs": [{"name": key, "datatype": kind, "shape": shapes[key]} for key, kind in _OUTPUTS.items()],
    }


def read_inference(body: bytes, head: str | None, preprocess: Preprocess, limits: Limits) -> Inference:
    """Read the body of an inference request; ``head`` is the value of its header `HEADER_LENGTH`.

    Raises:
        RefusedError: 413 if there are too many images or bytes, 422 for anything else that is wrong.
    """
    length = len(body)
    if head is not None:
        if not (head.isdecimal() and len(head) < 20 and int(head) <= len(body)):
            raise _expected("Inference-Header-Content-Length to be a length within the body", head)
        length = int(head)
    if length > _MOST_JSON:
        detail = f"Expected at most {_MOST_JSON} bytes of JSON, but got {length}. Send the tensor as bytes behind it."
        raise RefusedError(413, detail)
    try:
        asked = parse_json(body[:length], "the request")
    except ValueError as error:
        raise RefusedError(422, str(error).removesuffix(" Restore it.")) from error
    asked = _object(asked, "the request", ("id", "parameters", "inputs", "outputs"))
    parameters = _object(asked.get("parameters", {}), "`parameters`", ("stream", "adapt", "binary_data_output"))
    stream, adapt = parameters.get("stream", DEFAULT), parameters.get("adapt", True)
    identity = asked.get("id", "")
    if not isinstance(identity, str) or len(identity) > 200 or any("\ud800" <= c <= "\udfff" for c in identity):
        raise _expected("`id` to be a text of at most 200 characters", identity)
    if not isinstance(stream, str):
        raise _expected("the parameter `stream` to be a name", stream)
    if not isinstance(adapt, bool):
        raise _expected("the parameter `adapt` to be true or false", adapt)
    outputs = _read_outputs(asked.get("outputs"), parameters.get("binary_data_output", False))
    images = _read_images(asked.get("inputs"), body[length:], preprocess, limits)
    return Inference(images, stream, adapt, identity, outputs)


def render_inference(served: Served, asked: Inference, model: str) -> bytes:
    """Return the body of an answer, and note in ``asked`` where its JSON ends."""
    answer = served.answer
    values = {
        "probabilities": answer.probabilities.float(),
        "labels": answer.probabilities.argmax(1),
        "entropy": answer.entropy.float(),
    }
    outputs, parts = [], []
    for name, binary in asked.outputs.items():
        tensor = values[name]
        described: dict[str, Any] = {"name": name, "datatype": _OUTPUTS[name], "shape": list(tensor.shape)}
        if binary:
            array = tensor.contiguous().numpy()
            parts.append(array.astype(array.dtype.newbyteorder("<")).tobytes())
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = tensor.flatten().tolist()
        outputs.append(described)
    about = {"stream": asked.stream, "changes": served.changes, "adapted": answer.adapted}
    about |= {} if served.step is None else {"step": served.step}  # the protocol has no null
    named = {"id": asked.identity} if asked.identity else {}
    content = {"model_name": model, **named, "parameters": about, "outputs": outputs}
    head = json.dumps(content, allow_nan=False).encode()
    asked.head = len(head) if parts else None
    return b"".join([head, *parts])


def _read_outputs(asked: Any, default: Any) -> dict[str, bool]:
    if not isinstance(default, bool):
        raise _expected("the parameter `binary_data_output` to be true or false", default)
    if asked is None or asked == []:
        return dict.fromkeys(_OUTPUTS, default)
    if not isinstance(asked, list) or len(asked) > len(_OUTPUTS):
        raise _expected(f"`outputs` to be a list of at most {len(_OUTPUTS)} objects", asked)
    outputs = {}
    for one in asked:
        described = _object(one, "an output", ("name", "parameters"))
        more = _object(described.get("parameters", {}), "an output's `parameters`", ("binary_data",))
        name, binary = described.get("name"), more.get("binary_data", default)
        if not isinstance(name, str) or name not in _OUTPUTS or not isinstance(binary, bool):
            raise _expected(f"an output with one of the names {', '.join(_OUTPUTS)}", one)
        outputs[name] = binary
    return outputs


def _read_images(inputs: Any, raw: bytes, preprocess: Preprocess, limits: Limits) -> Tensor:
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise _expected(f"`inputs` to be a list of one tensor, {_INPUT!r}", inputs)
    tensor = _object(inputs[0], "the input", ("name", "datatype", "shape", "parameters", "data"))
    more = _object(tensor.get("parameters", {}), "the input's `parameters`", ("binary_data_size",))
    if (tensor.get("name"), tensor.get("datatype")) != (_INPUT, "FP32"):
        raise _expected(f"an input {_INPUT!r} of FP32", (tensor.get("name"), tensor.get("datatype")))
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**31 for n in shape):
        raise _expected("the input's `shape` to be a list of whole numbers", shape)
    if len(shape) != 4 or shape[0] < 1 or tuple(shape[1:]) != preprocess.shape:
        expected = ", ".join(map(str, ("images", *preprocess.shape)))
        raise _expected(f"an input of shape ({expected})", shape)
    if shape[0] > limits.images:
        raise RefusedError(413, f"Expected at most {limits.images} images in a request, but got {shape[0]}.")
    if "binary_data_size" in more:
        size = more["binary_data_size"]
        if size != 4 * math.prod(shape) or len(raw) != size or "data" in tensor:
            raise _expected(f"{4 * math.prod(shape)} bytes behind the JSON, and no `data`", (size, len(raw)))
        values = np.frombuffer(raw, "<f4")
    elif raw:
        raise _expected("no bytes behind the JSON without `binary_data_size`", len(raw))
    else:
        values = _numbers(tensor.get("data"), shape)
    images = torch.from_numpy(values.astype(np.float32).reshape(shape))
    try:
        check_images(images)
    except ValueError as error:
        raise RefusedError(422, str(error)) from error
    return images.clamp_(0, 1)


def _numbers(data: Any, shape: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The numbers of a list, flat or nested as the shape says."""
    try:
        array = np.asarray(data if isinstance(data, list) else None)
    except ValueError:  # nested unevenly
        array = np.asarray(None)
    if array.dtype.kind not in "iuf" or array.shape not in (tuple(shape), (math.prod(shape),)):
        raise _expected(f"`data` to be {math.prod(shape)} numbers, flat or nested as `shape` says", _kind(array))
    with np.errstate(over="ignore"):  # too large for a float: refused as infinite
        return array.astype(np.float32)


def _kind(array: np.ndarray[Any, Any]) -> str:
    return "something else" if array.dtype.kind not in "iuf" else f"numbers of shape {list(array.shape)}"


def _object(value: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object with known names only: a misspelt parameter must not adapt."""
    if not isinstance(value, dict):
        raise _expected(f"{what} to be an object", value)
    if odd := next((name for name in value if name not in known), None):
        raise _expected(f"{what} to have only {', '.join(known)}", odd)
    return value


def _expected(what: str, got: Any) -> RefusedError:
    return RefusedError(422, f"Expected {what}, but got {ascii(got)[:80]}.")
