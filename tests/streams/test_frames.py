import pytest
import torch

from vcotta.streams.frames import USELESS, darken, useless_frames

PIXELS = torch.arange(6 * 8 * 8 * 3).remainder(256).to(torch.uint8).reshape(6, 8, 8, 3)


def test_each_severity_halves_the_light():
    for severity in (1, 2, 3, 4, 5):
        light = (torch.tensor(255.0) / 255) ** 2.2 / 2**severity
        dark = darken(torch.tensor([0, 255], dtype=torch.uint8), severity)
        assert dark[0] == 0
        assert (dark[1] / 255) ** 2.2 == pytest.approx(light.item(), rel=0.03)


def test_blank_frames_are_black_and_stuck_ones_the_images():
    assert useless_frames("blank", PIXELS, 0, 0).sum() == 0
    assert torch.equal(useless_frames("stuck", PIXELS, 0, 0), PIXELS)


def test_noise_differs_between_frames_bursts_and_seeds_and_not_between_calls():
    noise = useless_frames("noise", PIXELS, seed=1, burst=2)
    assert torch.equal(noise[4:], useless_frames("noise", PIXELS[4:], seed=1, burst=2, first=4))
    frames = [*noise, useless_frames("noise", PIXELS, 2, 2)[0], useless_frames("noise", PIXELS, 1, 3)[0]]
    assert len({tuple(frame.flatten().tolist()) for frame in frames}) == 8
    assert noise.float().mean() == pytest.approx(127.5, abs=5)
    assert (noise.min(), noise.max()) == (0, 255)


def test_kinds_of_useless_frames_keep_shape_and_type():
    for kind in USELESS:
        frames = useless_frames(kind, PIXELS, 0, 0)
        assert (frames.shape, frames.dtype) == (PIXELS.shape, torch.uint8)
