from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta import to_variational
from vcotta.methods.parts.branches import Branches, add_branches, branch_parameters, layers_to_adapt, set_scales
from vcotta.models import ViT


def filled(net: nn.Module) -> nn.Module:
    """The network with branches that are not 0."""
    add_branches(net, 1, 2)
    for branch in branch_parameters(net).values():
        nn.init.normal_(branch.data, std=0.3)
    return net


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.3, 1.7)])
def test_new_branches_change_nothing(scales, tiny, images) -> None:
    net = tiny()
    before = net(images())
    add_branches(net, 1, 8)
    set_scales(net, torch.tensor(scales))
    assert torch.equal(net(images()), before)


def test_a_linear_layer_gets_the_products_of_its_branches() -> None:
    layer = filled(nn.Sequential(nn.Linear(3, 4)))[0]
    set_scales(layer, torch.tensor([0.5, 2.0]))
    x, own = torch.rand(5, 3), layer.vida
    low, high = own.low_up.weight @ own.low_down.weight, own.high_up.weight @ own.high_down.weight
    expected = x @ (layer.weight + 0.5 * low + 2 * high).T + layer.bias
    assert torch.allclose(layer(x), expected, atol=1e-6)
    assert [torch.linalg.matrix_rank(product).item() for product in (low, high)] == [1, 2]


@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": 1, "dilation": 2}, {"groups": 2}])
def test_a_convolution_gets_a_convolution_of_its_own_kernel(options) -> None:
    layer = filled(nn.Sequential(nn.Conv2d(4, 6, 3, **options)))[0]
    x, own = torch.rand(2, 4, 9, 7), layer.vida
    expected = F.conv2d(x, layer.weight, layer.bias, **options)
    shape = {name: value for name, value in options.items() if name != "groups"}
    for down, up in ((own.low_down, own.low_up), (own.high_down, own.high_up)):
        kernel = torch.einsum("or,rihw->oihw", up.weight[:, :, 0, 0], down.weight)
        expected = expected + F.conv2d(x, kernel, **shape)
    assert torch.allclose(layer(x), expected, atol=1e-5)


def test_the_first_values_are_smaller_the_higher_the_rank() -> None:
    own = Branches(nn.Linear(400, 2), 1, 10)
    assert own.low_down.weight.std().item() == pytest.approx(1, rel=0.2)
    assert own.high_down.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert not own.low_up.weight.any()
    assert not own.high_up.weight.any()


def test_attention_layers_get_branches_or_else_all_but_the_classifier(tiny) -> None:
    transformer, cnn = ViT(8, 4, depth=1, width=8, heads=2), tiny()
    attention = transformer.blocks[0].attn
    assert layers_to_adapt(transformer) == [attention.qkv, attention.proj]
    assert layers_to_adapt(cnn) == [cnn.conv1, cnn.conv2]
    assert len(layers_to_adapt(to_variational(cnn))) == 2
    perceptron = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    assert layers_to_adapt(perceptron) == [perceptron[1]]


def test_layers_that_their_module_never_calls_are_left_out() -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16)
    assert layers_to_adapt(net) == [net.linear1]
    with pytest.raises(ValueError, match="a linear or two-dimensional convolution layer"):
        layers_to_adapt(nn.MultiheadAttention(8, 2))


def test_a_copy_has_branches_of_its_own(tiny, images) -> None:
    net = filled(tiny())
    twin = copy.deepcopy(net)
    before = net(images())
    assert torch.equal(twin(images()), before)
    with torch.no_grad():
        next(iter(branch_parameters(twin).values())).add_(1)
    assert torch.equal(net(images()), before)
    assert not torch.equal(twin(images()), before)
