"""An image's result depends on nothing but the image, the seed, the corruption, the severity and its index."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcotta.corruptions import EXTRA, STANDARD, corrupt
from vcotta.corruptions.api import REGISTRY

NAMES = (*STANDARD, *EXTRA)
RANDOM = [name for name in NAMES if REGISTRY[name].draw]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_any_chunking_gives_the_same_pixels(smooth, name, data):
    images = smooth(9, 21, 23)
    severity = data.draw(st.integers(1, 5))
    offset = data.draw(st.integers(0, 2**40))
    cuts = sorted(data.draw(st.sets(st.integers(1, 8), max_size=4)))
    whole = corrupt(images, name, severity, 3, offset=offset)
    bounds = [0, *cuts, 9]
    parts = [corrupt(images[a:b], name, severity, 3, offset=offset + a) for a, b in pairwise(bounds)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


@pytest.mark.parametrize("name", NAMES)
def test_the_pieces_in_which_a_batch_is_computed_do_not_show(smooth, name):
    images = smooth(90)  # the first piece has 85 images of this size
    np.testing.assert_array_equal(corrupt(images, name, 4, 1)[80:], corrupt(images[80:], name, 4, 1, offset=80))


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    severity=st.integers(1, 5),
    seed=st.integers(0, 2**70),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40)),
    table=st.sampled_from((None, 32, 64, 224)),
    fill=st.sampled_from((None, 0, 255)),
)
def test_any_image_gives_uint8_of_its_shape_again_and_again(name, severity, seed, shape, table, fill):
    images = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    if fill is not None:
        images[:] = fill
    kept = images.copy()
    first = corrupt(images, name, severity, seed, table=table)
    assert first.dtype == np.uint8
    assert first.shape == images.shape
    np.testing.assert_array_equal(images, kept)
    np.testing.assert_array_equal(first, corrupt(images, name, severity, seed, table=table))


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruption_depends_on_seed_and_index(smooth, name):
    images = np.repeat(smooth(1), 3, axis=0)
    ours = corrupt(images, name, 5, 0)
    assert (ours[0] != ours[1]).any()
    assert (ours != corrupt(images, name, 5, 1)).any()
    assert (ours != corrupt(images, name, 5, 0, offset=5)).any()


def test_severities_draw_independent_numbers(smooth):
    images = np.full((1, 32, 32, 3), 128, dtype=np.uint8)
    mild = corrupt(images, "gaussian_noise", 1).astype(float) - 128
    strong = corrupt(images, "gaussian_noise", 5).astype(float) - 128
    assert abs(np.corrcoef(mild.ravel(), strong.ravel())[0, 1]) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_tensor_and_array_give_the_same_pixels(smooth, name):
    images = smooth(3)
    ours = corrupt(torch.from_numpy(images), name, 3, 5)
    assert isinstance(ours, torch.Tensor)
    np.testing.assert_array_equal(ours.numpy(), corrupt(images, name, 3, 5))


def test_views_and_read_only_arrays_are_taken(smooth):
    images = smooth(4)
    turned = images[::-1, :, ::-1]
    frozen = turned.copy()
    frozen.flags.writeable = False
    channels_first = torch.from_numpy(turned.copy()).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    expected = corrupt(turned.copy(), "fog", 3)
    np.testing.assert_array_equal(corrupt(turned, "fog", 3), expected)
    np.testing.assert_array_equal(corrupt(frozen, "fog", 3), expected)
    np.testing.assert_array_equal(corrupt(channels_first, "fog", 3).numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_global_generators_are_not_disturbed(smooth, name):
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    corrupt(smooth(1), name, 5)
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [32, 64, 224])
def test_gpu_agrees_with_cpu_to_one_level(smooth, size):
    images = smooth(4, size, size)
    for name in NAMES:
        for severity in (1, 3, 5):
            ours = corrupt(images, name, severity, device="cuda").astype(int)
            gap = np.abs(ours - corrupt(images, name, severity))
            assert gap.max() <= 1, (name, severity)
            assert (gap > 0).mean() < 1e-3, (name, severity)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_tensor_stays_on_the_gpu_and_any_chunking_gives_the_same_pixels(smooth):
    images = torch.from_numpy(smooth(9)).cuda()
    for name in NAMES:
        whole = corrupt(images, name, 5, 2)
        assert whole.device == images.device
        assert torch.equal(whole[4:], corrupt(images[4:], name, 5, 2, offset=4)), name


@pytest.mark.parametrize("name", [*STANDARD, *EXTRA])
def test_images_in_any_order_get_the_pixels_of_the_whole(name) -> None:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (90, 32, 32, 3), dtype=np.uint8))
    whole, indices = corrupt(images, name, 4, seed=5, table=224), np.random.default_rng(1).permutation(90)
    assert torch.equal(corrupt(images[indices], name, 4, seed=5, offset=indices, table=224), whole[indices])


@pytest.mark.parametrize(
    "offset", [np.zeros(3, np.int64), np.zeros((2, 1), np.int64), np.zeros(2), np.array([0, -1]), np.array([0, 2**62])]
)
def test_indices_that_are_not_one_for_each_image_are_refused(offset) -> None:
    with pytest.raises(ValueError, match="`offset` to be"):
        corrupt(np.zeros((2, 32, 32, 3), np.uint8), "fog", 1, offset=offset)
