"""A wrong argument is refused in words that say what was expected and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt, nearest_table

IMAGES = np.zeros((2, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("images", "error", "text"),
    [
        ([[1]], TypeError, "NumPy array or a torch tensor, but got list"),
        (IMAGES.astype(np.float32), TypeError, "dtype uint8, but got float32"),
        (torch.zeros(2, 8, 8, 3), TypeError, r"dtype uint8, but got torch.float32"),
        (IMAGES[0], ValueError, r"shape \(N, H, W, 3\), but got \(8, 8, 3\). Use images\[None\]"),
        (IMAGES[..., :1], ValueError, "Repeat a grey channel"),
        (np.zeros((2, 3, 8, 8), dtype=np.uint8), ValueError, "Move the channels last"),
        (IMAGES[:0], ValueError, "at least one pixel, but got shape"),
        (IMAGES[:, :0], ValueError, "at least one pixel"),
    ],
)
def test_wrong_images_are_refused(images, error, text):
    with pytest.raises(error, match=text):
        corrupt(images, "fog", 1)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'gaussian_noise'"):
        corrupt(IMAGES, "gausian_noise", 1)


@pytest.mark.parametrize("name", [None, 3, ["fog"], "all"])
def test_name_that_is_none_of_ours_is_refused(name):
    with pytest.raises(ValueError, match=r"Expected `name` to be one of .*gaussian_noise, shot_noise"):
        corrupt(IMAGES, name, 1)


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_severity_out_of_range_is_refused(severity):
    with pytest.raises(ValueError, match=f"Expected `severity` to be 1 to 5, but got {severity}."):
        corrupt(IMAGES, "fog", severity)


@pytest.mark.parametrize("value", [True, 2.0, "3", None, np.bool_(True)])
@pytest.mark.parametrize("argument", ["severity", "seed", "offset"])
def test_number_that_is_no_integer_is_refused(argument, value):
    arguments = {"severity": 1, argument: value}
    with pytest.raises(TypeError, match=f"Expected `{argument}` to be an integer"):
        corrupt(IMAGES, "fog", **arguments)


@pytest.mark.parametrize("argument", ["seed", "offset"])
def test_negative_counter_is_refused(argument):
    with pytest.raises(ValueError, match=f"Expected `{argument}` to be at least 0, but got -1"):
        corrupt(IMAGES, "fog", 1, **{argument: -1})


def test_huge_offset_is_refused():
    with pytest.raises(ValueError, match="less than 2"):
        corrupt(IMAGES, "fog", 1, offset=2**62)


@pytest.mark.parametrize("table", [0, 128, "32", True, 32.5])
def test_unknown_table_is_refused(table):
    with pytest.raises(ValueError, match="Expected `table` to be 32, 64, 224 or None"):
        corrupt(IMAGES, "fog", 1, table=table)


def test_numpy_integers_are_taken():
    ours = corrupt(IMAGES + 9, "fog", np.int64(2), np.uint8(3), offset=np.int32(4))
    np.testing.assert_array_equal(ours, corrupt(IMAGES + 9, "fog", 2, 3, offset=4))


@pytest.mark.parametrize(
    ("side", "table"), [(1, 32), (28, 32), (45, 32), (46, 64), (96, 64), (119, 64), (120, 224), (512, 224)]
)
def test_table_is_the_nearest_in_ratio(side, table):
    assert nearest_table(side, side) == nearest_table(side, 1000) == nearest_table(1000, side) == table


def test_given_table_overrides_the_size():
    mild, strong = (corrupt(np.full_like(IMAGES, 100), "gaussian_noise", 5, table=t) for t in (32, 224))
    assert strong.std() > 2 * mild.std()


def test_unknown_textures_are_refused_instead_of_taken_for_procedural_ones():
    with pytest.raises(ValueError, match="Did you mean 'photographs'"):
        corrupt(np.zeros((1, 32, 32, 3), np.uint8), "frost", 5, textures="photograph")


def test_the_usual_severity_is_5():
    assert np.array_equal(corrupt(IMAGES, "fog"), corrupt(IMAGES, "fog", 5))
