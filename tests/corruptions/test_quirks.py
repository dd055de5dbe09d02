"""What the original generators do, meant or not, and what must therefore stay."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt
from vcotta.corruptions.blur import defocus_kernel, glass_blur, motion_filter
from vcotta.corruptions.elastic import elastic_transform
from vcotta.corruptions.noise import gaussian_noise
from vcotta.corruptions.severity import TABLES, constants
from vcotta.corruptions.spatter import _distance, _equalised, _grown, spatter
from vcotta.corruptions.weather import fog_map, frost, snow


def grey(level: int, size: int = 32, count: int = 1) -> torch.Tensor:
    return torch.full((count, size, size, 3), level, dtype=torch.uint8)


def test_fractions_are_dropped_not_rounded():
    noise = torch.full((1, 4, 4, 3), 0.9 / 255)
    assert (gaussian_noise(grey(100, 4), noise, 0.1) == 100).all()


def test_unchanged_pixels_survive_truncation():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(gaussian_noise(levels, torch.zeros(levels.shape), 0.1), levels)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_copies_pixel_after_pixel_instead_of_swapping(reach):
    size, passes = 20, 2
    generator = torch.Generator().manual_seed(reach)
    images = torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8, generator=generator)
    offsets = torch.randint(-reach, reach, (2, passes, size - 2 * reach, size - 2 * reach, 2), generator=generator)
    expected = images.numpy().copy()
    for image, draws in zip(expected, offsets.numpy(), strict=True):
        for grid in draws:
            for a, h in enumerate(range(size - reach, reach, -1)):
                for b, w in enumerate(range(size - reach, reach, -1)):
                    dx, dy = grid[a, b]
                    image[h, w] = image[h + dy, w + dx]
    np.testing.assert_array_equal(glass_blur(images, offsets, 0.0, reach, passes).numpy(), expected)


def test_glass_of_severity_1_does_not_blur_but_moves_whole_pixels(smooth):
    images = smooth(2)
    ours = corrupt(images, "glass_blur", 1)
    for image, result in zip(images, ours, strict=True):
        known = {tuple(pixel) for pixel in image.reshape(-1, 3)}
        assert all(tuple(pixel) in known for pixel in result.reshape(-1, 3))
    np.testing.assert_array_equal(ours[:, :2], images[:, :2])


def test_glass_drifts_content_down_and_right():
    images = grey(0, 64, 8)
    images[:, 32, 32] = 255
    offset = torch.nonzero(torch.from_numpy(corrupt(images.numpy(), "glass_blur", 1, table=32)[..., 0])).double() - 32
    assert offset[:, 1:].mean() > 0.2
    assert offset[:, 1:].min() >= 0


def test_motion_kernel_is_one_sided():
    images = grey(0)
    images[:, 16, 16] = 255
    smeared = motion_filter(images, torch.zeros(1, dtype=torch.float64), 6, 4)[0, 16, :, 0]
    assert (smeared[17:] == 0).all()
    assert (smeared[10:17] > 0).all()
    assert smeared.argmax() == 16


def test_defocus_kernels_that_reach_their_rim_brighten():
    totals = {
        (table, severity): sum(w * len(o) for w, o in defocus_kernel(*constants("defocus_blur", severity, table)))
        for table in TABLES
        for severity in range(1, 6)
    }
    assert totals.pop((224, 4)) == pytest.approx(1.0130, abs=1e-4)
    assert totals.pop((224, 5)) == pytest.approx(1.0108, abs=1e-4)
    assert all(total == pytest.approx(1, abs=1e-6) for total in totals.values())


@pytest.mark.parametrize(("severity", "last"), [(1, 1.06), (2, 1.11), (3, 1.15), (4, 1.20), (5, 1.25)])
def test_zoom_factors_end_where_the_original_range_does(severity, last):
    step, number = constants("zoom_blur", severity, 32)
    assert 1 + step * (number - 1) == pytest.approx(last)


def test_snow_adds_its_flakes_twice_once_turned():
    field = torch.zeros(1, 32, 32)
    field[0, 4, 6] = 1
    angle = torch.tensor([-90.0], dtype=torch.float64)
    flakes = snow(grey(0), field, angle, 0, 1, 1, 0.5, 3, 1, 1.0)[0, ..., 0]
    assert flakes.any()
    assert torch.equal(flakes, flakes.flip(0, 1))


def test_frost_weights_may_saturate():
    assert frost(grey(250), grey(200), 1.0, 0.3, 0.2, "procedural").unique().tolist() == [255]
    assert frost(grey(100), grey(33), 0.85, 0.4, 0.2, "procedural").unique().tolist() == [98]  # 98.2


def test_fog_noise_amplitude_is_the_square_of_its_range():
    side = 2
    land = fog_map(torch.tensor([[100.0, -100.0, 0.0]]), 2.0)[..., 0]
    # centre 100 * 100, top edge (2 * 10^4) / 4 - 10^4, left edge (2 * 10^4) / 4, corner 0, then scaled to 0 .. 1
    raw = torch.tensor([[0.0, -5000.0], [5000.0, 10000.0]], dtype=torch.float64)
    assert land.shape == (side, side)
    torch.testing.assert_close(land, (raw + 5000) / 15000)


def test_fog_map_wraps_around_and_fills_0_to_1():
    land = fog_map(torch.rand(3, 64 * 64 - 1, generator=torch.Generator().manual_seed(0)) * 2 - 1, 1.75)
    assert land.amin((0, 1)).tolist() == [0, 0, 0]
    assert land.amax((0, 1)).tolist() == [1, 1, 1]
    inner, across = (land[1:] - land[:-1]).abs().mean(), (land[0] - land[-1]).abs().mean()
    assert across < 3 * inner


def test_elastic_constants_of_224_pixels_are_shares_of_244():
    assert [constants("elastic_transform", 1, table)[-1] for table in TABLES] == [32, 64, 244]


def test_elastic_without_jitter_and_amplitude_changes_nothing(smooth):
    images = torch.from_numpy(smooth(2, 30, 44))
    assert torch.equal(elastic_transform(images, torch.zeros(2, 3, 2), None, None, 0, 0, 0.08, 32), images)


def test_elastic_of_severity_1_is_the_strongest_on_cifar(smooth):
    images = smooth(64)
    errors = [((corrupt(images, "elastic_transform", s) - images.astype(float)) ** 2).mean() for s in range(1, 6)]
    assert errors.index(max(errors)) == 0


def test_elastic_filter_may_be_wider_than_the_image(smooth):
    images = smooth(1, 224, 224)
    assert corrupt(images, "elastic_transform", 1).shape == images.shape


def test_saturate_desaturates_first_and_tints_grey_red_last():
    images = grey(120).numpy()
    images[:, 0] = (200, 40, 90)
    mild, strong = corrupt(images, "saturate", 1), corrupt(images, "saturate", 5)
    assert np.ptp(mild[0, 0, 0].astype(int)) < 160 < np.ptp(strong[0, 0, 0].astype(int))
    red, green, blue = strong[0, 5, 5].tolist()
    assert red == 120
    assert green == blue < 120


def test_brightness_keeps_black_grey():
    assert corrupt(grey(0).numpy(), "brightness", 5)[0, 0, 0].tolist() == [76, 76, 76]


def test_contrast_leaves_the_mean():
    images = np.random.default_rng(0).integers(60, 200, (2, 32, 32, 3), dtype=np.uint8)
    ours = corrupt(images, "contrast", 5)
    assert np.abs(ours.mean((1, 2)) - images.mean((1, 2))).max() < 1
    assert ours.std() < 0.2 * images.std()


def test_impulse_hits_channels_independently():
    ours = corrupt(grey(128, 64, 8).numpy(), "impulse_noise", 5, table=32)
    hit = ours != 128
    assert set(np.unique(ours)) == {0, 128, 255}
    assert hit.mean() == pytest.approx(0.07, abs=0.003)
    assert (ours[hit] == 255).mean() == pytest.approx(0.5, abs=0.03)
    assert (hit[..., 0] & hit[..., 1]).mean() == pytest.approx(0.07**2, abs=0.002)


def test_thickest_water_drops_wrap_to_a_hole():
    field = torch.full((1, 32, 32), 0.8)
    field[0, 8:24, 8:24] = 1.005  # 256.3 wraps to 0
    dark = spatter(grey(0), field, 0.65, 0.3, 0.0, 0.69, 0.5, 0)[0]
    assert (dark[10:22, 10:22] == 0).all()


def test_drop_edges_grow_over_connected_weak_pixels_only():
    weak = torch.zeros(6, 6, 1, dtype=torch.bool)
    weak[0, 0] = weak[1, 1] = weak[2, 2] = weak[5, 5] = True
    strong = torch.zeros_like(weak)
    strong[0, 0] = True
    assert _grown(strong, weak).nonzero()[:, 0].tolist() == [0, 1, 2]


def test_drop_distance_is_the_5_by_5_chamfer_and_ends_at_20():
    edges = torch.zeros(60, 60, 1, dtype=torch.bool)
    edges[5, 5] = True
    distance = _distance(edges)[..., 0] / 65536
    assert distance[5, 8] == 3
    assert distance[8, 8] == pytest.approx(4.2, abs=1e-4)
    assert distance[6, 7] == pytest.approx(2.1969, abs=1e-4)
    assert distance[5, 50] == 20
    assert (_distance(torch.zeros_like(edges)) == 20 * 65536).all()


def test_equalising_leaves_a_constant_image_alone():
    levels = torch.full((4, 4, 2), 20, dtype=torch.int32)
    levels[0, 0, 1] = 3
    ours = _equalised(levels)
    assert ours[..., 0].unique().tolist() == [20]
    assert ours[..., 1].unique().tolist() == [0, 255]
