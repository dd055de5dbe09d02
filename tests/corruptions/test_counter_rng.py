"""The random numbers: the published generator, the right distributions, nothing shared between images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vcotta.corruptions.noise import draw_shot_noise
from vcotta.corruptions.rng import CounterRng, mix, stream_key

CPU = torch.device("cpu")
WORD = 2**64


def splitmix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40))
def test_mix_is_splitmix64(words):
    ours = mix(torch.tensor(words, dtype=torch.int64))
    assert [word % WORD for word in ours.tolist()] == [splitmix(word % WORD) for word in words]


def test_first_words_of_seed_zero_are_the_published_ones():
    gamma = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix(k * gamma % WORD) for k in (1, 2, 3)] == published


def test_key_never_changes():
    assert stream_key(0, "fog", 5) == stream_key(0, "fog", 5)
    assert len({stream_key(s, n, v) for s in range(3) for n in ("fog", "snow") for v in (1, 2)}) == 12
    first = CounterRng(stream_key(0, "fog", 5), [0], CPU).bits(4)
    assert first.tolist() == [PINNED]


PINNED = [1898876471, 1280037798, 7748168, 3297436570]


def test_draws_follow_one_another_without_overlap():
    stream = CounterRng(stream_key(0, "x", 1), [0], CPU)
    drawn = torch.cat([stream.bits(5), stream.bits(6), stream.bits(7)], dim=1)
    assert drawn.unique().numel() == 18


def test_uniforms_and_normals_have_the_right_moments():
    stream = CounterRng(stream_key(0, "x", 1), range(4), CPU)
    uniform, normal = stream.uniform(50_000, low=-2, high=4), stream.normal(50_001, mean=1, std=3).double()
    assert uniform.min() > -2
    assert uniform.max() < 4
    assert uniform.mean() == pytest.approx(1, abs=0.02)
    assert uniform.std() == pytest.approx(6 / math.sqrt(12), rel=0.01)
    assert normal.mean() == pytest.approx(1, abs=0.03)
    assert normal.std() == pytest.approx(3, rel=0.01)
    assert ((normal - 1) ** 4).mean() / 81 == pytest.approx(3, rel=0.03)
    assert abs(np.corrcoef(normal[0], normal[1])[0, 1]) < 0.02
    assert abs(np.corrcoef(normal[0, 1:], normal[0, :-1])[0, 1]) < 0.02


def test_integers_cover_their_range_evenly():
    counts = CounterRng(stream_key(0, "x", 1), [0], CPU).integers(-2, 2, 40_000).add(2).view(-1).bincount()
    assert counts.numel() == 4
    assert (counts - 10_000).abs().max() < 400


@pytest.mark.parametrize("photons", [3, 50, 500])
def test_photon_counts_are_poisson(photons):
    for level in (0, 1, 60, 255):
        images = torch.full((1, 100, 100, 3), level, dtype=torch.uint8)
        (counts,) = draw_shot_noise(CounterRng(stream_key(0, "shot", level), [0], CPU), images, photons)
        rate = level / 255 * photons
        counts = counts.double()
        assert counts.mean() == pytest.approx(rate, abs=5 * math.sqrt(rate / 30_000) + 1e-9)
        assert counts.var() == pytest.approx(rate, rel=0.06, abs=0.005)
        assert (counts == 0).double().mean() == pytest.approx(math.exp(-rate), abs=0.015)
