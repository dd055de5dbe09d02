from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vcotta.methods.reliable import (
    entropy_ceiling,
    is_below,
    is_novel,
    masked_mean,
    mean_prediction,
    train_early_normalisation,
)


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_ceiling_is_a_share_of_the_largest_entropy() -> None:
    assert entropy_ceiling(0.4, torch.zeros(3, 10)) == pytest.approx(0.4 * math.log(10))


def test_a_value_at_the_ceiling_is_not_below_it_and_nan_is_not_lost() -> None:
    assert is_below(torch.tensor([0.4, 0.5, 0.6, math.nan]), 0.5).tolist() == [True, False, False, True]


def test_the_masked_mean_is_that_of_the_chosen_samples_and_so_is_its_gradient() -> None:
    values, mask = draws(7, 3).requires_grad_(), torch.tensor([True, False, True, True, False, False, True])
    masked_mean(values, mask.unsqueeze(-1)).sum().backward()
    assert torch.allclose(masked_mean(values, mask.unsqueeze(-1)), values[mask].mean(0))
    assert torch.allclose(values.grad, mask.float().unsqueeze(-1).expand(7, 3) / 4)


def test_the_mean_over_nobody_is_zero_and_what_is_left_out_may_be_anything() -> None:
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


class Transformer(nn.Module):
    """The names of a vision transformer, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"norm1": nn.LayerNorm(2)}) for _ in range(12)])
        self.norm = nn.LayerNorm(2)


def test_late_blocks_and_the_last_norm_of_a_transformer_are_left_alone() -> None:
    for net in (Transformer(), nn.Sequential(Transformer())):
        assert len(train_early_normalisation(net, "SAR")) == 2 * 9
        trained = {name.removeprefix("0.").rpartition(".")[0] for name, p in net.named_parameters() if p.requires_grad}
        assert trained == {f"blocks.{k}.norm1" for k in range(9)}


def test_other_networks_are_trained_throughout(tiny) -> None:
    assert len(train_early_normalisation(tiny(), "SAR")) == 4
    assert len(train_early_normalisation(tiny("group"), "SAR")) == 4
