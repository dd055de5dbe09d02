from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

from vcotta.bayes import (
    VariationalConv2d,
    gaussian_kl,
    inverse_softplus,
    kl_divergence,
    kl_to_priors,
    mixture_kl_bound,
    to_variational,
    variational_parameters,
)


def perturbed(net: nn.Module, by: float = 0.3) -> nn.Module:
    net = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return net


@given(st.floats(1e-6, 50))
def test_softplus_undoes_its_inverse(sigma: float) -> None:
    value = torch.tensor(sigma, dtype=torch.float64)
    assert torch.allclose(nn.functional.softplus(inverse_softplus(value)), value, rtol=1e-9)


def test_closed_form_kl_agrees_with_monte_carlo() -> None:
    torch.manual_seed(0)
    mean_q, mean_p = torch.randn(2, 20, dtype=torch.float64)
    sigma_q, sigma_p = 0.5 + torch.rand(2, 20, dtype=torch.float64)
    q, p = Normal(mean_q, sigma_q), Normal(mean_p, sigma_p)
    samples = q.sample((200_000,))
    log_ratio = (q.log_prob(samples) - p.log_prob(samples)).sum(-1)
    error = log_ratio.std() / 200_000**0.5
    assert abs(gaussian_kl(mean_q, sigma_q, mean_p, sigma_p) - log_ratio.mean()) < 5 * error


def test_closed_form_kl_agrees_with_torch_distributions() -> None:
    torch.manual_seed(1)
    mean_q, mean_p, sigma_q, sigma_p = torch.rand(4, 50, dtype=torch.float64) + 0.1
    expected = torch.distributions.kl_divergence(Normal(mean_q, sigma_q), Normal(mean_p, sigma_p)).sum()
    assert torch.allclose(gaussian_kl(mean_q, sigma_q, mean_p, sigma_p), expected)


def test_kl_of_a_network_to_itself_is_exactly_zero_and_positive_otherwise(tiny) -> None:
    torch.manual_seed(0)
    net = to_variational(tiny())
    assert kl_divergence(net, copy.deepcopy(net)).item() == 0
    assert kl_divergence(perturbed(net), net).item() > 0


def test_moving_every_weight_by_one_sigma_costs_half_a_nat_each(tiny) -> None:
    net = to_variational(tiny())
    moved = copy.deepcopy(net)
    dimensions = 0
    with torch.no_grad():
        for layer in moved.modules():
            if hasattr(layer, "weight_rho"):
                layer.weight.add_(nn.functional.softplus(layer.weight_rho))
                dimensions += layer.weight.numel()
                if layer.bias is not None:
                    layer.bias.add_(nn.functional.softplus(layer.bias_rho))
                    dimensions += layer.bias.numel()
    assert kl_divergence(moved, net).item() == pytest.approx(dimensions / 2, rel=1e-3)


def test_normalisation_layers_take_no_part_in_the_kl(tiny) -> None:
    net = to_variational(tiny())
    other = copy.deepcopy(net)
    nn.init.constant_(other.norm1.weight, 7.0)
    assert kl_divergence(net, other).item() == 0


def test_a_layer_used_twice_counts_once() -> None:
    layer = nn.Linear(4, 4)
    once, twice = to_variational(nn.Sequential(layer)), to_variational(nn.Sequential(layer, nn.ReLU(), layer))
    nn.init.zeros_(once[0].weight)
    nn.init.zeros_(twice[0].weight)
    prior_once, prior_twice = (
        to_variational(nn.Sequential(layer)),
        to_variational(nn.Sequential(layer, nn.ReLU(), layer)),
    )
    assert kl_divergence(twice, prior_twice).item() == pytest.approx(kl_divergence(once, prior_once).item(), rel=1e-6)


def test_the_mixture_bound_lies_above_the_kl_to_the_mixture() -> None:
    torch.manual_seed(0)
    q, source, teacher = (to_variational(nn.Linear(1, 1, bias=False), sigma_ratio=1.0) for _ in range(3))
    for net in (q, source, teacher):
        nn.init.normal_(net.weight)
        nn.init.constant_(net.weight_rho, 0.0)
    alpha, sigma = 0.3, nn.functional.softplus(torch.zeros(()))
    with torch.no_grad():
        samples = q.weight.squeeze() + sigma * torch.randn(200_000)
        log_q = Normal(q.weight.squeeze(), sigma).log_prob(samples)
        mixed = alpha * Normal(source.weight.squeeze(), sigma).log_prob(samples).exp()
        mixed = mixed + (1 - alpha) * Normal(teacher.weight.squeeze(), sigma).log_prob(samples).exp()
        assert mixture_kl_bound(q, source, teacher, alpha) >= (log_q - mixed.log()).mean() - 1e-2


def test_the_mixture_bound_is_each_prior_alone_at_its_ends(tiny) -> None:
    torch.manual_seed(0)
    source = to_variational(tiny())
    q, teacher = perturbed(source), perturbed(source)
    assert torch.allclose(mixture_kl_bound(q, source, teacher, 1.0), kl_divergence(q, source))
    assert torch.allclose(mixture_kl_bound(q, source, teacher, 0.0), kl_divergence(q, teacher))


@pytest.mark.parametrize("alpha", [0.0, 0.3, torch.tensor(0.7, dtype=torch.float64)])
def test_the_closed_form_gradient_is_autograds(alpha, tiny) -> None:
    torch.manual_seed(0)
    source = to_variational(tiny().double())
    q, teacher = perturbed(source).requires_grad_(True), perturbed(source).requires_grad_(True)
    source.requires_grad_(True)  # priors that could be trained take the plain path
    plain = alpha * kl_divergence(q, source) + (1 - alpha) * kl_divergence(q, teacher)
    plain.backward()
    expected = [p.grad.clone() for _, *pair in variational_parameters(q) for p in pair]
    q.zero_grad()
    fast = mixture_kl_bound(q, source.requires_grad_(False), teacher.requires_grad_(False), alpha)
    (3 * fast).backward()
    found = [p.grad / 3 for _, *pair in variational_parameters(q) for p in pair]
    assert torch.allclose(fast, plain)
    assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))


def test_the_divergence_of_a_large_layer_is_that_of_float64() -> None:
    torch.manual_seed(0)
    prior, q = (VariationalConv2d(320, 320, 3, sigma=0.01).requires_grad_(grad) for grad in (False, True))
    with torch.no_grad():
        q.weight_rho += 0.1 * torch.randn_like(q.weight_rho)
    exact = kl_divergence(copy.deepcopy(q).double(), copy.deepcopy(prior).double()).item()
    with torch.no_grad():
        assert kl_divergence(q, prior).item() == pytest.approx(exact, rel=1e-5)
    assert kl_divergence(q, prior).item() == pytest.approx(exact, rel=1e-5)


def test_divergences_to_several_priors_are_those_to_each(tiny) -> None:
    q, one, other = (
        to_variational(tiny(seed=seed), sigma_ratio=ratio) for seed, ratio in ((0, 0.1), (1, 0.2), (2, 0.3))
    )
    one.requires_grad_(False)
    other.requires_grad_(False)
    weighted, parts = kl_to_priors(q, [(0.3, one), (torch.tensor(0.7), other)])
    each = torch.stack([kl_divergence(q, prior) for prior in (one, other)])
    assert torch.allclose(parts, each)
    assert torch.allclose(weighted, each @ torch.tensor([0.3, 0.7]))


def test_networks_of_another_shape_are_refused_by_name(tiny) -> None:
    with pytest.raises(ValueError, match=r"first differ at 'fc\.weight'"):
        kl_divergence(to_variational(tiny()), to_variational(tiny(classes=7)))
    with pytest.raises(ValueError, match="to_variational"):
        kl_divergence(tiny(), tiny())
