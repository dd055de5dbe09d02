"""From the bytes of a request to images in [0, 1]: nothing is decoded before its size is known and allowed."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vcotta.data import to_tensor
from vcotta.data.image_files import to_size
from vcotta.inputs import check_images
from vcotta.serve.bundle import Preprocess
from vcotta.serve.limits import Limits, RefusedError

__all__ = ["decode_files", "decode_npy"]

_FORMATS = ("PNG", "JPEG")  # fewer decoders, fewer ways in; JPEG's also opens several JPEGs in one file, as MPO
_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"})  # eight bits a channel, or fewer
_MOST_SCANS = 100  # a progressive JPEG has about ten; each one more makes the decoder pass over the whole image again
_LONGEST = 20  # times the shorter side: resizing would make a thin image enormous
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '<f4', 'fortran_order': False, 'shape': \((\d{1,9}), (\d{1,9}), (\d{1,9}), (\d{1,9})\), \} *\n"
)
_OTHER_HEADER = re.compile(  # of other arrays, to say what came; none of them is taken
    rb"\{'descr': '([<>|=]?[biufcOSUV]\d{0,3})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,200})\), \} *\n"
)
_LONGEST_HEADER = 1024


def decode_files(files: Sequence[bytes], preprocess: Preprocess, limits: Limits) -> Tensor:
    """Decode image files and bring them to the network's size.

    Args:
        files: The files' bytes: PNG or JPEG.
        preprocess: What the network takes.
        limits: What may be sent.

    Returns:
        Floats in [0, 1], (images, channels, size, size).

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
    return to_tensor(np.stack(decoded)).contiguous()  # in one layout, or the same pixels round in another way


def decode_npy(body: bytes, preprocess: Preprocess, limits: Limits) -> Tensor:
    """Read a float32 array as ``numpy.save`` writes it, (images, channels, size, size), in [0, 1].

    The header must be letter for letter what NumPy writes for such an array: nothing is parsed beyond that, and no
    pickle can hide in it.

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
    if shape[0] == 0 or shape[1:] != preprocess.shape:
        expected = ", ".join(map(str, ("images", *preprocess.shape)))
        turned = shape[0] > 0 and (shape[3], *shape[1:3]) == preprocess.shape
        hint = "Try images.transpose(0, 3, 1, 2)." if turned else "Bring the images to that shape first."
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
    """The shape that an .npy header names, and where the numbers start."""
    length = int.from_bytes(body[8:10], "little") if body.startswith(_MAGIC) else 0
    header = body[10 : 10 + length] if length <= _LONGEST_HEADER else b""
    if found := _HEADER.fullmatch(header):
        return tuple(map(int, found.groups())), 10 + length
    came, hint = _what_came(body, header)
    raise RefusedError(
        422,
        "Expected what numpy.save writes of a C-ordered float32 array (images, channels, height, width), but got "
        f"{came}. {hint}",
    )


def _what_came(body: bytes, header: bytes) -> tuple[str, str]:
    """What was sent in place of an array that is taken, and what to do about it."""
    hint = "Try numpy.save(file, numpy.ascontiguousarray(images, numpy.float32))."
    if not body.startswith(_MAGIC[:6]):
        return f"{len(body)} bytes that begin with {body[:8]!r}" if body else "no bytes", hint
    if not (found := _OTHER_HEADER.fullmatch(header)):
        return "an .npy file whose header is of no such array", hint
    text, fortran, shape = (part.decode() for part in found.groups())
    dtype, dimensions = _dtype_name(text), len(re.findall(r"\d+", shape))
    if dtype in ("uint8", "int8"):
        hint = "Scale bytes first: images.astype(numpy.float32) / 255."
    elif dimensions == 3:
        hint = "Add the dimension of the images: images[None]."
    order = "Fortran" if fortran == "True" else "C"
    return f"a {order}-ordered {dtype} array of shape ({shape})", hint


def _dtype_name(text: str) -> str:
    """The name of a type that a header spells as, say, ``>f4``.

    Example:
        >>> _dtype_name("<f8"), _dtype_name("|u1"), _dtype_name(">f4"), _dtype_name("<f3")
        ('float64', 'uint8', 'big-endian float32', '<f3')
    """
    try:
        name = np.dtype(text).name
    except TypeError:  # no type of NumPy's
        return text
    return f"big-endian {name}" if text.startswith(">") else name


def _open(content: bytes, name: str, limits: Limits) -> Image.Image:
    """Read an image's header alone, and refuse it by what that says."""
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError as error:
        raise RefusedError(413, f"Expected {name} to have at most {limits.image_pixels} pixels: {error}") from error
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        raise RefusedError(422, f"Expected {name} to be a PNG or JPEG file, but it cannot be read.") from error
    width, height = image.size
    if width * height > limits.image_pixels:
        raise RefusedError(
            413, f"Expected {name} to have at most {limits.image_pixels} pixels, but it has {width} x {height}."
        )
    if min(width, height) < 1 or max(width, height) > _LONGEST * min(width, height):
        raise RefusedError(
            422, f"Expected {name} to be at most {_LONGEST} times as long as wide, but it has {width} x {height}."
        )
    if image.mode not in _MODES:
        raise RefusedError(422, f"Expected {name} to have eight bits a channel, but its mode is {image.mode}.")
    if image.format != "PNG" and content.count(b"\xff\xda") > _MOST_SCANS:
        raise RefusedError(422, f"Expected {name} to have at most {_MOST_SCANS} scans, but it has more.")
    return image


def _decode(image: Image.Image, preprocess: Preprocess, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    try:
        converted = image.convert("RGB" if preprocess.channels == 3 else "L")
    except Exception as error:  # as above
        raise RefusedError(422, f"Expected {name} to be a whole image, but it cannot be decoded.") from error
    try:
        sized = to_size(converted, preprocess.size, preprocess.how, name)
    except ValueError as error:
        raise RefusedError(422, str(error)) from error
    return np.asarray(sized).reshape(preprocess.size, preprocess.size, preprocess.channels)
