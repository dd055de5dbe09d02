from __future__ import annotations

import colorsys
import math

import pytest
import torch

from vcotta.nn import views
from vcotta.nn.views import strong_view, weak_view


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 9), (32, 32)])
def test_strong_views_keep_shape_and_range_and_leave_the_images_alone(channels, size) -> None:
    x = torch.rand(5, channels, *size)
    before = x.clone()
    view = strong_view(x)
    assert view.shape == x.shape
    assert view.isfinite().all()
    assert view.min() >= 0
    assert view.max() <= 1
    assert torch.equal(x, before)


def test_weak_views_mirror_half_of_the_images_or_none() -> None:
    torch.manual_seed(0)
    x = torch.rand(400, 3, 4, 4)
    view = weak_view(x)
    mirrored = (view == x.flip(-1)).flatten(1).all(1)
    assert ((view == x).flatten(1).all(1) | mirrored).all()
    assert 0.4 < mirrored.float().mean() < 0.6
    assert torch.equal(weak_view(x, flip=False), x)


def test_without_any_operation_a_strong_view_is_a_weak_one() -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 3, 4, 4)
    never = {"jittered": 0.0, "greyed": 0.0, "blurred": 0.0}
    assert torch.equal(strong_view(x, flip=False, **never), x)
    assert 0 < (strong_view(x, **never) == x.flip(-1)).flatten(1).all(1).float().mean() < 1


def test_every_image_has_its_own_draws() -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 6, 6).expand(300, -1, -1, -1)
    view = strong_view(x, flip=False)
    unchanged = (view == x).flatten(1).all(1).float().mean()
    assert 0.2 * 0.8 * 0.5 - 0.07 < unchanged < 0.2 * 0.8 * 0.5 + 0.07
    grey = (view.amax(1) - view.amin(1)).flatten(1).amax(1) < 1e-6
    assert 0.12 < grey.float().mean() < 0.28
    assert len(view.flatten(1).unique(dim=0)) > 200


def test_colours_change_in_a_random_order(monkeypatch) -> None:
    torch.manual_seed(0)
    calls = []

    def watched(images, draws, operation, ranges):
        calls.append((operation, len(images)))
        return images

    monkeypatch.setattr(views, "_colour", watched)
    views._jitter_each(torch.rand(64, 3, 2, 2))
    for operation in range(4):
        assert sum(count for which, count in calls if which == operation) == 64  # each image gets each once
    assert [which for which, _ in calls] == [0, 1, 2, 3] * 4  # at every place some image starts with each


def test_each_image_is_jittered_in_its_own_order(monkeypatch) -> None:
    monkeypatch.setattr(views, "_colour", lambda images, draws, operation, ranges: images * 10 + operation)
    torch.manual_seed(0)
    orders = views._jitter_each(torch.zeros(200, 1, 1, 1)).flatten().long().tolist()
    digits = [f"{order:04d}" for order in orders]
    assert all(sorted(order) == list("0123") for order in digits)
    assert len(set(digits)) > 15


def colour(x: torch.Tensor, draws: torch.Tensor, operation: int) -> torch.Tensor:
    return views._colour(x.unsqueeze(1).clone(), draws, operation, views._STRONG_JITTER).squeeze(1)


@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.6), (1.0, 1.4), (0.5, 1.0)])
def test_brightness_contrast_and_saturation_are_those_of_the_textbook(draw, factor) -> None:
    x, draws = torch.rand(2, 3, 4, 4), torch.full((2, 1, 4), draw)
    grey = (x * torch.tensor([0.2989, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    mean = grey.mean((2, 3), keepdim=True)
    expected = [x * factor, mean + factor * (x - mean), grey + factor * (x - grey)]
    for operation, reference in enumerate(expected):
        assert torch.allclose(colour(x, draws, operation), reference.clamp(0, 1), atol=1e-6)


def test_hue_turns_by_a_tenth_of_the_circle_at_most() -> None:
    x = torch.rand(1, 3, 1, 1, dtype=torch.float64)
    found = colour(x, torch.ones(1, 1, 4, dtype=torch.float64), 3).flatten()
    h, s, v = colorsys.rgb_to_hsv(*x.flatten().tolist())
    assert found.tolist() == pytest.approx(colorsys.hsv_to_rgb((h + 0.1) % 1, s, v))


def test_single_channel_images_have_neither_saturation_nor_hue() -> None:
    x, draws = torch.rand(2, 1, 4, 4), torch.ones(2, 1, 4)
    assert torch.equal(colour(x, draws, 2), x)
    assert torch.equal(colour(x, draws, 3), x)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_the_blur_is_a_gaussian_that_repeats_the_edges(sigma) -> None:
    taps = torch.tensor([math.exp(-0.5 * (k / sigma) ** 2) for k in range(-6, 7)], dtype=torch.float64)
    taps = taps / taps.sum()
    x = torch.rand(1, 2, 5, 9, dtype=torch.float64)
    padded = torch.nn.functional.pad(x, (6, 6, 6, 6), mode="replicate")
    kernel = torch.outer(taps, taps).expand(2, 1, 13, 13)
    expected = torch.nn.functional.conv2d(padded, kernel, groups=2)
    assert torch.allclose(views._wide_blur(x, torch.tensor([sigma], dtype=torch.float64)), expected)


def test_each_image_has_its_own_blur() -> None:
    x = torch.rand(1, 3, 8, 8).expand(2, -1, -1, -1)
    blurred = views._wide_blur(x, torch.tensor([0.1, 2.0]))
    assert torch.allclose(blurred[0], x[0], atol=1e-6)
    assert blurred[1].std() < 0.5 * x[1].std()
