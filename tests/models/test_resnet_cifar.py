import pytest
import torch
import torch.nn.functional as F

from vcotta.models import CifarResNet

SHAPES = {  # names and shapes in akamaster's resnet20 checkpoint
    "conv1.weight": (16, 3, 3, 3),
    "bn1.running_var": (16,),
    "layer1.0.conv1.weight": (16, 16, 3, 3),
    "layer1.2.bn2.bias": (16,),
    "layer2.0.conv1.weight": (32, 16, 3, 3),
    "layer2.0.conv2.weight": (32, 32, 3, 3),
    "layer3.0.conv1.weight": (64, 32, 3, 3),
    "layer3.2.bn2.running_mean": (64,),
    "linear.weight": (10, 64),
    "linear.bias": (10,),
}


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)])
def test_parameters_are_as_many_as_published(depth, count):
    with torch.device("meta"):
        net = CifarResNet(depth)
    assert sum(p.numel() for p in net.parameters()) == count


def test_keys_and_shapes_are_akamasters():
    shapes = {key: tuple(tensor.shape) for key, tensor in CifarResNet(20).state_dict().items()}
    assert shapes.items() >= SHAPES.items()
    norm = ("weight", "bias", "running_mean", "running_var")
    keys = {"conv1.weight", "linear.weight", "linear.bias", *(f"bn1.{part}" for part in norm)}
    for block in (f"layer{stage}.{block}" for stage in (1, 2, 3) for block in range(3)):
        keys |= {f"{block}.conv{i}.weight" for i in (1, 2)}
        keys |= {f"{block}.bn{i}.{part}" for i in (1, 2) for part in norm}
    assert {key for key in shapes if not key.endswith("num_batches_tracked")} == keys
    assert len(keys) == 97


@pytest.mark.parametrize("side", [8, 7])
def test_shortcut_takes_every_other_pixel_between_channels_of_zeros(side):
    block = CifarResNet(8).eval().layer2[0]
    x = torch.randn(2, 16, side, side)
    half = (side + 1) // 2
    zeros = torch.zeros(2, 8, half, half)
    shortcut = torch.cat([zeros, x[:, :, ::2, ::2], zeros], 1)
    inner = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))
    torch.testing.assert_close(block(x), F.relu(inner + shortcut))


def test_imagenets_mean_and_deviation_are_inside():
    raw, net = CifarResNet(8, mean=None, std=None).eval(), CifarResNet(8).eval()
    net.load_state_dict(raw.state_dict(), strict=True)
    images = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    torch.testing.assert_close(net(images), raw((images - mean.view(3, 1, 1)) / std.view(3, 1, 1)))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 20), (65, 64), (7, 9)])
def test_any_image_size_gives_logits(height, width):
    assert CifarResNet(8, 7)(torch.rand(2, 3, height, width)).shape == (2, 7)


@pytest.mark.parametrize("options", [{"depth": 18}, {"depth": 2}, {"classes": 0}, {"channels": 0}])
def test_wrong_arguments_are_named(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        CifarResNet(**options)
