from __future__ import annotations

import math

import pytest
import torch

from vcotta.methods.parts.losses import cross_entropy, entropy, soft_likelihood_ratio, symmetric_cross_entropy


def test_entropy_is_log_c_for_uniform_and_zero_for_certain_predictions() -> None:
    assert math.isclose(entropy(torch.zeros(7).log_softmax(-1)).item(), math.log(7), rel_tol=1e-6)
    certain = entropy(torch.tensor([1e4, 0.0, -1e4]).log_softmax(-1))
    assert certain.item() == 0
    assert certain.isfinite()


def test_cross_entropy_to_itself_is_the_entropy() -> None:
    p = torch.randn(5, 3).log_softmax(-1)
    assert torch.allclose(cross_entropy(p, p), entropy(p))
    assert torch.allclose(symmetric_cross_entropy(p, p), entropy(p))


def test_symmetric_cross_entropy_is_symmetric() -> None:
    p, q = torch.randn(2, 5, 3).log_softmax(-1)
    assert torch.allclose(symmetric_cross_entropy(p, q), symmetric_cross_entropy(q, p))
    assert not torch.allclose(cross_entropy(p, q), cross_entropy(q, p))


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_ratio_of_a_uniform_prediction_is_about_log_c_minus_1(classes) -> None:
    value = soft_likelihood_ratio(torch.zeros(1, classes).log_softmax(-1)).item()
    assert value == pytest.approx(-math.log((1 / classes) / (1 - 1 / classes) + 1e-5), abs=1e-5)
    assert value == pytest.approx(math.log(classes - 1), abs=0.02)


def test_the_ratio_of_a_sure_prediction_is_finite_with_a_gradient_of_zero() -> None:
    logits = torch.tensor([[100.0, 0.0, 0.0]], requires_grad=True)
    loss = soft_likelihood_ratio(logits.log_softmax(-1)).sum()
    loss.backward()
    assert loss.item() == pytest.approx(-0.99 * math.log(0.99 / 0.01 + 1e-5), abs=1e-5)
    assert logits.grad.abs().max() < 1e-6
