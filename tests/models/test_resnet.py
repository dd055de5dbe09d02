import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vcotta.models import ResNet, build_network, save_weights
from vcotta.models.zoo import _construct, describe_network

SHAPES = {  # names and shapes in torchvision's checkpoints
    18: {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer1.1.bn2.num_batches_tracked": (),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.bias": (128,),
        "layer4.1.conv2.weight": (512, 512, 3, 3),
        "fc.weight": (1000, 512),
        "fc.bias": (1000,),
    },
    50: {
        "conv1.weight": (64, 3, 7, 7),
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv2.weight": (64, 64, 3, 3),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer3.5.bn3.running_var": (1024,),
        "layer4.0.downsample.0.weight": (2048, 1024, 1, 1),
        "layer4.2.conv3.weight": (2048, 512, 1, 1),
        "fc.weight": (1000, 2048),
    },
}


def torchvision_keys(blocks: tuple[int, ...], convs: int, shortcut_in_first: bool) -> set[str]:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in norm)}
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            keys |= {f"{at}.conv{i}.weight" for i in range(1, convs + 1)}
            keys |= {f"{at}.bn{i}.{part}" for i in range(1, convs + 1) for part in norm}
        if stage > 1 or shortcut_in_first:
            keys |= {f"layer{stage}.0.downsample.0.weight"}
            keys |= {f"layer{stage}.0.downsample.1.{part}" for part in norm}
    return keys


@pytest.mark.parametrize(
    ("depth", "count", "keys"),
    [
        (18, 11_689_512, torchvision_keys((2, 2, 2, 2), 2, False)),
        (50, 25_557_032, torchvision_keys((3, 4, 6, 3), 3, True)),
    ],
)
def test_keys_shapes_and_size_are_torchvisions(depth, count, keys):
    with torch.device("meta"):
        net = ResNet(depth)
    shapes = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
    assert set(shapes) == keys
    assert shapes.items() >= SHAPES[depth].items()
    assert sum(p.numel() for p in net.parameters()) == count


def test_bottleneck_has_its_stride_in_the_3x3_convolution():
    with torch.device("meta"):
        block = ResNet(50).layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]


def test_version_1_has_it_in_the_first_convolution_and_keras_epsilon():
    with torch.device("meta"):
        net = build_network("resnet-50-v1")
    block = net.layer2[0]
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(2, 2), (1, 1), (1, 1)]
    assert {module.eps for module in net.modules() if isinstance(module, nn.BatchNorm2d)} == {1e-3}
    assert net.mean == pytest.approx((0.485020, 0.457957, 0.407604), abs=1e-6)
    assert net.std == pytest.approx((1 / 255,) * 3)
    described = describe_network(net)
    assert describe_network(_construct(described)) == described
    assert described["arguments"]["first_strides"] is True


def test_a_small_stem_keeps_64_pixels():
    net, seen = build_network("resnet-18-64px", classes=3), []
    net.layer1.register_forward_hook(lambda module, inputs, out: seen.append(out.shape))
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 3)
    assert seen == [(1, 64, 64, 64)]
    assert describe_network(net)["arguments"]["small_stem"] is True


def test_stem_halves_the_image_twice_and_the_block_sums_before_relu():
    net = ResNet(18, classes=3).eval()
    seen = []
    net.layer1[0].register_forward_hook(lambda module, inputs, out: seen.append((inputs[0], out)))
    net(torch.rand(1, 3, 64, 64))
    ((x, out),) = seen
    assert x.shape == (1, 64, 16, 16)
    block = net.layer1[0]
    torch.testing.assert_close(out, F.relu(block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x))))) + x))


@pytest.mark.parametrize(("depth", "height", "width"), [(18, 64, 48), (18, 33, 32), (50, 64, 64)])
def test_any_image_size_gives_logits(depth, height, width):
    assert ResNet(depth, 7).eval()(torch.rand(1, 3, height, width)).shape == (1, 7)


@pytest.mark.parametrize("options", [{"depth": 34}, {"classes": 0}])
def test_wrong_arguments_are_named(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        ResNet(**options)


@pytest.mark.parametrize("name", ["resnet-26-gn", "resnet-18-gn", "resnet-18-gn-64px", "resnet-50-gn"])
def test_group_normalisation_takes_the_place_of_batch_normalisation_under_the_same_names(name):
    with torch.device("meta"):
        grouped, plain = build_network(name), build_network(name.replace("-gn", ""))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in grouped.modules())
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    expected = {key: t.shape for key, t in plain.state_dict().items() if not key.endswith(statistics)}
    assert {key: t.shape for key, t in grouped.state_dict().items()} == expected
    assert {m.num_groups for m in grouped.modules() if isinstance(m, nn.GroupNorm)} == {8 if "26" in name else 32}
    described = describe_network(grouped)
    assert describe_network(_construct(described)) == described


def test_a_file_of_a_network_with_group_normalisation_says_so(tmp_path):
    save_weights(build_network("resnet-26-gn"), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="looks like resnet-26-gn with 10 classes"):
        build_network("resnet-20", weights=tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="looks like resnet-26-gn"):
        build_network("resnet-26", weights=tmp_path / "net.safetensors")


def test_an_unknown_normalisation_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'group'"):
        ResNet(18, norm="grup")
