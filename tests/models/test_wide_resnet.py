import pytest
import torch
import torch.nn.functional as F

from vcotta.models import WideResNet


def robustbench_keys(blocks: int) -> set[str]:
    """The keys of RobustBench's WideResNet, written out from its published layout."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{part}" for part in norm)}
    for stage in (1, 2, 3):
        for block in range(blocks):
            at = f"block{stage}.layer.{block}"
            keys |= {f"{at}.conv1.weight", f"{at}.conv2.weight"}
            keys |= {f"{at}.bn{i}.{part}" for i in (1, 2) for part in norm}
        keys.add(f"block{stage}.layer.0.convShortcut.weight")
    return keys


def test_wrn_28_10_has_the_published_size_and_keys():
    with torch.device("meta"):
        net = WideResNet()
    assert sum(p.numel() for p in net.parameters()) == 36_479_194  # 36.5 M in the paper, and RobustBench's count
    assert set(net.state_dict()) == robustbench_keys(blocks=4)
    assert net.fc.in_features == 640


def test_normalisation_adds_no_key_to_the_checkpoint_and_equals_normalised_input():
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    raw, normalised = WideResNet(10, 1).eval(), WideResNet(10, 1, mean=mean, std=std).eval()
    normalised.load_state_dict(raw.state_dict(), strict=True)
    images = torch.rand(4, 3, 32, 32)
    by_hand = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(normalised(images), raw(by_hand))


def test_shortcut_of_a_widening_block_takes_the_activated_input_and_identity_takes_the_raw_one():
    net = WideResNet(16, 2, base=4).eval()
    x = torch.randn(2, 4, 8, 8)
    first, second = net.block1.layer
    active = F.relu(first.bn1(x))
    widened = first.convShortcut(active) + first.conv2(F.relu(first.bn2(first.conv1(active))))
    torch.testing.assert_close(first(x), widened)
    inner = second.conv2(F.relu(second.bn2(second.conv1(F.relu(second.bn1(widened))))))
    torch.testing.assert_close(second(widened), widened + inner)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 28), (64, 48), (7, 9)])
def test_any_image_size_gives_logits(height, width):
    assert WideResNet(10, 1, classes=7, channels=1)(torch.rand(2, 1, height, width)).shape == (2, 7)


def test_network_is_rebuilt_from_its_attributes():
    names = ("depth", "width", "classes", "channels", "mean", "std", "stem_stride", "base")
    net = WideResNet(16, 2, 5, 1, mean=[0.5], std=[0.2], stem_stride=2, base=8).eval()
    again = WideResNet(**{name: getattr(net, name) for name in names}).eval()
    again.load_state_dict(net.state_dict(), strict=True)
    images = torch.rand(3, 1, 16, 16)
    assert torch.equal(again(images), net(images))


def test_stem_stride_halves_the_resolution_of_every_stage():
    sides = []
    net = WideResNet(10, 1, stem_stride=2)
    for stage in (net.block1, net.block2, net.block3):
        stage.register_forward_hook(lambda _module, _inputs, out: sides.append(out.shape[-1]))
    net(torch.rand(1, 3, 32, 32).expand(2, -1, -1, -1))
    assert sides == [16, 8, 4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth": 12}, "`depth`"),
        ({"depth": 4}, "`depth`"),
        ({"width": 0}, "`width`"),
        ({"mean": (0.5, 0.5, 0.5)}, "`mean` and `std`"),
        ({"mean": (0.5,), "std": (0.5,)}, "`mean` to hold 3"),
        ({"mean": (0, 0, 0), "std": (1, 0, 1)}, "`std` to be positive"),
    ],
)
def test_wrong_arguments_are_named(options, text):
    with pytest.raises(ValueError, match=text):
        WideResNet(**{"depth": 10, "width": 1, **options})
