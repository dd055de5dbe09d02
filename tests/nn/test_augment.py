from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vcotta.nn import augment
from vcotta.nn.augment import augmix, changed, mirrored, mixed_with_partners, shifted


def photographs(n: int = 4, side: int = 32) -> tuple[torch.Tensor, list[Image.Image]]:
    pixels = np.random.default_rng(0).integers(30, 200, (n, side, side, 3), dtype=np.uint8)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255, [Image.fromarray(image) for image in pixels]


def as_tensor(images: list[Image.Image]) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255 for image in images])


def test_shift_moves_each_image_by_whole_pixels_within_reach() -> None:
    torch.manual_seed(0)
    image = torch.zeros(200, 2, 9, 11)
    image[:, :, 4, 5] = torch.arange(1, 201).view(-1, 1).float()
    moved = shifted(image, 2)
    assert moved.shape == image.shape
    assert torch.equal(moved.amax((2, 3)), image.amax((2, 3)))  # image and channel stay in place
    places = {tuple(place) for place in (moved[:, 0] > 0).nonzero()[:, 1:].tolist()}
    assert places == {(4 + down, 5 + right) for down in range(-2, 3) for right in range(-2, 3)}


def test_about_half_of_the_images_are_mirrored() -> None:
    torch.manual_seed(0)
    images = torch.rand(400, 3, 4, 5)
    result = mirrored(images)
    flipped = (result == images.flip(-1)).all(3).all(2).all(1)
    assert ((result == images).all(3).all(2).all(1) | flipped).all()
    assert 0.4 < flipped.float().mean() < 0.6


def test_autocontrast_and_equalise_agree_with_pillow() -> None:
    tensors, images = photographs()
    contrast = as_tensor([ImageOps.autocontrast(image) for image in images])
    assert (augment._autocontrast(tensors) - contrast).abs().max() < 1.5 / 255
    equalised = as_tensor([ImageOps.equalize(image) for image in images])
    assert torch.allclose(augment._equalise(tensors), equalised, atol=1e-6)
    small = photographs(side=8)[0]  # too few pixels to fill 256 levels: Pillow leaves them alone
    assert torch.equal(augment._equalise(small), small)


def test_flat_images_survive_autocontrast_and_equalise() -> None:
    flat = torch.full((2, 3, 8, 8), 0.5)
    assert torch.equal(augment._autocontrast(flat), flat)
    assert torch.equal(augment._equalise(flat), flat)


def test_posterise_keeps_the_high_bits() -> None:
    tensors, images = photographs()
    posterised = augment._posterise(tensors)
    pillow = [as_tensor([ImageOps.posterize(image, bits) for image in images]) for bits in (3, 4)]
    for k in range(len(images)):
        assert min((posterised[k] - p[k]).abs().max().item() for p in pillow) < 1e-3


def test_solarise_agrees_with_pillow(monkeypatch) -> None:
    monkeypatch.setattr(augment, "_levels", lambda count, device: torch.full((count,), 3.0))
    tensors, images = photographs()
    expected = as_tensor([ImageOps.solarize(image, 256 - 76) for image in images])
    assert torch.allclose(augment._solarise(tensors), expected, atol=1e-6)
    assert not torch.allclose(expected, tensors)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_rotation_and_shears_agree_with_pillow(kind, monkeypatch) -> None:
    """Shears are about the upper left corner, rotations about the centre; either sign, as half of the images have."""
    level = 2.9
    monkeypatch.setattr(augment, "_levels", lambda count, device: torch.full((count,), level))
    tensors = (
        torch.nn.functional.interpolate(photographs(1, side=8)[0], size=32, mode="bilinear").mul(255).round() / 255
    )
    image = Image.fromarray((tensors[0] * 255).byte().permute(1, 2, 0).numpy())
    torch.manual_seed(0)
    moved = augment._moved(tensors.expand(12, -1, -1, -1), [12 * (k == kind) for k in range(5)])

    def pillow(level: float) -> Image.Image:
        if kind == 0:
            return image.rotate(3 * level, resample=Image.Resampling.BILINEAR)
        shear = (1, 0.03 * level, 0, 0, 1, 0) if kind == 1 else (1, 0, 0, 0.03 * level, 1, 0)
        return image.transform(image.size, Image.Transform.AFFINE, shear, resample=Image.Resampling.BILINEAR)

    both = [(moved - as_tensor([pillow(sign * level)]))[..., 4:-4, 4:-4].abs().amax((1, 2, 3)) for sign in (1, -1)]
    assert torch.minimum(*both).max() < 2 / 255
    assert all((differences < 2 / 255).any() for differences in both)


def test_shifts_are_by_whole_pixels_along_their_axis(monkeypatch) -> None:
    monkeypatch.setattr(augment, "_levels", lambda count, device: torch.full((count,), 6.0))
    image = torch.zeros(1, 1, 31, 31)
    image[..., 15, 15] = 1
    torch.manual_seed(0)
    for kind, axis in ((3, 1), (4, 0)):
        moved = augment._moved(image, [int(k == kind) for k in range(5)])[0, 0]
        place = divmod(int(moved.argmax()), 31)
        assert abs(place[axis] - 15) == 6
        assert place[1 - axis] == 15


def test_augmix_keeps_range_shape_and_most_of_the_image() -> None:
    torch.manual_seed(0)
    images = photographs(40)[0]
    mixed = augmix(images)
    assert mixed.shape == images.shape
    assert mixed.min() >= 0
    assert mixed.max() <= 1
    changed = (mixed - images).abs().mean((1, 2, 3))
    assert (changed > 1e-4).float().mean() > 0.8
    assert changed.mean() < 0.2


def test_augmix_works_on_a_batch_smaller_than_its_operations() -> None:
    assert augmix(torch.rand(2, 3, 8, 8)).isfinite().all()


def test_augmix_keeps_the_precision_of_the_images() -> None:
    assert augmix(torch.rand(9, 3, 8, 8, dtype=torch.float64)).dtype == torch.float64


def test_partners_are_mixed_in_whole_or_in_a_rectangle_and_the_share_says_how_much():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = torch.arange(64.0).view(64, 1, 1, 1).expand(64, 1, 16, 16) + 1
        mixed, partner, share = mixed_with_partners(own, 0.8)
    theirs, kinds = own[partner], []
    for image, mine, other, kept in zip(mixed, own, theirs, share, strict=True):
        if torch.equal(image, mine):
            kinds.append("none")
            assert torch.equal(mine, other) or kept == 1
        elif ((image == mine) | (image == other)).all():
            kinds.append("rectangle")
            rows, columns = (image != mine)[0].any(1), (image != mine)[0].any(0)
            assert ((image != mine)[0] == rows.view(-1, 1) & columns).all()
            assert kept == (image == mine).float().mean()
        else:
            kinds.append("whole")
            assert torch.allclose(image, kept * mine + (1 - kept) * other)
    assert sorted(partner.tolist()) == list(range(64))
    assert [kinds.count(kind) > 10 for kind in ("none", "rectangle", "whole")] == [True, True, True]


def test_the_area_of_rectangles_and_the_share_of_mixup_are_uniform_but_for_the_edges():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, _, share = mixed_with_partners(torch.rand(20_000, 1, 8, 8), 1.0)
    # Mixup keeps one half on average. A rectangle of sides r = sqrt(1 - lambda) centred anywhere has, after clipping,
    # the expected area (r - r^2 / 4)^2, whose mean over lambda is 1/2 - 1/5 + 1/48.
    assert abs(share.mean() - (0.5 + (1 - (0.5 - 0.2 + 1 / 48))) / 2) < 0.01


def test_operations_change_images_within_their_range_and_none_changes_nothing():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images = torch.rand(18, 3, 8, 8)
        once = changed(images, 1)
    assert torch.equal(changed(images, 0), images)
    assert sum(not torch.equal(a, b) for a, b in zip(once, images, strict=True)) > 9
    assert once.min() >= 0
    assert once.max() <= 1
