from __future__ import annotations

import pytest
import torch
from torch import nn

from vcotta.dense_groups import dense_groups
from vcotta.models import build_network


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"groups": 4, "stride": 2, "padding": 1, "bias": False},
        {"groups": 4, "dilation": 2},
    ],
)
def test_outputs_and_gradients_are_those_of_the_groups(options) -> None:
    net = nn.Conv2d(8, 12, 3, **options).double()
    images = torch.rand(3, 8, 9, 9, dtype=torch.float64, requires_grad=True)
    wanted = [images, *net.parameters()]

    def outputs_and_gradients():
        out = net(images)
        return out, torch.autograd.grad((out * out.sin()).sum(), wanted)

    plain, gradients = outputs_and_gradients()
    with dense_groups(net):
        assert type(net) is not nn.Conv2d
        dense, also = outputs_and_gradients()
    torch.testing.assert_close(dense, plain)
    torch.testing.assert_close(also, gradients)


def fails_inside(net, grouped) -> None:
    with dense_groups(net):
        assert type(grouped) is not nn.Conv2d
        assert type(net.conv_1_3x3) is nn.Conv2d
        raise RuntimeError("stop")


def test_layers_and_their_parameters_are_as_before_even_after_an_error() -> None:
    net = build_network("resnext-29-4x32d", 10)
    before, grouped = dict(net.named_parameters()), net.stage_1[0].conv_conv
    with pytest.raises(RuntimeError, match="stop"):
        fails_inside(net, grouped)
    assert type(grouped) is nn.Conv2d
    assert all(before[name] is parameter for name, parameter in net.named_parameters())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=2),
        type("Own", (nn.Conv2d,), {})(4, 4, 1, groups=2),
    ],
    ids=["no groups", "many groups", "other padding", "a subclass"],
)
def test_other_layers_are_left_alone(layer) -> None:
    kind = type(layer)
    with dense_groups(layer):
        assert type(layer) is kind
