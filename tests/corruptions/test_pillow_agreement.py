"""JPEG and box resizing are Pillow's, to the pixel."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from vcotta.corruptions.digital import pixelate
from vcotta.corruptions.jpeg import jpeg_compression


def through_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


@pytest.mark.parametrize("quality", [7, 25, 50, 80, 95])
@pytest.mark.parametrize("size", [(32, 32), (48, 96)])
def test_jpeg_is_that_of_pillow(smooth, quality, size):
    images = smooth(3, *size)
    ours = jpeg_compression(torch.from_numpy(images), quality).numpy()
    theirs = np.stack([through_jpeg(image, quality) for image in images])
    assert np.abs(ours.astype(int) - theirs).mean() <= 0.01


def test_jpeg_of_odd_size_is_close_to_that_of_pillow(smooth):
    images = smooth(2, 35, 41)
    ours = jpeg_compression(torch.from_numpy(images), 50).numpy()
    theirs = np.stack([through_jpeg(image, 50) for image in images])
    assert np.abs(ours.astype(int) - theirs).mean() <= 0.5


@pytest.mark.parametrize("factor", [0.95, 0.65, 0.5, 0.25])
@pytest.mark.parametrize("size", [(32, 32), (45, 30), (100, 224)])
def test_pixelate_is_two_box_resizes_of_pillow(smooth, factor, size):
    images = smooth(2, *size)
    height, width = size
    ours = pixelate(torch.from_numpy(images), factor).numpy()
    for image, result in zip(images, ours, strict=True):
        small = Image.fromarray(image).resize((int(width * factor), int(height * factor)), Image.Resampling.BOX)
        theirs = np.asarray(small.resize((width, height), Image.Resampling.BOX))
        np.testing.assert_array_equal(result, theirs)
