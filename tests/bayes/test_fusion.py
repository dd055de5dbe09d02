"""The fusion of Gaussian posteriors against closed forms."""

from __future__ import annotations

import itertools

import pytest
import torch

from vcotta.bayes import fuse_gaussians, gaussian_kl


def gaussians(count: int, size: int = 50, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, generator=draws).double(), (0.3 + torch.rand(size, generator=draws)).double())
        for _ in range(count)
    ]


def log_density(x: torch.Tensor, gaussian: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return torch.distributions.Normal(*gaussian).log_prob(x)


def test_posteriors_of_parts_of_the_data_fuse_into_the_posterior_of_all() -> None:
    """Conjugate: the mean of normal data with known noise, learned in three parts and at once."""
    (prior,), noise = gaussians(1), 0.7
    data = torch.randn(9, 50, generator=torch.Generator().manual_seed(1)).double()

    def posterior(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        precision = prior[1] ** -2 + len(part) * noise**-2
        return (prior[0] * prior[1] ** -2 + part.sum(0) * noise**-2) / precision, precision**-0.5

    mean, sigma = fuse_gaussians(prior, [posterior(part) for part in data.split([4, 2, 3])], [1, 1, 1])
    expected = posterior(data)
    assert torch.allclose(mean, expected[0])
    assert torch.allclose(sigma, expected[1])
    assert gaussian_kl(mean, sigma, *expected).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.2, 0.5, 0.3), (2.0, 0.1, 1.0)])
def test_its_density_is_that_of_the_weighted_product_over_the_prior(weights) -> None:
    prior, *posteriors = gaussians(4)
    posteriors = [(mean, torch.minimum(sigma, prior[1])) for mean, sigma in posteriors]  # the product is proper
    fused = fuse_gaussians(prior, posteriors, weights)
    x = torch.linspace(-3, 3, 7).double().unsqueeze(1)
    product = (1 - sum(weights)) * log_density(x, prior)
    product = product + sum(w * log_density(x, q) for w, q in zip(weights, posteriors, strict=True))
    constant = log_density(x, fused) - product
    assert torch.allclose(constant, constant[:1].expand_as(constant))


def test_equal_posteriors_pool_to_that_one_and_one_alone_stays() -> None:
    prior, one = gaussians(2)
    for weights in ([0.25, 0.75], [0.5, 0.5], [1.0]):
        fused = fuse_gaussians(prior, [one] * len(weights), weights)
        assert all(torch.allclose(a, b) for a, b in zip(fused, one, strict=True))


def test_the_prior_is_the_fusion_of_streams_that_learned_nothing() -> None:
    (prior,) = gaussians(1)
    mean, sigma = fuse_gaussians(prior, [prior] * 3, [1, 1, 1])
    assert torch.allclose(mean, prior[0])
    assert torch.allclose(sigma, prior[1])


def test_a_more_certain_posterior_counts_more() -> None:
    one = torch.ones(1)
    prior, sure, unsure = (0 * one, one), (one, 0.1 * one), (-one, one)
    mean, _ = fuse_gaussians(prior, [sure, unsure], [0.5, 0.5])
    assert mean.item() == pytest.approx((100 - 1) / 101)


def test_order_does_not_matter() -> None:
    prior, *posteriors = gaussians(4)
    fused = [fuse_gaussians(prior, list(some), [1] * 3)[0] for some in itertools.permutations(posteriors)]
    assert all(torch.allclose(fused[0], other, rtol=1e-12) for other in fused)


def test_posteriors_wider_than_the_prior_never_give_a_precision_that_is_not_positive() -> None:
    one = torch.ones(1).double()
    prior, wide = (0 * one, one), (one, 2 * one)  # 1 - 3 * 0.75 is below 0
    mean, sigma = fuse_gaussians(prior, [wide] * 3, [1, 1, 1])
    assert sigma.item() == pytest.approx(8**0.5)  # half the precision of the least certain
    assert mean.item() == pytest.approx(7 / 3)  # s is 7 / 18: 3 s / 4 divided by 1 / 8
    prior, *posteriors = gaussians(9, size=500)
    mean, sigma = fuse_gaussians(prior, posteriors, [1] * 8)
    widest = torch.stack([prior[1], *(sigma for _, sigma in posteriors)]).amax(0)
    assert (sigma <= 2**0.5 * widest * (1 + 1e-9)).all()
    assert mean.isfinite().all()


def test_nothing_jumps_where_the_precision_reaches_its_bound() -> None:
    one = torch.ones(1).double()
    prior, width = (0 * one, one), torch.linspace(0.8, 2.0, 1201).double()
    fused = [fuse_gaussians(prior, [(one, w * one), (one, w * one)], [1, 1]) for w in width]
    means = torch.cat([mean for mean, _ in fused])
    assert means.diff().abs().max() < 0.05
