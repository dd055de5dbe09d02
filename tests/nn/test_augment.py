from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vcotta.nn import augment
from vcotta.nn.augment import augmix, mirrored, shifted


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
