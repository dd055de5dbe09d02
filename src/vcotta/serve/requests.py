"""The images of a request, within limits."""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import torch
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from vcotta._util.validation import Count, Positive, Settings, between
from vcotta.data import to_tensor
from vcotta.nn.inputs import check_images
from vcotta.serve.bundle import Preprocess
from vcotta.serve.decode import Array, ImageRefusedError, decode
from vcotta.serve.decoders import BusyError, Decoders

__all__ = ["FORM", "NPY", "Limits", "RefusedError", "decode_files", "decode_npy", "discard", "read_body", "read_images"]

FORM, NPY = "multipart/form-data", "application/x-npy"

_PILLOW_LIMIT = 89_478_485  # pixels; Pillow warns about larger images
_MOST_HEADER = 1024  # bytes of an .npy header, usually 118
_DISCARDED = 4  # of a refused body so many times `Limits.body` are read


class RefusedError(Exception):
    """A request that is not served: HTTP status, text and headers of the answer."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Limits(Settings):
    """Bounds on what requests may cost.

    Attributes:
        body: Bytes of a request.
        images: Images in a request.
        image_pixels: Pixels of an image file before it is resized, read from its header.
        request_pixels: Pixels of all image files of a request together.
        queue: Images of one stream that may wait for the adapter; further requests are refused (429).
        requests: Requests that may be read at once, half of them of one stream; further ones are refused (429).
        read_seconds: Seconds a client may take to send a request.
        decode_seconds: Seconds that decoding the images of a request may take, and that it may wait for others.
    """

    body: Count = 16 * 2**20
    images: Count = 256
    image_pixels: Annotated[int, between(1, _PILLOW_LIMIT)] = 25_000_000
    request_pixels: Count = 100_000_000
    queue: Count = 1024
    requests: Count = 64
    read_seconds: Positive = 30.0
    decode_seconds: Positive = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue < self.images:
            raise ValueError(
                f"Expected `queue` to hold a request of {self.images} images, but got {self.queue}. "
                "Raise `queue` or lower `images`."
            )


# The body.


async def read_images(request: Request, preprocess: Preprocess, limits: Limits, decoders: Decoders) -> Tensor:
    """Read the images of a request, a form with files or an array; files are decoded in processes of their own.

    Raises:
        RefusedError: 400, 408, 413, 415, 422 or 503.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (FORM, NPY):
        raise RefusedError(415, f"Expected the content type {FORM} or {NPY}, but got {kind[:80]!r}.")
    try:
        async with asyncio.timeout(limits.read_seconds):
            if kind == NPY:
                body = b"".join([chunk async for chunk in _limited(request, limits)])
            else:
                files = await _read_form(request, limits)
    except TimeoutError:
        detail = f"Expected the request within {limits.read_seconds:g} seconds, but it took longer."
        raise RefusedError(408, detail) from None
    except ClientDisconnect:
        raise RefusedError(400, "The client disconnected before the request was complete.") from None
    if kind == NPY:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(decoders.threads, decode_npy, body, preprocess, limits)
    _check_files(files, limits)
    try:
        return _as_tensor(await decoders.decode(files, **_arguments(preprocess, limits)))
    except ImageRefusedError as error:
        raise RefusedError(error.status, error.detail) from error
    except BusyError as error:
        raise RefusedError(503, str(error), Retry_After="5") from error


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request; raise `RefusedError` (400, 408 or 413) if it is too slow, too large or cut off."""
    try:
        async with asyncio.timeout(limits.read_seconds):
            return b"".join([chunk async for chunk in _limited(request, limits)])
    except TimeoutError:
        detail = f"Expected the request within {limits.read_seconds:g} seconds, but it took longer."
        raise RefusedError(408, detail) from None
    except ClientDisconnect:
        raise RefusedError(400, "The client disconnected before the request was complete.") from None


async def discard(request: Request, limits: Limits) -> None:
    """Read the rest of a refused body, within bounds: many clients send everything before they read the answer."""
    left = _DISCARDED * limits.body
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: the body has been read to its end
        return


class _FormParser(MultiPartParser):
    """Notes whether the closing boundary arrived: without it the last file may be incomplete, or others missing."""

    ended = False

    def on_end(self) -> None:
        self.ended = True


async def _read_form(request: Request, limits: Limits) -> list[bytes]:
    parser = _FormParser(request.headers, _limited(request, limits), max_files=limits.images, max_fields=1)
    parser.spool_max_size = limits.body  # keeps the form in memory, which is limited, and off the disk
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RefusedError(413 if "Too many files" in error.message else 422, error.message) from error
    except (KeyError, ValueError) as error:  # no boundary, or names that are not text
        detail = f"Expected a form with files in the field `images`, but it cannot be read: {error}"
        raise RefusedError(422, detail) from error
    try:
        if not parser.ended:
            raise RefusedError(422, "Expected a form that ends with its closing boundary, but it was cut off.")
        odd = [name for name, value in form.multi_items() if name != "images" or not isinstance(value, UploadFile)]
        if odd:
            raise RefusedError(422, f"Expected only files in the form's field `images`, but got {odd[0][:80]!r}.")
        return [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    finally:
        await form.close()


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    too_large = RefusedError(413, f"Expected a request of at most {limits.body} bytes, but got more.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > limits.body:
        raise too_large
    got = 0
    async for chunk in request.stream():
        got += len(chunk)
        if got > limits.body:
            raise too_large
        yield chunk


# The images.


def decode_files(files: Sequence[bytes], preprocess: Preprocess, limits: Limits) -> Tensor:
    """Decode PNG and JPEG files here, and resize them to floats in [0, 1] of shape (images, channels, size, size).

    Raises:
        RefusedError: 413 if there are too many or too large images, 422 if one cannot be read.

    Example:
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (64, 48), "white").save(file, "PNG")
        >>> decode_files([file.getvalue()], Preprocess(32), Limits()).shape
        torch.Size([1, 3, 32, 32])
    """
    _check_files(files, limits)
    try:
        return _as_tensor(decode(files, **_arguments(preprocess, limits)))
    except ImageRefusedError as error:
        raise RefusedError(error.status, error.detail) from error


def _check_files(files: Sequence[bytes], limits: Limits) -> None:
    if not files:
        raise RefusedError(422, "Expected at least one image, but got none. Send files in the form's field `images`.")
    _check_count(len(files), limits)


def _arguments(preprocess: Preprocess, limits: Limits) -> dict[str, Any]:
    return asdict(preprocess) | {"image_pixels": limits.image_pixels, "request_pixels": limits.request_pixels}


def _as_tensor(pixels: Array) -> Tensor:
    return to_tensor(pixels).contiguous()  # one memory layout, or the same pixels would round differently


def decode_npy(body: bytes, preprocess: Preprocess, limits: Limits) -> Tensor:
    """Read a float32 array of shape (images, channels, size, size) in [0, 1], as ``numpy.save`` writes it.

    Arrays of Python objects, which are pickles, are refused by their header.

    Raises:
        RefusedError: 413 if there are too many images, 422 if it is anything else.

    Example:
        >>> file = io.BytesIO()
        >>> np.save(file, np.zeros((2, 3, 32, 32), np.float32))
        >>> decode_npy(file.getvalue(), Preprocess(32), Limits()).shape
        torch.Size([2, 3, 32, 32])
    """
    shape, start = _npy_shape(body)
    _check_count(shape[0], limits)
    if shape[0] <= 0 or shape[1:] != preprocess.shape:
        expected = ", ".join(map(str, ("images", *preprocess.shape)))
        transposed = shape[0] > 0 and (shape[3], *shape[1:3]) == preprocess.shape
        hint = "Try images.transpose(0, 3, 1, 2)." if transposed else "Resize the images to that shape first."
        raise RefusedError(422, f"Expected an array of shape ({expected}), but got {shape}. {hint}")
    if len(body) - start != 4 * math.prod(shape):
        raise RefusedError(422, f"Expected {4 * math.prod(shape)} bytes after the header, but got {len(body) - start}.")
    images = torch.from_numpy(np.frombuffer(body, "<f4", offset=start).reshape(shape).copy())
    try:
        check_images(images)
    except ValueError as error:
        raise RefusedError(422, str(error)) from error
    return images.clamp_(0, 1)


def _check_count(count: int, limits: Limits) -> None:
    if count > limits.images:
        raise RefusedError(413, f"Expected at most {limits.images} images in a request, but got {count}. Send fewer.")


def _npy_shape(body: bytes) -> tuple[tuple[int, ...], int]:
    """The shape in an .npy header, and where the numbers start; refuses all but float32 in four dimensions."""
    file, hint = io.BytesIO(body), "Try numpy.save(file, numpy.ascontiguousarray(images, numpy.float32))."
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("another version of the format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_MOST_HEADER)
    except Exception:  # numpy raises many kinds of errors for a damaged header
        got = f"{len(body)} bytes that begin with {body[:8]!r}" if body else "no bytes"
    else:
        if dtype == np.dtype("<f4") and not fortran and len(shape) == 4:
            return shape, file.tell()
        order, endian = "Fortran" if fortran else "C", "big-endian " if dtype.str.startswith(">") else ""
        got = f"a {order}-ordered {endian}{dtype.name} array of shape {shape}"
        if dtype.itemsize == 1:
            hint = "Scale bytes first: images.astype(numpy.float32) / 255."
        elif len(shape) == 3:
            hint = "Add the dimension of the images: images[None]."
    raise RefusedError(
        422, f"Expected a C-ordered float32 array (images, channels, height, width) in .npy, but got {got}. {hint}"
    )
