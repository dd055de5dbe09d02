"""The images of a request, within limits: no image is decoded before its size is known and allowed."""

from __future__ import annotations

import asyncio
import io
import math
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from vcotta._util.validation import Count, Positive, Settings, between
from vcotta.data import to_tensor
from vcotta.data.image_files import to_size
from vcotta.nn.inputs import check_images
from vcotta.serve.bundle import Preprocess

__all__ = ["FORM", "NPY", "Limits", "RefusedError", "decode_files", "decode_npy", "discard", "read_body", "read_images"]

FORM, NPY = "multipart/form-data", "application/x-npy"

_PILLOW_LIMIT = 89_478_485  # pixels; Pillow warns about larger images
_FORMATS = ("PNG", "JPEG")  # few decoders, few vulnerabilities; "JPEG" also opens MPO, several JPEGs in one file
_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"})  # at most eight bits a channel
_MOST_SCANS = 20  # of a progressive JPEG: encoders write 10, and 18 for CMYK; each costs a pass over the whole image
_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # of a JPEG; other markers have no length
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_MOST_ASPECT = 20  # longer side by shorter side: resizing would make a thin image enormous
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
    """

    body: Count = 16 * 2**20
    images: Count = 256
    image_pixels: Annotated[int, between(1, _PILLOW_LIMIT)] = 25_000_000
    request_pixels: Count = 100_000_000
    queue: Count = 1024
    requests: Count = 64
    read_seconds: Positive = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.queue < self.images:
            raise ValueError(
                f"Expected `queue` to hold a request of {self.images} images, but got {self.queue}. "
                "Raise `queue` or lower `images`."
            )


# The body.


async def read_images(request: Request, preprocess: Preprocess, limits: Limits, pool: Executor) -> Tensor:
    """Read the images of a request, a form with files or an array, and decode them in a pool of threads.

    Raises:
        RefusedError: 400, 408, 413, 415 or 422.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (FORM, NPY):
        raise RefusedError(415, f"Expected the content type {FORM} or {NPY}, but got {kind[:80]!r}.")
    decode: Callable[[], Tensor]
    try:
        async with asyncio.timeout(limits.read_seconds):
            if kind == NPY:
                body = b"".join([chunk async for chunk in _limited(request, limits)])
                decode = partial(decode_npy, body, preprocess, limits)
            else:
                decode = partial(decode_files, await _read_form(request, limits), preprocess, limits)
    except TimeoutError:
        detail = f"Expected the request within {limits.read_seconds:g} seconds, but it took longer."
        raise RefusedError(408, detail) from None
    except ClientDisconnect:
        raise RefusedError(400, "The client disconnected before the request was complete.") from None
    return await asyncio.get_running_loop().run_in_executor(pool, decode)


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
    """Decode PNG and JPEG files, and resize them to floats in [0, 1] of shape (images, channels, size, size).

    Raises:
        RefusedError: 413 if there are too many or too large images, 422 if one cannot be read.

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (64, 48), "white").save(file, "PNG")
        >>> decode_files([file.getvalue()], Preprocess(32), Limits()).shape
        torch.Size([1, 3, 32, 32])
    """
    if not files:
        raise RefusedError(422, "Expected at least one image, but got none. Send files in the form's field `images`.")
    _check_count(len(files), limits)
    pixels, decoded = 0, []
    for number, content in enumerate(files):
        image = _open(content, f"image {number}", limits)
        pixels += image.width * image.height
        if pixels > limits.request_pixels:
            raise RefusedError(413, f"Expected at most {limits.request_pixels} pixels in a request, but got more.")
        decoded.append(_decode(image, preprocess, f"image {number}"))
    return to_tensor(np.stack(decoded)).contiguous()  # one memory layout, or the same pixels would round differently


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


def _open(content: bytes, name: str, limits: Limits) -> Image.Image:
    """Read an image's header, and check what it says."""
    allowed = f"Expected {name} to have at most {limits.image_pixels} pixels"
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise RefusedError(413, f"{allowed}: {error}") from error
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file
        raise RefusedError(422, f"Expected {name} to be a PNG or JPEG file, but it cannot be read.") from error
    width, height = image.size
    if width * height > limits.image_pixels:
        raise RefusedError(413, f"{allowed}, but it has {width} x {height}.")
    if min(width, height) < 1 or max(width, height) > _MOST_ASPECT * min(width, height):
        expected = f"Expected the longer side of {name} to be at most {_MOST_ASPECT} times the shorter"
        raise RefusedError(422, f"{expected}, but it has {width} x {height}.")
    raw = [str(tile[3]) for tile in image.tile]  # such as "RGB;16B", which Pillow would cut down to the mode "RGB"
    if image.mode not in _MODES or any(";16" in mode for mode in raw):
        detail = f"Expected {name} to have eight bits a channel, but its mode is {', '.join(raw) or image.mode}."
        raise RefusedError(422, detail)
    if image.format != "PNG" and (scans := _count_scans(content)) > _MOST_SCANS:
        raise RefusedError(422, f"Expected {name} to have at most {_MOST_SCANS} scans, but it has {scans}.")
    return image


def _count_scans(content: bytes) -> int:
    """Count the scans of a JPEG's first image, in the way its decoder finds them.

    Segments are skipped by their length, and nothing after the end of the image counts: metadata, thumbnails and
    videos may hold any bytes.
    """
    scans, place = 0, 2
    while found := _SEGMENT.search(content, place):
        marker, place = content[found.end() - 1], found.end()
        if marker == _END_OF_IMAGE:
            break
        scans += marker == _START_OF_SCAN
        place += max(2, int.from_bytes(content[place : place + 2]))
    return scans


def _decode(image: Image.Image, preprocess: Preprocess, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        converted = image.convert("RGB" if preprocess.channels == 3 else "L")
    except Exception as error:  # as above
        raise RefusedError(422, f"Expected {name} to be a complete image, but it cannot be decoded.") from error
    try:
        sized = to_size(converted, preprocess.size, preprocess.how, name)
    except ValueError as error:
        raise RefusedError(422, str(error)) from error
    return np.asarray(sized).reshape(preprocess.size, preprocess.size, preprocess.channels)
