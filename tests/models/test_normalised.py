import copy

import pytest
import torch
from torch import nn

from vcotta.models import CifarResNet, Normalised, ResNet, ResNeXt, WideResNet
from vcotta.models.zoo import describe_network, rebuild_network


def test_wrapped_network_gets_normalised_images():
    net = Normalised(nn.Flatten(), (0.5, 0.0, 0.25), (0.5, 2.0, 0.25))
    assert net(torch.ones(1, 3, 1, 1)).tolist() == [[1.0, 0.5, 3.0]]
    assert not net.state_dict()


def test_normalisation_can_be_changed_and_taken_away():
    net = CifarResNet(8).eval()
    images = torch.rand(2, 3, 16, 16)
    net.set_normalisation((0.5,) * 3, (0.5,) * 3)
    half = CifarResNet(8, mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    half.load_state_dict(net.state_dict())
    assert torch.equal(net(images), half(images))
    net.set_normalisation(None, None)
    assert torch.equal(net.normalise(images), images)
    assert torch.equal(copy.deepcopy(net)(images), net(images))


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        ((0.5,) * 3, None, "given together"),
        ((0.5,), (0.5,), "hold 3 values"),
        ((0.5,) * 3, (1, 0, 1), "positive"),
        ((0.5,) * 3, (1, float("nan"), 1), "positive"),
    ],
)
def test_wrong_normalisation_is_refused_and_the_old_one_kept(mean, std, text):
    net = CifarResNet(8)
    before = net.mean, net.std
    with pytest.raises(ValueError, match=text):
        net.set_normalisation(mean, std)
    assert (net.mean, net.std) == before


@pytest.mark.parametrize(
    "net",
    [
        ResNeXt(11, 2, 4, classes=3),
        CifarResNet(8, classes=3, mean=None, std=None),
        ResNet(18, classes=3),
        WideResNet(10, 1, mean=(0.5,) * 3, std=(0.5,) * 3),
    ],
    ids=lambda net: type(net).__name__,
)
def test_every_network_is_rebuilt_from_its_description(net):
    again = rebuild_network(describe_network(net), net.state_dict()).eval()
    again.load_state_dict(net.state_dict(), strict=True)
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(again(images), net.eval()(images))
