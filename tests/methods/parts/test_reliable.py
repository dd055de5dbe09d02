from __future__ import annotations

import math

import pytest
import torch

from vcotta.methods.parts.reliable import (
    entropy_ceiling,
    is_below,
    is_novel,
    masked_mean,
    mean_prediction,
)


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_ceiling_is_a_share_of_the_largest_entropy() -> None:
    assert entropy_ceiling(0.4, torch.zeros(3, 10)) == pytest.approx(0.4 * math.log(10))


def test_a_value_at_the_ceiling_is_not_below_it_and_nan_is() -> None:
    assert is_below(torch.tensor([0.4, 0.5, 0.6, math.nan]), 0.5).tolist() == [True, False, False, True]


def test_the_masked_mean_is_that_of_the_chosen_samples_and_so_is_its_gradient() -> None:
    values, mask = draws(7, 3).requires_grad_(), torch.tensor([True, False, True, True, False, False, True])
    masked_mean(values, mask.unsqueeze(-1)).sum().backward()
    assert torch.allclose(masked_mean(values, mask.unsqueeze(-1)), values[mask].mean(0))
    assert torch.allclose(values.grad, mask.float().unsqueeze(-1).expand(7, 3) / 4)


def test_the_mean_over_an_empty_mask_is_zero_and_values_outside_it_do_not_matter() -> None:
    assert masked_mean(torch.tensor([1.0, 2.0]), torch.tensor([False, False])) == 0
    assert masked_mean(torch.tensor([1.0, math.nan]), torch.tensor([True, False])) == 1


def test_novelty_is_the_cosine_with_the_mean() -> None:
    probs, mean = draws(20, 5).softmax(-1), draws(5, seed=1).softmax(-1)
    cosines = (probs @ mean) / (probs.norm(dim=-1) * mean.norm())
    margin = cosines.median().item() + 1e-4
    assert torch.equal(is_novel(probs, mean, margin), cosines < margin)


def test_without_a_mean_everything_is_novel() -> None:
    assert is_novel(draws(4, 3).softmax(-1), torch.zeros(3), 0.0).all()


def test_the_mean_prediction_starts_with_the_first_and_then_moves_by_a_tenth() -> None:
    probs, kept = draws(4, 3).softmax(-1), torch.tensor([True, True, False, False])
    first = mean_prediction(probs, kept, torch.zeros(3))
    assert torch.allclose(first, probs[:2].mean(0))
    later = mean_prediction(probs, ~kept, first)
    assert torch.allclose(later, 0.9 * first + 0.1 * probs[2:].mean(0))
    assert later.sum() == pytest.approx(1)
