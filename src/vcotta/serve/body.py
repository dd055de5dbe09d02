"""Reading a request's body: never more of it than is allowed, never for longer than is allowed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Executor

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from torch import Tensor

from vcotta.serve.bundle import Preprocess
from vcotta.serve.decode import decode_files, decode_npy
from vcotta.serve.limits import Limits, RefusedError

__all__ = ["FORM", "NPY", "discard", "read_images"]

FORM, NPY = "multipart/form-data", "application/x-npy"
_DISCARDED = 4  # times the limit of a body: so much of a refused one is still read, so that the client hears why


async def read_images(request: Request, preprocess: Preprocess, limits: Limits, pool: Executor) -> Tensor:
    """Read and decode the images of a request, in any of the two forms.

    Args:
        request: The request.
        preprocess: What the network takes.
        limits: What may be sent.
        pool: Where images are decoded, so that other requests need not wait for it.

    Raises:
        RefusedError: 408, 413, 415 or 422.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (FORM, NPY):
        raise RefusedError(415, f"Expected the content type {FORM} or {NPY}, but got {kind[:80]!r}.")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.read_seconds):
            if kind == NPY:
                body = b"".join([chunk async for chunk in _limited(request, limits)])
            else:
                files = await _read_form(request, limits)
    except TimeoutError:
        raise RefusedError(
            408, f"Expected the request within {limits.read_seconds:g} seconds, but it took longer."
        ) from None
    except ClientDisconnect:
        raise RefusedError(400, "The client went away before the request was whole.") from None
    if kind == NPY:
        return await loop.run_in_executor(pool, decode_npy, body, preprocess, limits)
    return await loop.run_in_executor(pool, decode_files, files, preprocess, limits)


async def discard(request: Request, limits: Limits) -> None:
    """Read what is left of a refused body, within bounds: a client that is still sending does not listen."""
    left = _DISCARDED * limits.body
    try:
        async with asyncio.timeout(limits.read_seconds):
            async for chunk in request.stream():
                left -= len(chunk)
                if left < 0:
                    return
    except (TimeoutError, ClientDisconnect, RuntimeError):  # RuntimeError: it was read to the end already
        return


async def _read_form(request: Request, limits: Limits) -> list[bytes]:
    parser = MultiPartParser(request.headers, _limited(request, limits), max_files=limits.images, max_fields=1)
    parser.spool_max_size = limits.body  # in memory, which is counted, and never on disk, which is not
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RefusedError(413 if "Too many files" in error.message else 422, f"{error.message}") from error
    except (KeyError, ValueError, UnicodeError) as error:  # no boundary, or names that are no text
        raise RefusedError(
            422, f"Expected a form with files in the field `images`, but it cannot be read: {error}"
        ) from error
    try:
        odd = [name for name, value in form.multi_items() if name != "images" or not isinstance(value, UploadFile)]
        if odd:
            raise RefusedError(422, f"Expected files in the form's field `images` alone, but got {odd[0][:80]!r}.")
        return [await value.read() for _, value in form.multi_items() if isinstance(value, UploadFile)]
    finally:
        await form.close()


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    said = request.headers.get("content-length", "")
    got = int(said) if said.isdecimal() and len(said) < 20 else 0
    if got <= limits.body:
        got = 0
        async for chunk in request.stream():
            got += len(chunk)
            if got > limits.body:
                break
            yield chunk
    if got > limits.body:
        raise RefusedError(413, f"Expected a request of at most {limits.body} bytes, but got more.")
