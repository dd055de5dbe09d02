import pytest
import torch

from vcotta.models import (
    CifarResNet,
    ResNet,
    ResNeXt,
    WideResNet,
    build_network,
    expected_error,
    list_networks,
    save_weights,
)


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("wrn-28-10", WideResNet, {"depth": 28, "width": 10, "classes": 10, "mean": None}),
        ("wrn-40-2", WideResNet, {"depth": 40, "width": 2}),
        ("WRN_22_3", WideResNet, {"depth": 22, "width": 3}),
        ("resnext-29-4x32d", ResNeXt, {"depth": 29, "cardinality": 4, "base_width": 32, "classes": 100}),
        ("resnet-20", CifarResNet, {"depth": 20, "classes": 10}),
        ("resnet-56", CifarResNet, {"depth": 56}),
        ("resnet-18", ResNet, {"depth": 18, "classes": 1000}),
        ("resnet-50", ResNet, {"depth": 50}),
    ],
)
def test_names_stand_for_their_networks(name, kind, attributes):
    with torch.device("meta"):
        net = build_network(name)
    assert type(net) is kind
    assert {key: getattr(net, key) for key in attributes} == attributes
    assert not net.training


def test_every_listed_network_is_built():
    with torch.device("meta"):
        for name in list_networks():
            assert build_network(name, classes=3).classes == 3


def test_same_seed_same_weights_and_the_global_state_is_left_alone():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two, other = (build_network("wrn-10-1", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.conv1.weight, two.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_options_reach_the_network_and_unknown_ones_are_refused():
    assert build_network("wrn-10-1", stem_stride=2, mean=(0.5,) * 3, std=(0.5,) * 3).stem_stride == 2
    with pytest.raises(ValueError, match="Did you mean 'stem_stride'"):
        build_network("wrn-10-1", stemstride=2)


def test_weights_are_loaded(tmp_path):
    source = build_network("resnet-20", seed=3)
    save_weights(source, tmp_path / "net.safetensors")
    again = build_network("resnet-20", weights=tmp_path / "net.safetensors")
    assert torch.equal(again.linear.weight, source.linear.weight)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("resnet50", "Did you mean 'resnet-50'"),
        ("wrn-28", "Did you mean 'wrn-28-10'"),
        ("resnext-29", "Did you mean 'resnext-29-4x32d'"),
        ("resnet-110", "Did you mean 'resnet-"),
        ("wrn-27-10", "`depth` to be 6n"),
    ],
)
def test_unknown_names_suggest_the_nearest(name, text):
    with pytest.raises(ValueError, match=text):
        build_network(name)


def test_only_foreign_networks_have_published_weights_by_word():
    with pytest.raises(ValueError, match="only torchvision: and timm: have"):
        build_network("resnet-50", weights="pretrained")
    with pytest.raises(FileNotFoundError, match="no such file"):
        build_network("resnet-20", weights="IMAGENET1K_V1")


def test_expected_errors_are_the_published_ones():
    assert [expected_error(f"resnet-{depth}", "cifar10-test") for depth in (20, 32, 44, 56)] == [
        0.0827,
        0.0737,
        0.0690,
        0.0661,
    ]
    assert expected_error("WRN-28-10", "cifar10") == 0.0522
    assert expected_error("wrn-28-10", "digits") is None
