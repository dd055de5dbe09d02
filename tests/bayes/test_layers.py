from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vcotta.bayes import (
    VariationalConv1d,
    VariationalConv2d,
    VariationalLinear,
    sampling,
    to_variational,
    variational_layers,
)
from vcotta.nn.sharing import Sharing, use_sharing

LAYERS = [
    (nn.Linear(6, 5), torch.rand(3, 6)),
    (nn.Linear(6, 5, bias=False), torch.rand(3, 6)),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), torch.rand(2, 4, 9)),
    (nn.Conv2d(4, 6, 3), torch.rand(2, 4, 9, 7)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), torch.rand(2, 4, 9, 7)),
    (nn.Conv2d(4, 8, 3, padding="same", dilation=2, groups=2), torch.rand(2, 4, 9, 9)),
    (nn.Conv2d(4, 4, 3, padding=1, groups=4, padding_mode="reflect"), torch.rand(2, 4, 9, 9)),
    (nn.Conv2d(4, 4, 3, padding=(1, 2), padding_mode="circular"), torch.rand(2, 4, 9, 9)),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"), torch.rand(2, 4, 9, 9)),
]


def moments(net: nn.Module, x: torch.Tensor, mode: str, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad(), sampling(net, mode):
        outputs = torch.stack([net(x) for _ in range(draws)])
    return outputs.mean(0), outputs.var(0)


@pytest.mark.parametrize(
    ("plain", "x"), LAYERS, ids=lambda value: str(value)[:70] if isinstance(value, nn.Module) else ""
)
def test_mean_mode_equals_the_plain_layer_bit_for_bit(plain: nn.Module, x: torch.Tensor) -> None:
    assert torch.equal(to_variational(plain)(x), plain(x))


@pytest.mark.parametrize(
    ("plain", "x"), LAYERS, ids=lambda value: str(value)[:70] if isinstance(value, nn.Module) else ""
)
@pytest.mark.parametrize("mode", ["local", "weight"])
def test_a_draw_has_the_mean_of_the_plain_layer_and_the_variance_of_the_weights(
    plain: nn.Module, x: torch.Tensor, mode: str
) -> None:
    torch.manual_seed(0)
    net = to_variational(plain, sigma_ratio=0.5)
    mean, variance = moments(net, x, mode, draws=3000)
    # The variance of y is the same linear map applied to x^2, sigma_w^2 and sigma_b^2.
    expected = to_variational(plain)
    with torch.no_grad():
        sigma = nn.functional.softplus(net.weight_rho)
        expected.weight.copy_(sigma.square())
        if expected.bias is not None:
            expected.bias.copy_(nn.functional.softplus(net.bias_rho).square())
        variance_expected = expected(x.square())
        assert torch.allclose(variance, variance_expected, rtol=0.2, atol=1e-6)
        assert ((mean - plain(x)).abs() <= 5 * (variance_expected / 3000).sqrt() + 1e-6).all()


class Operations(TorchDispatchMode):
    """Records what torch is asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_mean_mode_costs_exactly_the_operations_of_the_plain_network(tiny, images) -> None:
    recorded = []
    for net in (tiny(), to_variational(tiny())):
        with Operations() as operations, torch.no_grad():
            net(images())
        recorded.append(operations.names)
    assert recorded[0] == recorded[1]


def test_local_reparameterisation_agrees_with_weight_sampling_on_a_wide_layer() -> None:
    torch.manual_seed(0)
    net, x = to_variational(nn.Linear(512, 64), sigma_ratio=0.5), torch.rand(1, 512)
    local, weight = moments(net, x, "local", 4000), moments(net, x, "weight", 4000)
    deviation = weight[1].sqrt()
    assert ((local[0] - weight[0]).abs() / deviation).max() < 5 * (2 / 4000) ** 0.5
    assert (local[1] / weight[1]).log().abs().max() < 0.15


def test_local_reparameterisation_draws_each_sample_and_weight_sampling_the_batch() -> None:
    net, x = VariationalLinear(5, 3, sigma=0.1), torch.rand(1, 5).expand(2, 5)
    with sampling(net, "local"):
        first, second = net(x)
        assert not torch.equal(first, second)
    with sampling(net, "weight"):
        first, second = net(x)
        assert torch.allclose(first, second)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["local", "weight"]), st.integers(0, 2**32 - 1))
def test_a_vanishing_sigma_gives_the_plain_network(mode: str, seed: int) -> None:
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    x = torch.rand(2, 3, 8, 8)
    net = to_variational(plain, sigma_ratio=1e-6)
    with sampling(net, mode):
        assert torch.allclose(net(x), plain(x), atol=1e-4)


class Drawn(Sharing):
    """Noise that is given."""

    def __init__(self, noise: torch.Tensor) -> None:
        self.noise = noise

    def noise_like(self, x: torch.Tensor) -> torch.Tensor:
        return self.noise.clone()


def test_the_gradients_of_a_draw_are_those_of_its_formula() -> None:
    layer = VariationalConv2d(2, 3, 3, sigma=0.2).double()
    x, noise = torch.rand(4, 2, 5, 5, dtype=torch.float64, requires_grad=True), torch.randn(4, 3, 3, 3).double()
    inputs = [x, *layer.parameters()]
    with sampling(layer), use_sharing(Drawn(noise)):
        drawn = torch.autograd.grad(layer(x).square().sum(), inputs)
    variances = F.softplus(layer.weight_rho).square(), F.softplus(layer.bias_rho).square()
    expected = F.conv2d(x, layer.weight, layer.bias) + F.conv2d(x.square(), *variances).sqrt() * noise
    for found, grad in zip(drawn, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        assert torch.allclose(found, grad, rtol=1e-9)


def test_gradients_stay_finite_where_a_layer_sees_only_zeros() -> None:
    net = VariationalConv2d(2, 2, 3, bias=False)
    with sampling(net):
        net(torch.zeros(1, 2, 5, 5)).sum().backward()
    assert net.weight_rho.grad is not None
    assert net.weight_rho.grad.isfinite().all()
    assert net.weight.grad is not None
    assert net.weight.grad.isfinite().all()


def test_sampling_ends_with_its_block_even_after_an_error() -> None:
    net = nn.Sequential(VariationalLinear(3, 3), VariationalConv1d(1, 1, 1))

    def stopped() -> None:
        with sampling(net):
            assert all(layer.sampling == "local" for _, layer in variational_layers(net))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert all(layer.sampling is None for _, layer in variational_layers(net))


def test_train_mode_does_not_make_a_layer_sample() -> None:
    net, x = VariationalLinear(3, 3).train(), torch.rand(2, 3)
    assert torch.equal(net(x), net(x))


def test_sampling_says_what_is_wrong_with_its_arguments() -> None:
    with pytest.raises(ValueError, match="to_variational"), sampling(nn.Linear(2, 2)):
        pass
    with pytest.raises(ValueError, match="Did you mean 'local'"), sampling(VariationalLinear(2, 2), "locla"):
        pass
