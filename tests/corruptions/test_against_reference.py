"""The pixels of the original generators, with their own random draws where there are any."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vcotta.corruptions import corrupt
from vcotta.corruptions.api import REGISTRY
from vcotta.corruptions.severity import EXTRA, STANDARD, constants

DETERMINISTIC = sorted(name for name, corruption in REGISTRY.items() if corruption.draw is None)
DRAWS = {
    "shot_noise": ("draws",),
    "glass_blur": ("draws",),
    "motion_blur": ("draws",),
    "snow": ("draws_field", "draws_angle"),
    "fog": ("draws",),
    "elastic_transform": ("draws_points", "draws_dx", "draws_dy"),
    "spatter": ("draws",),
}
# Where libraries or devices may differ in a last bit; everything below was seen to be exactly 0.
TOLERANCE = 0.01


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours.astype(int) - theirs.astype(int)).mean())


def test_every_name_is_implemented():
    assert set(REGISTRY) == {*STANDARD, *EXTRA}
    assert len(STANDARD) == 15
    assert len(EXTRA) == 4


def test_exactly_eight_corruptions_are_deterministic():
    colour, blur = {"brightness", "contrast", "saturate"}, {"defocus_blur", "zoom_blur", "gaussian_blur"}
    assert set(DETERMINISTIC) == {*colour, *blur, "pixelate", "jpeg_compression"}


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruption_gives_the_reference_pixels_at_32(reference, name, severity):
    assert difference(corrupt(reference["clean"], name, severity), reference[f"{name}_{severity}"]) <= TOLERANCE


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruption_gives_the_reference_pixels_at_224(reference, name):
    ours = corrupt(reference["clean224"], name, 3)
    assert difference(ours[:, :32, -48:], reference[f"in224_{name}_3"]) <= TOLERANCE


@pytest.mark.parametrize("name", DRAWS)
def test_random_corruption_gives_the_reference_pixels_from_its_draws(reference, name):
    severities = [s for s in range(1, 6) if f"{name}_{s}_ex" in reference]
    assert severities
    for severity in severities:
        keys = [f"{name}_{severity}_{kind}" for kind in DRAWS[name]]
        draws = [torch.from_numpy(reference[key]) if key in reference else None for key in keys]
        clean = torch.from_numpy(reference["clean"][:1])
        ours = REGISTRY[name].apply(clean, *draws, *constants(name, severity, 32))
        assert difference(ours.numpy(), reference[f"{name}_{severity}_ex"]) <= TOLERANCE


def test_motion_blur_gives_the_reference_pixels_at_224(reference):
    angle = torch.from_numpy(reference["in224_motion_blur_3_draws"])
    ours = REGISTRY["motion_blur"].apply(
        torch.from_numpy(reference["clean224"]), angle, *constants("motion_blur", 3, 224)
    )
    assert difference(ours.numpy()[:, :32, -48:], reference["in224_motion_blur_3_ex"]) <= TOLERANCE


@pytest.mark.parametrize("name", DRAWS)
def test_arithmetic_leaves_its_draws_as_they_were(reference, name):
    severity = 5
    keys = [f"{name}_{severity}_{kind}" for kind in DRAWS[name]]
    draws = [torch.from_numpy(reference[key].copy()) for key in keys]
    draws = [draw.double() if draw.is_floating_point() else draw for draw in draws]
    before = [draw.clone() for draw in draws]
    REGISTRY[name].apply(torch.from_numpy(reference["clean"][:1]), *draws, *constants(name, severity, 32))
    assert all(torch.equal(draw, old) for draw, old in zip(draws, before, strict=True))
