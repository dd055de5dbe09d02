from __future__ import annotations

import math

import torch

from vcotta.methods.losses import cross_entropy, entropy, symmetric_cross_entropy


def test_entropy_is_log_c_for_uniform_and_zero_for_certain_predictions() -> None:
    assert math.isclose(entropy(torch.zeros(7).log_softmax(-1)).item(), math.log(7), rel_tol=1e-6)
    certain = entropy(torch.tensor([1e4, 0.0, -1e4]).log_softmax(-1))
    assert certain.item() == 0
    assert certain.isfinite()


def test_cross_entropy_to_itself_is_the_entropy() -> None:
    p = torch.randn(5, 3).log_softmax(-1)
    assert torch.allclose(cross_entropy(p, p), entropy(p))
    assert torch.allclose(symmetric_cross_entropy(p, p), entropy(p))


def test_symmetric_cross_entropy_does_not_mind_the_order() -> None:
    p, q = torch.randn(2, 5, 3).log_softmax(-1)
    assert torch.allclose(symmetric_cross_entropy(p, q), symmetric_cross_entropy(q, p))
    assert not torch.allclose(cross_entropy(p, q), cross_entropy(q, p))
