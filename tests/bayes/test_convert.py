from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, weight_norm

from vcotta.bayes import VariationalConv2d, VariationalLinear, is_variational, to_point, to_variational


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """Random stacks of convolutions on 3-channel images, and a linear head."""
    width, layers = 3, []
    torch.manual_seed(draw(st.integers(0, 1000)))
    for _ in range(draw(st.integers(0, 3))):
        groups = draw(st.sampled_from([1, width]))
        out = width * draw(st.integers(1, 2))
        padding_mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
        bias = draw(st.booleans())
        layers += [nn.Conv2d(width, out, 3, padding=1, groups=groups, padding_mode=padding_mode, bias=bias), nn.ReLU()]
        if draw(st.booleans()):
            layers.append(nn.BatchNorm2d(out))
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4, bias=draw(st.booleans())))


@settings(max_examples=30, deadline=None)
@given(networks())
def test_conversion_round_trip_keeps_names_weights_classes_and_outputs(model: nn.Module) -> None:
    x = torch.rand(2, 3, 6, 7)
    model.eval()
    net = to_variational(model)
    back = to_point(net)
    assert torch.equal(net(x), model(x))
    assert torch.equal(back(x), model(x))
    assert [type(m) for m in back.modules()] == [type(m) for m in model.modules()]
    expected, found = model.state_dict(), back.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_plain_checkpoint_loads_into_a_variational_network_and_back(tiny) -> None:
    trained, net = tiny(seed=1), to_variational(tiny(seed=2))
    rho = net.conv1.weight_rho.detach().clone()
    net.load_state_dict(trained.state_dict())
    assert torch.equal(net.conv1.weight, trained.conv1.weight)
    assert torch.equal(net.conv1.weight_rho, rho)
    plain = tiny(seed=3)
    plain.load_state_dict(to_point(net).state_dict())
    assert torch.equal(plain.fc.weight, trained.fc.weight)


def test_a_checkpoint_without_a_mean_is_still_missed(tiny) -> None:
    net, state = to_variational(tiny()), tiny().state_dict()
    del state["fc.weight"]
    with pytest.raises(RuntimeError, match=r"fc\.weight"):
        net.load_state_dict(state)


def test_sigma_starts_at_the_ratio_times_the_rms_of_the_weight_for_weight_and_bias() -> None:
    model = nn.Linear(30, 20)
    net = to_variational(model, sigma_ratio=0.3)
    expected = 0.3 * model.weight.square().mean().sqrt()
    assert torch.allclose(nn.functional.softplus(net.weight_rho), expected.expand_as(net.weight), rtol=1e-4)
    assert torch.allclose(nn.functional.softplus(net.bias_rho), expected.expand_as(net.bias), rtol=1e-4)


def test_a_layer_of_zeros_gets_the_floor() -> None:
    model = nn.Linear(3, 3)
    nn.init.zeros_(model.weight)
    assert torch.allclose(nn.functional.softplus(to_variational(model).weight_rho), torch.tensor(1e-6), rtol=1e-3)


def test_the_original_is_left_alone_unless_asked(tiny) -> None:
    model = tiny()
    to_variational(model)
    assert not is_variational(model)
    assert to_variational(model, inplace=True) is model
    assert is_variational(model)
    assert to_point(model, inplace=True) is model
    assert not is_variational(model)


def test_a_tied_module_is_converted_once_and_stays_tied() -> None:
    layer = nn.Linear(4, 4)
    net = to_variational(nn.Sequential(layer, nn.ReLU(), layer))
    assert isinstance(net[0], VariationalLinear)
    assert net[0] is net[2]
    assert len(list(net.parameters())) == 4


def test_a_tied_weight_keeps_one_standard_deviation() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    net = to_variational(model)
    assert net[0].weight is net[1].weight
    assert net[0].weight_rho is net[1].weight_rho
    assert net[0].bias_rho is not net[1].bias_rho


def test_hooks_survive_the_conversion() -> None:
    model, seen = nn.Sequential(nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(type(module)))
    to_variational(model, inplace=True)(torch.rand(1, 2))
    assert seen == [VariationalLinear]


class OwnConv(nn.Conv2d):
    pass


class OwnAttention(nn.MultiheadAttention):
    pass


def parametrised_attention() -> nn.Module:
    layer = nn.MultiheadAttention(4, 1)
    parametrizations.weight_norm(layer, "in_proj_weight")
    return layer


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (parametrizations.weight_norm(nn.Linear(2, 2)), "parametrised"),
        (OwnConv(2, 2, 1), "subclass"),
        (OwnAttention(4, 1), "subclass"),
        (parametrised_attention(), "parametrised"),
        (nn.LazyLinear(2), "subclass"),
    ],
    ids=["parametrised", "subclass", "own attention", "parametrised attention", "lazy"],
)
def test_what_cannot_be_converted_is_named_or_kept_on_request(layer: nn.Module, reason: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(layer))
    with pytest.raises(ValueError, match=rf"'1\.0'.*{reason}"):
        to_variational(model)
    net = to_variational(model, unsupported="keep")
    assert isinstance(net[0], VariationalLinear)
    assert not is_variational(net[1])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_computed_by_a_hook_is_named() -> None:
    with pytest.raises(ValueError, match=r"'0'.*hook"):
        to_variational(nn.Sequential(weight_norm(nn.Linear(2, 2))))


def test_a_network_with_nothing_to_convert_is_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has none"):
        to_variational(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)))


def test_weights_that_are_not_finite_are_named(tiny) -> None:
    model = tiny()
    model.fc.weight.data[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"finite weights.*'fc'"):
        to_variational(model)


def test_wrong_arguments_are_refused(tiny) -> None:
    with pytest.raises(ValueError, match="got a variational one"):
        to_variational(to_variational(tiny()))
    for ratio in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="sigma_ratio"):
            to_variational(tiny(), sigma_ratio=ratio)
    with pytest.raises(TypeError, match="Module"):
        to_variational("model")
    with pytest.raises(ValueError, match="Did you mean 'keep'"):
        to_variational(tiny(), unsupported="kep")


def test_a_single_layer_is_a_network_too() -> None:
    assert isinstance(to_variational(nn.Conv2d(1, 1, 1)), VariationalConv2d)
