from __future__ import annotations

import math

import pytest
import torch

from vcotta.methods.parts.prior_mixture import filter_views, mix, mixing_weight


def log_probs(*rows: list[float]) -> torch.Tensor:
    """One sample, one row a view."""
    return torch.tensor(rows).log().unsqueeze(1)


SURE, UNSURE = log_probs([0.98, 0.02], [0.97, 0.03]), log_probs([0.5, 0.5], [0.6, 0.4])


def test_entropy_alpha_trusts_the_surer_prior_and_the_printed_one_the_other() -> None:
    assert mixing_weight(SURE, UNSURE, "entropy", 0.01).item() == pytest.approx(1)
    assert mixing_weight(UNSURE, SURE, "entropy", 0.01).item() == pytest.approx(0, abs=1e-6)
    assert mixing_weight(SURE, UNSURE, "printed", 0.01).item() == pytest.approx(0, abs=1e-6)
    both = mixing_weight(SURE, UNSURE, "entropy", 0.3) + mixing_weight(SURE, UNSURE, "printed", 0.3)
    assert both.item() == pytest.approx(1)


@pytest.mark.parametrize("rule", ["entropy", "printed", "confidence"])
def test_equal_priors_share_and_a_high_temperature_does_too(rule) -> None:
    assert mixing_weight(SURE, SURE, rule).item() == pytest.approx(0.5)
    if rule != "confidence":
        assert mixing_weight(SURE, UNSURE, rule, tau=1e6).item() == pytest.approx(0.5, abs=1e-5)


def test_entropy_alpha_is_the_mean_over_views_of_the_sigmoid() -> None:
    h = lambda p: -(p * math.log(p) + (1 - p) * math.log(1 - p))  # noqa: E731
    expected = sum(1 / (1 + math.exp(-(h(b) - h(a)) / 0.5)) for a, b in ((0.98, 0.5), (0.97, 0.6))) / 2
    assert mixing_weight(SURE, UNSURE, "entropy", 0.5).item() == pytest.approx(expected, rel=1e-4)


def test_confidence_alpha_is_the_authors_formula() -> None:
    c = lambda rows: sum(math.exp(p) * p for row in rows for p in row) / 4  # noqa: E731
    source, teacher = [[0.700, 0.300], [0.6, 0.4]], [[0.701, 0.299], [0.6, 0.4]]
    expected = 1 / (1 + math.exp(-(c(source) - c(teacher)) / 8e-4))
    assert mixing_weight(log_probs(*source), log_probs(*teacher), "confidence").item() == pytest.approx(
        expected, abs=1e-3
    )


def test_a_number_is_itself_for_every_sample() -> None:
    p = torch.zeros(3, 5, 2).log_softmax(-1)
    assert torch.equal(mixing_weight(p, p, 0.25), torch.full((5,), 0.25))


def test_the_filter_keeps_views_surer_than_the_image_by_more_than_the_margin() -> None:
    # Sample 0: views 1 and 2 pass, 3 does not. Sample 1: none passes, so the image itself stays.
    p = torch.tensor(
        [
            [[0.60, 0.30, 0.10], [0.9, 0.05, 0.05]],
            [[0.80, 0.10, 0.10], [0.5, 0.25, 0.25]],
            [[0.10, 0.70, 0.20], [0.9, 0.05, 0.05]],
            [[0.65, 0.25, 0.10], [0.4, 0.30, 0.30]],
        ]
    )
    filtered = filter_views(p.log(), margin=0.06).exp()
    geometric = (p[1, 0] * p[2, 0]).sqrt()
    assert torch.allclose(filtered[0], geometric / geometric.sum(), atol=1e-6)
    assert torch.allclose(filtered[1], p[0, 1], atol=1e-6)


def test_margin_minus_one_keeps_every_view_and_no_views_leave_the_image() -> None:
    p = torch.randn(5, 3, 4).log_softmax(-1)
    assert torch.allclose(filter_views(p, -1.0), p[1:].mean(0).log_softmax(-1), atol=1e-6)
    assert torch.allclose(filter_views(p[:1], -1.0), p[0], atol=1e-6)


def test_mixing_is_of_probabilities_and_exact_at_its_ends() -> None:
    source, teacher = torch.randn(2, 3, 4).log_softmax(-1)
    for alpha in (0.0, 0.3, 1.0):
        expected = alpha * source.exp() + (1 - alpha) * teacher.exp()
        assert torch.allclose(mix(source, teacher, torch.tensor(alpha)).exp(), expected, atol=1e-6)
    assert torch.equal(mix(source, teacher, torch.tensor(1.0)), source)
    assert torch.equal(mix(source, teacher, torch.tensor(0.0)), teacher)
