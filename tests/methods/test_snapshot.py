"""A snapshot puts tensors of all types and shapes back, or leaves them, without the host knowing which."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vcotta.methods.snapshot import Snapshot


def moved(tensors: list[Tensor]) -> list[Tensor]:
    """Change tensors in place and return what they have become."""
    for tensor in tensors:
        tensor.add_(3)
    return [tensor.clone() for tensor in tensors]


@pytest.mark.parametrize("taken", [True, False])
def test_tensors_are_put_back_unless_the_step_was_taken(taken) -> None:
    tensors = [torch.rand(3), torch.tensor(4), torch.rand(2, 2, dtype=torch.float64), torch.rand(1), torch.tensor(7)]
    before = [tensor.clone() for tensor in tensors]
    snapshot = Snapshot(tensors)
    after = moved(tensors)
    snapshot.restore(unless=torch.tensor(taken))
    for tensor, expected in zip(tensors, after if taken else before, strict=True):
        assert torch.equal(tensor, expected)


def test_what_is_not_finite_does_not_stay() -> None:
    statistics = [torch.zeros(2), torch.ones(2)]
    snapshot = Snapshot(statistics)
    statistics[0].fill_(torch.nan)
    snapshot.restore(unless=torch.tensor(False))
    assert torch.equal(torch.stack(statistics), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))


def test_a_network_without_statistics_needs_no_way_back() -> None:
    Snapshot([]).restore(unless=torch.tensor(False))
