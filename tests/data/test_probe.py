"""A few labelled images and corrupted copies of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt
from vcotta.data import ImageData, make_probe

DATA = ImageData(
    np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8), np.arange(30) % 5, tuple("abcde"), "some"
)


def test_a_probe_has_each_image_clean_and_corrupted_with_its_label() -> None:
    images, labels = make_probe(DATA, 12, ["contrast"])
    assert images.shape == (2, 12, 3, 8, 8)
    clean = images[0].permute(0, 2, 3, 1).numpy()
    places = [next(k for k in range(30) if np.array_equal(DATA.images[k], one)) for one in clean]
    assert len(set(places)) == 12
    assert places != list(range(12))  # folders are sorted by class: the first ones would be of one class
    assert labels.tolist() == [k % 5 for k in places]
    assert np.array_equal(images[1].permute(0, 2, 3, 1).numpy(), corrupt(clean, "contrast", 5))


def test_the_seed_determines_the_probe() -> None:
    one, same, other = (make_probe(DATA, 12, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("count", [0, 31])
def test_more_images_than_there_are_cannot_be_drawn(count) -> None:
    with pytest.raises(ValueError, match=f"1 to 30 images, but got {count}"):
        make_probe(DATA, count)
