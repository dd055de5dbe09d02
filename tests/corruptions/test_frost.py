"""Frost textures: which ones are used, the warning, and that the procedural ones resemble the photographs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt, frost_source
from vcotta.corruptions import frost as textures
from vcotta.corruptions.frost import frost_textures, scaled
from vcotta.corruptions.frost_procedural import CLASSES, procedural_texture
from vcotta.corruptions.weather import cut

CPU = torch.device("cpu")
IMAGES = np.full((2, 32, 32, 3), 90, dtype=np.uint8)


def test_procedural_textures_are_named_once_a_process(monkeypatch, tmp_path):
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    monkeypatch.setattr(textures, "_notices", set())
    assert frost_source() == "procedural"
    with pytest.warns(UserWarning, match="vcotta data fetch frost"):
        corrupt(IMAGES, "frost", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrupt(IMAGES, "frost", 3)


def test_other_corruptions_give_no_warning_about_frost(monkeypatch):
    monkeypatch.setattr(textures, "_notices", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        corrupt(IMAGES, "fog", 3)


@pytest.mark.parametrize("scale", [0.2, 0.3, 1])
def test_procedural_texture_has_size_colour_and_levels_of_its_class(scale):
    for kind in CLASSES:
        texture = procedural_texture(kind, scale)
        assert texture.shape[:2] == tuple(round(side * scale) for side in kind.size)
        np.testing.assert_allclose(texture.mean((0, 1)), kind.mean, atol=2)
        np.testing.assert_allclose(texture.std((0, 1))[1:], kind.std[1:], rtol=0.1)
        np.testing.assert_allclose(np.percentile(texture.mean(-1), (5, 50, 95)), kind.quantiles, atol=18)


def test_procedural_texture_is_always_the_same():
    np.testing.assert_array_equal(procedural_texture(CLASSES[0], 0.2), procedural_texture(CLASSES[0], 0.2))
    assert (procedural_texture(CLASSES[3], 0.2)[:60, :100] != procedural_texture(CLASSES[4], 0.2)[:60, :100]).any()


def test_second_and_third_texture_are_the_same():
    five = frost_textures(0.2, CPU, frost_source())
    size = int(five.heights[1] * five.widths[1])
    second, third = (five.pixels[five.starts[k] : five.starts[k] + size] for k in (1, 2))
    assert len(five.heights) == 5
    assert torch.equal(second, third)


def test_crop_is_the_drawn_part_of_the_drawn_texture():
    five = frost_textures(0.2, CPU, frost_source())
    crop = cut(five, torch.tensor([0, 3]), torch.tensor([[0, 7], [12, 40]]), 32, 20).numpy()
    for picture, kind, (row, column) in zip(crop, (CLASSES[0], CLASSES[3]), ((0, 7), (12, 40)), strict=True):
        np.testing.assert_array_equal(picture, procedural_texture(kind, 0.2)[row : row + 32, column : column + 20])


def test_texture_smaller_than_the_image_continues_by_reflection():
    five = frost_textures(0.2, CPU, frost_source())
    crop = cut(five, torch.tensor([1]), torch.tensor([[0, 0]]), 200, 300)[0].numpy()
    expected = np.pad(procedural_texture(CLASSES[1], 0.2), ((0, 137), (0, 188), (0, 0)), mode="symmetric")
    np.testing.assert_array_equal(crop, expected)


def test_scale_of_a_fifth_is_pure_decimation():
    texture = np.random.default_rng(0).integers(0, 256, (50, 37, 3), dtype=np.uint8)
    np.testing.assert_array_equal(scaled(texture, 0.2), texture[2::5, 2::5][:10, :7])
    np.testing.assert_array_equal(scaled(texture, 1), texture)


def test_scale_of_three_tenths_is_bilinear_and_keeps_a_constant():
    constant = np.full((40, 30, 3), 77, dtype=np.uint8)
    assert scaled(constant, 0.3).shape == (12, 9, 3)
    assert (scaled(constant, 0.3) == 77).all()
    ramp = np.repeat(np.arange(0, 200, dtype=np.uint8)[:, None, None], 10, axis=1).repeat(3, axis=2)
    position = (np.arange(60) + 0.5) / 0.3 - 0.5
    assert np.abs(scaled(ramp, 0.3)[:, 0, 0] - position).max() <= 1


def test_damaged_photograph_is_refused(monkeypatch, tmp_path):
    from vcotta.corruptions.frost import FROST_FILES, frost_dir

    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    frost_dir().mkdir(parents=True)
    for name in FROST_FILES:
        (frost_dir() / name).write_bytes(b"not a photograph")
    assert frost_source() == "photographs"
    with pytest.raises(ValueError, match=r"frost1.png is damaged.*vcotta data fetch frost"):
        corrupt(IMAGES, "frost", 1)
