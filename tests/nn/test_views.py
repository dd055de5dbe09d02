from __future__ import annotations

import colorsys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcotta.nn import views
from vcotta.nn.views import ViewKind, random_view, random_views


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(4, 40),
    st.integers(4, 40),
    st.booleans(),
    st.integers(0, 99),
)
def test_views_keep_shape_and_range(batch, channels, height, width, per_image, seed) -> None:
    torch.manual_seed(seed)
    view = random_view(torch.rand(batch, channels, height, width), per_image=per_image)
    assert view.shape == (batch, channels, height, width)
    assert view.isfinite().all()
    assert view.min() >= 0
    assert view.max() <= 1
    assert view.std() > 0.01  # still a picture


NOISE = 0.05  # ten standard deviations of the noise that is added to a view
ANGLE, SHIFT_X, SHIFT_Y, MIRROR, BLUR = 5, 6, 7, 9, 10  # places among the draws


def view_of(x: torch.Tensor, draws: dict[int, float | torch.Tensor], *, flip: bool = False, kind: ViewKind = "cotta"):
    """A view by the given draws for each image; all other draws leave the image as it is."""
    values = torch.full((1, len(x), 11), 0.5)
    values[..., BLUR] = 0.0
    for place, draw in draws.items():
        values[..., place] = draw
    return views._augment(x.unsqueeze(0), values, torch.arange(5).unsqueeze(0), flip, kind).squeeze(0)


def test_one_draw_serves_the_whole_batch_and_per_image_draws_differ() -> None:
    x = torch.rand(1, 3, 16, 16).expand(4, -1, -1, -1)
    shared, own = random_view(x), random_view(x, per_image=True)
    assert torch.allclose(shared[0], shared[1], atol=NOISE)
    assert not torch.allclose(own[0], own[1], atol=2 * NOISE)


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (6, 11)])
def test_with_neutral_draws_a_view_is_the_image(size) -> None:
    x = torch.rand(2, 3, *size)
    assert torch.allclose(view_of(x, {}), x, atol=NOISE)


def test_flip_mirrors_left_and_right_for_the_lower_half_of_the_draws() -> None:
    x = torch.rand(4, 3, 6, 6)
    draws = {MIRROR: torch.tensor([0.0, 0.49, 0.5, 1.0])}
    expected = torch.cat([x[:2].flip(-1), x[2:]])
    assert torch.allclose(view_of(x, draws, flip=True), expected, atol=NOISE)
    assert torch.allclose(view_of(x, draws, flip=False), x, atol=NOISE)


@pytest.mark.parametrize(("kind", "mode"), [("cotta", "replicate"), ("roid", "reflect")])
def test_a_shift_moves_whole_pixels_and_pads_as_its_kind_does(kind, mode) -> None:
    x = torch.rand(64, 3, 16, 16)
    shifts = set()
    for image, view in zip(x, view_of(x, {SHIFT_X: torch.rand(64), SHIFT_Y: torch.rand(64)}, kind=kind), strict=True):
        padded = torch.nn.functional.pad(image, (2, 2, 2, 2), mode=mode)
        found = [
            (dy, dx)
            for dy in range(5)
            for dx in range(5)
            if torch.allclose(view, padded[:, dy : dy + 16, dx : dx + 16], atol=NOISE)
        ]
        assert len(found) == 1
        shifts.update(found)
    assert len(shifts) > 10  # up to 2 pixels each way: 1/16 of the padded side of 32


NINETY = 3.5  # the draw that the range of angles, -15 to 15 degrees, takes to 90


def test_a_rotation_by_ninety_degrees_is_exact() -> None:
    x = torch.rand(2, 3, 9, 9)
    view = view_of(x, {ANGLE: NINETY})
    assert any(torch.allclose(view, torch.rot90(x, k, (2, 3)), atol=NOISE) for k in (1, 3))


def test_what_turns_in_from_outside_the_padded_canvas_is_black() -> None:
    view = view_of(torch.ones(1, 3, 8, 64), {ANGLE: NINETY})
    # Rows of the padded canvas reach 8 from the centre line; columns farther than that read from beyond it.
    assert torch.allclose(view[..., 26:38], torch.ones(()), atol=NOISE)
    assert torch.allclose(view[..., :20], torch.zeros(()), atol=NOISE)


def test_hue_agrees_with_the_standard_library() -> None:
    x = torch.rand(1, 3, 4, 4, dtype=torch.float64)
    shifted = views._shift_hue(x, torch.tensor(0.06, dtype=torch.float64).view(1, 1, 1, 1))
    for i in range(4):
        for j in range(4):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
            expected = torch.tensor(colorsys.hsv_to_rgb((h + 0.06) % 1, s, v), dtype=torch.float64)
            assert torch.allclose(shifted[0, :, i, j], expected, atol=1e-9)


def test_blur_is_the_five_tap_gaussian() -> None:
    sigma = 0.5
    taps = torch.exp(-torch.arange(-2.0, 3.0).square() / (2 * sigma**2))
    taps = taps / taps.sum()
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4, 4] = 1
    blurred = views._blur_by(x, views._taps(torch.tensor([sigma]), x))
    assert torch.allclose(blurred[0, 0], torch.outer(taps, taps), atol=1e-6)


@pytest.mark.parametrize(("kind", "tolerance"), [("roid", 1e-6), ("cotta", NOISE)])
def test_many_views_at_once_are_the_views_drawn_one_by_one(kind, tolerance) -> None:
    x = torch.rand(3, 3, 12, 12)
    torch.manual_seed(0)
    orders = torch.stack([torch.randperm(5) for _ in range(9)])
    draws = torch.rand(9, 1, 11)
    torch.manual_seed(0)
    together = random_views(x, 9, kind=kind)
    alone = [views._augment(x.unsqueeze(0), draws[i : i + 1], orders[i : i + 1], True, kind)[0] for i in range(9)]
    assert torch.allclose(together, torch.stack(alone), atol=tolerance)
    assert all(not torch.allclose(together[0], other, atol=2 * NOISE) for other in together[1:])


@pytest.mark.parametrize("in_cache", [1, 900, 10_000])
def test_views_are_the_same_however_many_are_made_at_once(in_cache, monkeypatch) -> None:
    x = torch.rand(2, 3, 8, 8)
    torch.manual_seed(0)
    expected = random_views(x, 5)
    monkeypatch.setattr(views, "_NUMBERS_IN_CACHE", in_cache)
    torch.manual_seed(0)
    assert torch.allclose(random_views(x, 5), expected, atol=1e-5)


def test_a_turned_hue_leaves_grey_alone_and_takes_primary_colours_to_the_next() -> None:
    grey = torch.rand(1, 1, 2, 2).expand(1, 3, 2, 2)
    third = torch.tensor(1 / 3).view(1, 1, 1, 1)
    assert torch.equal(views._shift_hue(grey, third), grey)
    primary = torch.eye(3).view(3, 3, 1, 1)
    assert torch.allclose(views._shift_hue(primary, third), primary[[1, 2, 0]], atol=1e-6)
    mixed = 1 - primary  # two channels share the largest value
    assert torch.allclose(views._shift_hue(mixed, third), mixed[[1, 2, 0]], atol=1e-6)


def test_drawing_views_leaves_the_images_alone() -> None:
    x = torch.rand(2, 3, 8, 8)
    before = x.clone()
    random_views(x, 4)
    random_view(x, per_image=True)
    assert torch.equal(x, before)


@pytest.mark.parametrize("size", [(16, 16), (15, 15), (8, 24)])
def test_a_roid_view_is_an_affine_map_of_the_padded_canvas(size) -> None:
    height, width = size
    x, draws = torch.rand(1, 3, height, width), torch.rand(1, 5)
    canvas = torch.nn.functional.pad(x, (width // 2, width // 2, height // 2, height // 2), mode="reflect")
    rows, columns = canvas.shape[-2:]
    angle = torch.deg2rad(views._uniform(draws[0, 0], views._ANGLE))
    scale = views._uniform(draws[0, 3], views._SCALE)
    shift = torch.stack([(2 * draws[0, 1] - 1) * columns / 16, (2 * draws[0, 2] - 1) * rows / 16]).round()
    turn = torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])]) / scale
    points = torch.stack(
        torch.meshgrid(torch.arange(columns) - (columns - 1) / 2, torch.arange(rows) - (rows - 1) / 2, indexing="xy"),
        -1,
    )
    grid = (points - shift) @ turn.T * 2 / torch.tensor([columns, rows])
    turned = torch.nn.functional.grid_sample(canvas, grid.unsqueeze(0), align_corners=False)
    expected = turned[..., height // 2 : height // 2 + height, width // 2 : width // 2 + width]
    grids = views._grids(x, draws, flip=False, rim=0, reflect=True)
    assert torch.allclose(views._resample(x, grids, reflect=True), expected, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 3]), st.integers(1, 20), st.integers(1, 20), st.integers(0, 99))
def test_roid_views_keep_shape_and_range(channels, height, width, seed) -> None:
    torch.manual_seed(seed)
    view = random_view(torch.rand(2, channels, height, width), kind="roid")
    assert view.shape == (2, channels, height, width)
    assert view.isfinite().all()
    assert view.min() >= 0
    assert view.max() <= 1


def test_roid_views_have_neither_noise_nor_blur() -> None:
    x = torch.rand(2, 3, 8, 11)
    assert torch.allclose(view_of(x, {BLUR: 1.0}, kind="roid"), x, atol=1e-5)
    assert not torch.allclose(view_of(x, {BLUR: 1.0}), x, atol=NOISE)


def test_an_unknown_kind_of_view_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        random_view(torch.rand(1, 3, 8, 8), kind="roit")
