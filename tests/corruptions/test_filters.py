"""Borders, Gaussians and zooms against slow and plain versions of themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vcotta.corruptions import filters
from vcotta.corruptions.filters import border_index, centre_zoom, gaussian

CPU = torch.device("cpu")
PADDING = {"edge": "edge", "mirror": "reflect", "symmetric": "symmetric"}


@pytest.mark.parametrize("border", PADDING)
@pytest.mark.parametrize("length", [1, 2, 3, 7])
@pytest.mark.parametrize("margin", [0, 1, 6, 20])
def test_border_is_that_of_numpy_however_far_out(border, length, margin):
    expected = np.pad(np.arange(length), margin, mode=PADDING[border])
    np.testing.assert_array_equal(border_index(length, margin, border, CPU).numpy(), expected)


@pytest.mark.parametrize("border", PADDING)
@pytest.mark.parametrize("sigma", [0.4, 1.0, 2.5, 30.0])
def test_gaussian_is_a_convolution(border, sigma):
    values = torch.rand(9, 12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    radius = int(4 * sigma + 0.5)
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    padded = np.pad(values.numpy(), ((radius, radius), (radius, radius), (0, 0)), mode=PADDING[border])
    expected = padded
    for axis in (0, 1):
        expected = np.apply_along_axis(np.convolve, axis, expected, weights, mode="valid")
    np.testing.assert_allclose(gaussian(values, sigma, border).numpy(), expected, atol=1e-12)


def test_gaussian_wider_than_the_image_equals_the_plain_sum():
    values = torch.rand(10, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = filters.gaussian_weights(4.0, 12)
    for dim in (0, 1):
        folded, paired = (f(values, weights, dim, "symmetric") for f in (filters._folded, filters._paired))
        torch.testing.assert_close(folded, paired, atol=1e-13, rtol=0)


@pytest.mark.parametrize("sigma", [0.0, 0.05, 0.12])
def test_gaussian_below_half_a_pixel_of_radius_is_the_identity(sigma):
    values = torch.rand(4, 4)
    assert gaussian(values, sigma, "edge") is values


def test_zoom_by_one_is_the_identity_and_a_constant_stays_constant():
    values = torch.rand(32, 20, 3, dtype=torch.float64)
    torch.testing.assert_close(centre_zoom(values, 1.0), values)
    torch.testing.assert_close(centre_zoom(torch.ones(33, 32, dtype=torch.float64), 1.7), torch.ones(33, 32).double())


def test_zoom_keeps_a_ramp_a_ramp_with_the_slope_of_aligned_corners():
    ramp = torch.arange(32, dtype=torch.float64)[:, None].expand(32, 32).contiguous()
    zoomed = centre_zoom(ramp, 2.0)
    torch.testing.assert_close(zoomed[:, 0].diff(), torch.full((31,), 15 / 31, dtype=torch.float64))
    assert zoomed[0, 0] == 8


def test_last_bit_of_a_zoom_factor_decides_its_size():
    values = torch.rand(32, 32, dtype=torch.float64)
    assert not torch.equal(centre_zoom(values, 1.25), centre_zoom(values, 1.2500000000000002))
