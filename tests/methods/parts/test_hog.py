from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vcotta.methods.parts.hog import hog, hog_of_patches


def by_loops(image: np.ndarray, cell: int) -> np.ndarray:
    """The histograms of one channel, (9, rows, columns), pixel by pixel."""
    height, width = image.shape
    votes = np.zeros((9, -(-height // cell), -(-width // cell)))
    padded = np.pad(image, 1, mode="reflect")
    for y in range(height):
        for x in range(width):
            around = padded[y : y + 3, x : x + 3]
            across = around[:, 0] - around[:, 2]
            down = around[0] - around[2]
            gx, gy = across @ [1, 2, 1], down @ [1, 2, 1]
            place = math.floor(math.atan2(gx, gy) / math.pi * 9) % 9
            votes[place, y // cell, x // cell] += math.hypot(gx, gy)
    lengths = np.sqrt((votes**2).sum(0))
    return votes / np.where(lengths > 0, lengths, 1)


@pytest.mark.parametrize(("size", "cell"), [((8, 8), 2), ((6, 9), 3), ((7, 5), 2)])
def test_histograms_are_those_counted_pixel_by_pixel(size, cell, images) -> None:
    x = images(2, size=size).double()
    found = hog(x, cell)
    for image, own in zip(x, found, strict=True):
        for channel, histograms in zip(image, own, strict=True):
            assert np.allclose(by_loops(channel.numpy(), cell), histograms.numpy(), atol=1e-12)


def test_an_image_without_edges_has_histograms_of_zero() -> None:
    assert not hog(torch.full((1, 3, 8, 8), 0.7), 4).any()


def test_every_histogram_has_length_one_or_zero(images) -> None:
    x = images()
    x[:, :, :, 4:] = 0.5
    lengths = hog(x, 2).norm(dim=2)
    assert torch.all((lengths == 0) | ((lengths - 1).abs() < 1e-5))
    assert (lengths == 0).any()


def test_opposite_directions_share_a_bin() -> None:
    ramp = torch.linspace(0, 1, 8, dtype=torch.float64).expand(1, 1, 8, 8)
    assert torch.allclose(hog(ramp, 8), hog(1 - ramp, 8))


@pytest.mark.parametrize(("size", "patch", "cells"), [((8, 12), 4, 2), ((11, 7), 4, 2), ((9, 6), 3, 1)])
def test_a_patch_has_the_histograms_of_its_cells(size, patch, cells, images) -> None:
    x = images(2, size=size)
    whole, found = hog(x, patch // cells), hog_of_patches(x, patch)
    rows, columns = (-(-side // patch) for side in size)
    assert found.shape == (2, rows * columns, 27 * cells**2)
    expected = whole[:, :, :, cells : 2 * cells, cells : 2 * cells]  # of the second patch in the second row
    own = found[:, columns + 1].view(2, 3, 9, cells, cells)
    assert torch.equal(own[..., : expected.shape[-2], : expected.shape[-1]], expected)


def test_targets_carry_no_gradient(images) -> None:
    assert not hog_of_patches(images().requires_grad_(), 4).requires_grad
