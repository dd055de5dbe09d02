"""Decoding of images, and what is refused before it is decoded."""

from __future__ import annotations

import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from vcotta.serve.bundle import Preprocess
from vcotta.serve.requests import Limits, RefusedError, decode_files, decode_npy

SMALL = Preprocess(8)


def refusal(decode, *arguments) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        decode(*arguments)
    return caught.value


def test_a_file_is_decoded_to_its_pixels(png) -> None:
    content = png()
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    images = decode_files([content], SMALL, Limits())
    assert torch.equal(images, torch.from_numpy(pixels.copy()).permute(2, 0, 1).float()[None] / 255)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_eight_bit_images_of_any_mode_are_accepted(png, mode) -> None:
    assert decode_files([png(mode=mode)], SMALL, Limits()).shape == (1, 3, 8, 8)
    assert decode_files([png(mode=mode)], Preprocess(8, 1), Limits()).shape == (1, 1, 8, 8)


def test_other_sizes_are_resized_or_refused_by_the_bundles_preprocessing(png) -> None:
    assert decode_files([png(30, 20)], SMALL, Limits()).shape == (1, 3, 8, 8)
    assert decode_files([png(30, 20, kind="JPEG")], SMALL, Limits()).shape == (1, 3, 8, 8)
    assert refusal(decode_files, [png(9, 8)], Preprocess(8, how="none"), Limits()).status == 422


def test_sixteen_bit_images_are_refused_rather_than_clipped() -> None:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file, "PNG")
    assert "eight bits" in refusal(decode_files, [file.getvalue()], SMALL, Limits()).detail


def bomb(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [5001, 9000, 30_000])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(side, monkeypatch) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    assert refusal(decode_files, [bomb(side, side)], SMALL, Limits()).status == 413


def test_the_pixels_of_a_whole_request_are_limited(png) -> None:
    limits = Limits(request_pixels=250)
    assert decode_files([png(10, 10)] * 2, SMALL, limits).shape[0] == 2
    assert refusal(decode_files, [png(10, 10)] * 3, SMALL, limits).status == 413


def test_a_thin_image_that_resizing_would_make_enormous_is_refused() -> None:
    assert refusal(decode_files, [bomb(1, 20_000_000)], SMALL, Limits()).status == 422


@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_a_jpeg_with_endless_scans_is_refused(png, kind) -> None:
    more = {"save_all": True, "append_images": [Image.new("RGB", (16, 16))]} if kind == "MPO" else {}
    content = png(16, 16, kind=kind, progressive=True, **more)
    assert Image.open(io.BytesIO(content)).format == kind
    assert decode_files([content], SMALL, Limits()).shape[0] == 1
    end = content.index(b"\xff\xd9")  # of the first image
    scan = content[content.rindex(b"\xff\xda", 0, end) : end]
    assert "scans" in refusal(decode_files, [content[:end] + scan * 100 + content[end:]], SMALL, Limits()).detail


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"%PDF-1.4", b"<svg/>", os.urandom(500)])
def test_other_files_than_images_are_refused(content) -> None:
    assert refusal(decode_files, [content], SMALL, Limits()).status == 422


def test_damaged_images_are_decoded_or_refused_but_never_crash(png) -> None:
    draw = np.random.default_rng(0)
    refused = []
    for content in (png(40, 40), png(40, 40, kind="JPEG")):
        for _ in range(150):
            damaged = bytearray(content)
            for place in draw.integers(0, len(content), 8):
                damaged[place] = draw.integers(0, 256)
            try:
                images = decode_files([bytes(damaged[: draw.integers(1, len(content) + 1)])], SMALL, Limits())
                assert images.min() >= 0
                assert images.max() <= 1
            except RefusedError as error:
                refused.append(error.status)
    assert set(refused) <= {413, 422}
    assert len(refused) > 100


def test_an_array_is_read_bit_for_bit(npy, images) -> None:
    assert torch.equal(decode_npy(npy(images(5)), SMALL, Limits()), images(5))


def test_too_many_images_are_refused(npy, png, images) -> None:
    assert refusal(decode_npy, npy(images(5)), SMALL, Limits(images=4)).status == 413
    assert refusal(decode_files, [png()] * 5, SMALL, Limits(images=4)).status == 413


class Evil:
    def __reduce__(self):
        return os.abort, ()


def test_a_pickle_in_an_array_is_never_loaded(npy) -> None:
    pickled = npy(np.array([Evil()], dtype=object))
    assert b"abort" in pickled
    assert refusal(decode_npy, pickled, SMALL, Limits()).status == 422


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3, 8, 8), np.float64),
        np.zeros((2, 3, 8, 8), np.uint8),
        np.zeros((2, 3, 8, 8), ">f4"),
        np.zeros((2, 3, 8, 8), np.float32, order="F"),
        np.zeros((0, 3, 8, 8), np.float32),
        np.zeros((3, 8, 8), np.float32),
        np.zeros((2, 1, 8, 8), np.float32),
        np.zeros((2, 3, 8, 9), np.float32),
        np.full((2, 3, 8, 8), np.nan, np.float32),
        np.full((2, 3, 8, 8), 255, np.float32),
        np.full((2, 3, 8, 8), -1, np.float32),
    ],
)
def test_arrays_that_are_not_images_are_refused(npy, array) -> None:
    assert refusal(decode_npy, npy(array), SMALL, Limits()).status == 422


@pytest.mark.parametrize(
    ("array", "got", "hint"),
    [
        (np.zeros((2, 3, 8, 8), np.float64), "a C-ordered float64 array of shape (2, 3, 8, 8).", "numpy.float32"),
        (np.zeros((2, 3, 8, 8), np.uint8), "a C-ordered uint8 array of shape (2, 3, 8, 8).", "/ 255"),
        (np.zeros((2, 3, 8, 8), ">f4"), "a C-ordered big-endian float32 array of shape (2, 3, 8, 8).", "numpy.float32"),
        (np.zeros((2, 3, 8, 8), "f4", order="F"), "a Fortran-ordered float32 array of shape (2, 3, 8, 8).", "ascont"),
        (np.zeros((3, 8, 8), np.float32), "a C-ordered float32 array of shape (3, 8, 8).", "images[None]"),
        (np.zeros(7, np.float32), "a C-ordered float32 array of shape (7,).", "numpy.float32"),
        (np.zeros((), np.float32), "a C-ordered float32 array of shape ().", "numpy.float32"),
        (np.array([None]), "a C-ordered object array of shape (1,).", "numpy.float32"),
        (np.zeros(2, [("a", "f4")]), "a C-ordered void32 array of shape (2,).", "numpy.float32"),
        (np.zeros((2, 8, 8, 3), np.float32), "(2, 8, 8, 3).", "transpose(0, 3, 1, 2)"),
        (np.zeros((2, 3, 9, 9), np.float32), "(2, 3, 9, 9).", "Resize the images to that shape"),
    ],
)
def test_the_refusal_of_an_array_names_its_type_shape_and_order_and_what_to_do(npy, array, got, hint) -> None:
    detail = refusal(decode_npy, npy(array), SMALL, Limits()).detail
    assert got in detail.partition("but got ")[2]
    assert hint in detail.partition(got)[2]


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"", "no bytes"),
        (b"\x89PNG\r\n\x1a\nmore", r"12 bytes that begin with b'\x89PNG\r\n\x1a\n'"),
        (b"\x93NUMPY\x02\x00", "8 bytes that begin with"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"x" * 70_000, "70010 bytes that begin with"),
        (b"\x93NUMPY\x01\x00\xe8\x03" + b"(" * 1000, "1010 bytes that begin with"),
        (b"\x93NUMPY\x01\x00\x08\x00" + b"{'a': \n\xff", "18 bytes that begin with"),
    ],
)
def test_the_refusal_of_other_bytes_shows_how_they_begin(body, got) -> None:
    assert got in refusal(decode_npy, body, SMALL, Limits()).detail


def test_an_array_shorter_than_its_header_says_is_refused(npy, images) -> None:
    body = npy(images(2)).replace(b"(2, 3, 8, 8), }    ", b"(200, 3, 8, 8), }  ")
    assert b"200" in body
    assert "bytes after the header" in refusal(decode_npy, body, SMALL, Limits()).detail
    assert refusal(decode_npy, npy(images(2))[:-1], SMALL, Limits()).status == 422
    assert refusal(decode_npy, npy(images(2)) + b"x", SMALL, Limits()).status == 422


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="queue"):
        Limits(queue=10)
    with pytest.raises(ValueError, match="image_pixels"):
        Limits(image_pixels=10**9)
    with pytest.raises(ValueError, match="body"):
        Limits(body=0)


def png_file(kind: int, depth: int, values: int, before: bytes = b"", size: int = 8) -> bytes:
    """A PNG file of zeros with this colour type and bit depth, perhaps with a chunk before its header."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, depth, kind, 0, 0, 0))
    rows = (b"\0" + b"\0" * (size * values * depth // 8)) * size
    first = chunk(b"tEXt", before) if before else b""
    return b"\x89PNG\r\n\x1a\n" + first + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


COLOURS = {"grey": (0, 1), "RGB": (2, 3), "grey with alpha": (4, 2), "RGBA": (6, 4)}


@pytest.mark.parametrize("before", [b"", b"Title\0hidden"], ids=["", "another chunk first"])
@pytest.mark.parametrize("colours", COLOURS)
def test_sixteen_bits_a_channel_are_refused_and_eight_are_not(colours, before) -> None:
    kind, values = COLOURS[colours]
    assert decode_files([png_file(kind, 8, values)], Preprocess(8), Limits()).shape == (1, 3, 8, 8)
    with pytest.raises(RefusedError) as refused:
        decode_files([png_file(kind, 16, values, before)], Preprocess(8), Limits())
    assert refused.value.status == 422
    assert "eight bits a channel" in refused.value.detail


def with_scans(content: bytes, count: int) -> bytes:
    """A progressive JPEG with its last scan repeated until there are so many."""
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * (count - content.count(b"\xff\xda")) + content[-2:]


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_progressive_jpeg_as_encoders_write_it_is_decoded(png, mode) -> None:
    assert decode_files([png(16, 16, mode, "JPEG", progressive=True)], SMALL, Limits()).shape == (1, 3, 8, 8)


def test_more_scans_than_encoders_write_are_refused_before_anything_is_decoded(png, monkeypatch) -> None:
    content = png(16, 16, kind="JPEG", progressive=True)
    assert decode_files([with_scans(content, 20)], SMALL, Limits()).shape == (1, 3, 8, 8)
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("it was decoded"))
    found = refusal(decode_files, [with_scans(content, 21)], SMALL, Limits())
    assert (found.status, "at most 20 scans, but it has 21" in found.detail) == (422, True)


def test_bytes_after_the_end_of_a_jpeg_do_not_count_as_scans(png) -> None:
    trailer = np.random.default_rng(0).bytes(3_000_000)  # a phone appends a video
    assert trailer.count(b"\xff\xda") > 20
    assert decode_files([png(16, 16, kind="JPEG") + trailer], SMALL, Limits()).shape == (1, 3, 8, 8)


def test_metadata_do_not_count_as_scans_and_do_not_hide_them(png) -> None:
    segment = b"\xff\xe1\xff\xff" + b"\xff\xda" * 32_766 + b"\0"
    content = png(16, 16, kind="JPEG", progressive=True)
    with_metadata = content[:2] + segment + content[2:]
    assert decode_files([with_metadata], SMALL, Limits()).shape == (1, 3, 8, 8)
    scan = content[content.rindex(b"\xff\xda") : -2]
    many = with_metadata[:-2] + (segment + scan) * 21 + content[-2:]
    assert "scans" in refusal(decode_files, [many], SMALL, Limits()).detail


@pytest.mark.parametrize("before", [b"\xff\x02\xff\xff", b"\xff\xd3\xff\xff", b"\xff\xe1\0\0", b"\xff" * 9, b"\xff\0"])
def test_bytes_that_a_decoder_skips_do_not_hide_scans(png, before) -> None:
    content = png(16, 16, kind="JPEG", progressive=True)
    scan = content[content.rindex(b"\xff\xda") : -2]
    many = content[:-2] + before + scan * 21 + content[-2:]
    assert "scans" in refusal(decode_files, [many], SMALL, Limits()).detail


def test_a_truncated_jpeg_is_refused_wherever_it_ends(png) -> None:
    content = png(16, 16, kind="JPEG", progressive=True)
    assert {refusal(decode_files, [content[:end]], SMALL, Limits()).status for end in range(len(content) - 2)} == {422}
