"""PNG and JPEG files to pixels: no image is decoded before its size and its scans are known and allowed.

The server runs this module as processes of its own (`vcotta.serve.decoders`), so that a decoding can be ended: it
imports no torch. On standard input comes a line of JSON with the arguments of `decode` and the sizes of the files, then
the files; on standard output goes a line of JSON with the shape or the refusal, then the pixels.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from vcotta.data.sizes import to_size

__all__ = ["READY", "Array", "ImageRefusedError", "decode"]

READY = b"ready\n"  # the first thing on standard output
_FORMATS = ("PNG", "JPEG")  # few decoders, few vulnerabilities; "JPEG" also opens MPO, several JPEGs in one file
_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"})  # at most eight bits a channel
_MOST_SCANS = 20  # of a progressive JPEG: encoders write 10, and 18 for CMYK; each costs a pass over the whole image
_SEGMENT = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # of a JPEG; other markers have no length
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_MOST_ASPECT = 20  # longer side by shorter side: resizing would make a thin image enormous

Array = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class ImageRefusedError(Exception):
    """Images that are not decoded: HTTP status and reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def decode(
    files: Sequence[bytes], *, size: int, channels: int, how: str, image_pixels: int, request_pixels: int
) -> Array:
    """Decode PNG and JPEG files and resize them to bytes of shape (images, size, size, channels).

    Args:
        files: Contents of the files, at least one.
        size: As for `vcotta.serve.Preprocess`.
        channels: Likewise.
        how: Likewise.
        image_pixels: As for `vcotta.serve.requests.Limits`.
        request_pixels: Likewise.

    Raises:
        ImageRefusedError: 413 if images are too large, 422 if one cannot be read.
    """
    pixels = len(files) * size * size  # of the result: small files may be enlarged
    if pixels > request_pixels:
        detail = f"Expected at most {request_pixels // size**2} images of {size} x {size} in a request, but got more."
        raise ImageRefusedError(413, detail)
    pixels, decoded = 0, []
    for number, content in enumerate(files):
        image = _open(content, f"image {number}", image_pixels)
        pixels += image.width * image.height
        if pixels > request_pixels:
            raise ImageRefusedError(413, f"Expected at most {request_pixels} pixels in a request, but got more.")
        decoded.append(_decode(image, size, channels, how, f"image {number}"))
    return np.stack(decoded)


def _open(content: bytes, name: str, most: int) -> Image.Image:
    """Read an image's header, and check what it says."""
    allowed = f"Expected {name} to have at most {most} pixels"
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise ImageRefusedError(413, f"{allowed}: {error}") from error
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file
        raise ImageRefusedError(422, f"Expected {name} to be a PNG or JPEG file, but it cannot be read.") from error
    width, height = image.size
    if width * height > most:
        raise ImageRefusedError(413, f"{allowed}, but it has {width} x {height}.")
    if min(width, height) < 1 or max(width, height) > _MOST_ASPECT * min(width, height):
        expected = f"Expected the longer side of {name} to be at most {_MOST_ASPECT} times the shorter"
        raise ImageRefusedError(422, f"{expected}, but it has {width} x {height}.")
    raw = [str(tile[3]) for tile in image.tile]  # such as "RGB;16B", which Pillow would cut down to the mode "RGB"
    if image.mode not in _MODES or any(";16" in mode for mode in raw):
        detail = f"Expected {name} to have eight bits a channel, but its mode is {', '.join(raw) or image.mode}."
        raise ImageRefusedError(422, detail)
    if image.format != "PNG" and (scans := _count_scans(content)) > _MOST_SCANS:
        raise ImageRefusedError(422, f"Expected {name} to have at most {_MOST_SCANS} scans, but it has {scans}.")
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


def _decode(image: Image.Image, size: int, channels: int, how: str, name: str) -> Array:
    try:
        converted = image.convert("RGB" if channels == 3 else "L")
    except Exception as error:  # as above
        raise ImageRefusedError(422, f"Expected {name} to be a complete image, but it cannot be decoded.") from error
    try:
        sized = to_size(converted, size, how, name)
    except ValueError as error:
        raise ImageRefusedError(422, str(error)) from error
    return np.asarray(sized).reshape(size, size, channels)


def _serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Decode request after request until the server closes the pipe, however it ends."""
    while line := source.readline():
        arguments: dict[str, Any] = json.loads(line)
        files = [source.read(size) for size in arguments.pop("files")]
        answer: dict[str, Any]
        content = b""
        try:
            pixels = decode(files, **arguments)
            answer, content = {"shape": pixels.shape}, pixels.tobytes()
        except ImageRefusedError as error:
            answer = {"status": error.status, "detail": error.detail}
        sink.write(json.dumps(answer).encode() + b"\n" + content)
        sink.flush()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, while requests are still answered
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    try:
        _serve(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:  # the server was killed
        os._exit(1)
