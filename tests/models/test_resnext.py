import pytest
import torch
import torch.nn.functional as F

from vcotta.models import ResNeXt

FIRST_BLOCK = {  # names and shapes of RobustBench's Hendrycks2020AugMix_ResNeXt, written out from its published layout
    "stage_1.0.conv_reduce.weight": (128, 64, 1, 1),
    "stage_1.0.bn_reduce.running_mean": (128,),
    "stage_1.0.conv_conv.weight": (128, 32, 3, 3),
    "stage_1.0.bn.weight": (128,),
    "stage_1.0.conv_expand.weight": (256, 128, 1, 1),
    "stage_1.0.bn_expand.bias": (256,),
    "stage_1.0.downsample.0.weight": (256, 64, 1, 1),
    "stage_1.0.downsample.1.running_var": (256,),
}
OTHERS = {
    "conv_1_3x3.weight": (64, 3, 3, 3),
    "bn_1.num_batches_tracked": (),
    "stage_2.0.conv_conv.weight": (256, 64, 3, 3),
    "stage_2.0.downsample.0.weight": (512, 256, 1, 1),
    "stage_3.2.conv_conv.weight": (512, 128, 3, 3),
    "stage_3.2.conv_expand.weight": (1024, 512, 1, 1),
    "classifier.weight": (100, 1024),
    "classifier.bias": (100,),
}


def robustbench_keys() -> set[str]:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = {"conv_1_3x3.weight", "classifier.weight", "classifier.bias", *(f"bn_1.{part}" for part in norm)}
    for stage in (1, 2, 3):
        for block in range(3):
            at = f"stage_{stage}.{block}"
            keys |= {f"{at}.conv_{kind}.weight" for kind in ("reduce", "conv", "expand")}
            keys |= {f"{at}.{name}.{part}" for name in ("bn_reduce", "bn", "bn_expand") for part in norm}
        keys |= {f"stage_{stage}.0.downsample.0.weight"}
        keys |= {f"stage_{stage}.0.downsample.1.{part}" for part in norm}
    return keys


def test_resnext_29_4x32d_has_robustbenchs_keys_and_shapes():
    with torch.device("meta"):
        net = ResNeXt()
    shapes = {key: tuple(tensor.shape) for key, tensor in net.state_dict().items()}
    assert set(shapes) == robustbench_keys()
    assert shapes.items() >= (FIRST_BLOCK | OTHERS).items()
    assert (net.mean, net.std) == ((0.5,) * 3, (0.5,) * 3)


def test_resnext_29_4x32d_has_the_parameters_of_its_architecture():
    with torch.device("meta"):
        net = ResNeXt(classes=10)
    count = 3 * 64 * 9 + 2 * 64
    inputs = 64
    for planes in (64, 128, 256):
        inner, outputs = 2 * planes, 4 * planes
        for block in range(3):
            count += inputs * inner + inner * inner * 9 // 4 + inner * outputs + 2 * (2 * inner + outputs)
            count += (inputs * outputs + 2 * outputs) * (block == 0)
            inputs = outputs
    count += 1024 * 10 + 10
    assert sum(p.numel() for p in net.parameters()) == count == 6_807_882


@pytest.mark.parametrize(("cardinality", "millions"), [(8, 34.4), (16, 68.1)])
def test_wider_networks_are_as_large_as_in_the_resnext_paper(cardinality, millions):
    with torch.device("meta"):
        net = ResNeXt(29, cardinality, 64, classes=10)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_block_is_reduce_group_expand_with_relu_after_the_sum():
    block = ResNeXt(11, 2, 8).eval().stage_2[0]
    x = torch.randn(2, 256, 8, 8)
    out = F.relu(block.bn_reduce(block.conv_reduce(x)))
    out = F.relu(block.bn(block.conv_conv(out)))
    out = block.bn_expand(block.conv_expand(out))
    assert block.conv_conv.groups == 2
    assert block.conv_conv.stride == (2, 2)
    torch.testing.assert_close(block(x), F.relu(out + block.downsample(x)))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 20), (65, 64), (7, 9)])
def test_any_image_size_gives_logits(height, width):
    net = ResNeXt(11, 2, 4, classes=7, channels=1, mean=None, std=None)
    assert net(torch.rand(2, 1, height, width)).shape == (2, 7)


def test_network_is_rebuilt_from_its_attributes():
    names = ("depth", "cardinality", "base_width", "classes", "channels", "mean", "std")
    net = ResNeXt(11, 2, 4, 5, 1, [0.4], [0.3]).eval()
    again = ResNeXt(**{name: getattr(net, name) for name in names}).eval()
    again.load_state_dict(net.state_dict(), strict=True)
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(again(images), net(images))


@pytest.mark.parametrize(
    ("options", "text"), [({"depth": 28}, "`depth`"), ({"depth": 2}, "`depth`"), ({"cardinality": 0}, "`cardinality`")]
)
def test_wrong_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        ResNeXt(**options)
