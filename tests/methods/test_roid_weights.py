"""ROID's weights by certainty and diversity, and its prior correction."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vcotta.methods.roid import certainty_and_diversity, correct_prior

seeds = st.integers(0, 10_000)


def predictions(seed: int, batch: int = 7, classes: int = 5) -> torch.Tensor:
    return 3 * torch.randn(batch, classes, generator=torch.Generator().manual_seed(seed))


def reference_weights(probs: list[list[float]], average: list[float], temperature: float) -> list[float]:
    """The official formula, image by image."""

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    def scaled(values):
        return [(v - min(values)) / (max(values) - min(values)) for v in values]

    diversity = scaled([1 - cosine(average, p) for p in probs])
    certainty = scaled([sum(x * math.log(x) for x in p) for p in probs])
    mean = sum(diversity) / len(diversity)
    return [0 if d < mean else math.exp(d * e / temperature) for d, e in zip(diversity, certainty, strict=True)]


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(0.1, 2.0))
def test_weights_follow_the_formula(seed, temperature) -> None:
    log_probs = predictions(seed).double().log_softmax(-1)
    average = predictions(seed + 1, batch=1)[0].double().softmax(-1)
    expected = reference_weights(log_probs.exp().tolist(), average.tolist(), temperature)
    weights = certainty_and_diversity(log_probs, average, temperature)
    assert weights.tolist() == pytest.approx(expected, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(2, 30))
def test_weights_are_zero_or_at_least_one_and_some_image_is_kept(seed, batch) -> None:
    weights = certainty_and_diversity(predictions(seed, batch).log_softmax(-1), torch.full((5,), 0.2), 1 / 3)
    assert ((weights == 0) | (weights >= 1)).all()
    assert (weights > 0).any()
    assert (weights == 0).any()
    assert weights.max() <= math.exp(3) + 1e-4


@pytest.mark.parametrize("batch", [1, 6])
def test_predictions_that_do_not_differ_have_no_weight(batch) -> None:
    log_probs = predictions(0, 1).log_softmax(-1).expand(batch, -1)
    weights = certainty_and_diversity(log_probs, torch.full((5,), 0.2), 1 / 3)
    assert torch.equal(weights, torch.zeros(batch))


def test_weights_carry_no_gradient_and_do_not_hide_what_is_not_finite() -> None:
    logits = predictions(0).requires_grad_()
    assert not certainty_and_diversity(logits.log_softmax(-1), torch.full((5,), 0.2), 1 / 3).requires_grad
    spoiled = predictions(0)
    spoiled[2] = float("nan")
    assert certainty_and_diversity(spoiled.log_softmax(-1), torch.full((5,), 0.2), 1 / 3).isnan().any()


def official_output(z: torch.Tensor) -> torch.Tensor:
    prior = z.softmax(1).mean(0)
    smooth = max(1 / z.shape[0], 1 / z.shape[1]) / prior.max()
    smoothed = (prior + smooth) / (1 + smooth * z.shape[1])
    assert smoothed.min() > 0
    assert smoothed.sum().item() == pytest.approx(1, abs=1e-5)
    return z * smoothed


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 12))
def test_correcting_logits_keeps_the_official_ranking(seed, batch) -> None:
    z = predictions(seed, batch)
    output = correct_prior(z, "logits")
    assert torch.equal(output.argmax(-1), official_output(z).argmax(-1))
    assert torch.allclose(output.exp().sum(-1), torch.ones(batch), atol=1e-5)


@pytest.mark.parametrize("what", ["logits", "probabilities", "none"])
def test_a_uniform_prior_leaves_the_prediction_as_it_is(what) -> None:
    z = torch.stack([predictions(0, 1)[0].roll(shift) for shift in range(5)])
    assert torch.allclose(correct_prior(z, what), z.log_softmax(-1), atol=1e-5)


def test_correcting_probabilities_multiplies_and_normalises_them() -> None:
    z = predictions(3)
    ratio = official_output(torch.ones_like(z) * z) / z
    expected = z.softmax(-1) * ratio
    assert torch.allclose(correct_prior(z, "probabilities").exp(), expected / expected.sum(-1, True), atol=1e-5)


def test_correction_favours_the_frequent_class() -> None:
    z = torch.tensor([[4.0, 0.0, 0.0]] * 7 + [[1.0, 1.1, 0.0]])
    plain = z.log_softmax(-1)
    for what in ("logits", "probabilities"):
        assert correct_prior(z, what)[-1].argmax() == 0
        assert correct_prior(z, what)[-1, 0] > plain[-1, 0]
