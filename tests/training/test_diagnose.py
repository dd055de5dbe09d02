import copy

import numpy as np
import pytest
import torch
from torch import nn

from vcotta.data import ImageData, batches, load_digits
from vcotta.models import WideResNet
from vcotta.training.diagnose import check_network
from vcotta.training.trainer import TrainConfig, train


def coloured(data: ImageData) -> ImageData:
    """Digits whose channels differ, so that their order matters."""
    images = data.images.copy()
    images[..., 1] //= 2
    images[..., 2] = 255 - images[..., 2]
    return ImageData(images, data.labels, data.class_names, data.name)


@pytest.fixture(scope="module")
def digits() -> tuple[WideResNet, ImageData]:
    """A network that was trained with (x - 0.5) / 0.5 inside, and its test images; its error is about a tenth."""
    learn, test = map(coloured, load_digits())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = WideResNet(10, 1, stem_stride=2, base=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    return train(net, batches(learn.images, learn.labels, 50, shuffle_seed=0), TrainConfig(epochs=4)), test


class Before(nn.Module):
    """A network of the user's own, which does something to the images first."""

    def __init__(self, change, net: nn.Module) -> None:
        super().__init__()
        self.change, self.net = change, net

    def forward(self, x):
        return self.net(self.change(x))


def relabelled(data: ImageData, order: np.ndarray, names: tuple[str, ...] | None = None) -> ImageData:
    return ImageData(data.images, order[data.labels].astype(np.int64), names or data.class_names, "relabelled")


def test_right_network_passes_with_and_without_an_expectation(digits):
    net, data = digits
    for expected in (None, 0.1):
        report = check_network(net, data, expected=expected)
        assert report.ok
        assert report.explanation is None
        assert report.images == 797
        assert 0 < report.error < 0.2
        assert str(report).startswith("The error is ")
    assert str(report).endswith(" % on 797 clean images; about 10.00 % was expected.")


def raw(net):
    net.set_normalisation(None, None)
    return net


def imagenets(net):
    net.set_normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return net


def fresh_statistics(net):
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    return net


BROKEN = {
    "normalisation left out": (raw, "With (x - 0.5) / 0.5 applied inside the model"),
    "normalisation of another data set": (imagenets, "With (x - 0.5) / 0.5 applied inside the model"),
    "user's network without": (lambda net: Before(lambda x: x, raw(net)), "With (x - 0.5) / 0.5 applied inside the"),
    "normalised twice": (lambda net: Before(lambda x: x * 2 - 1, net), "With (x - 0.5) / 0.5 taken out of the model"),
    "made for bytes": (lambda net: Before(lambda x: x / 255, net), "With pixels from 0 to 255 inside the model"),
    "BGR": (lambda net: Before(lambda x: x.flip(1), net), "With the channels in BGR order"),
    "no statistics": (fresh_statistics, "With BatchNorm using the statistics of each batch"),
}


@pytest.mark.parametrize("expected", [0.1, None])
@pytest.mark.parametrize("case", BROKEN)
def test_a_mistake_in_the_input_is_found(case, expected, digits):
    spoil, without = BROKEN[case]
    net, data = digits
    right = check_network(net, data, limit=400).error
    report = check_network(spoil(copy.deepcopy(net)), data, limit=400, expected=expected)
    assert not report.ok
    assert report.explanation.without.startswith(without)
    assert report.explanation.error == pytest.approx(right, abs=0.03)
    assert report.mistakes[0] is report.explanation


def test_the_text_gives_expected_and_measured_error_and_a_remedy(digits):
    net, data = digits
    report = check_network(raw(copy.deepcopy(net)), data, expected=0.09)
    got, would = 100 * report.error, 100 * report.explanation.error
    assert str(report) == (
        f"Expected an error of about 9.00 %, but got {got:.2f} % on 797 clean images. With (x - 0.5) / 0.5 applied "
        f"inside the model it would be {would:.2f} %: its normalisation is another one. Build it with "
        "mean=(0.5, 0.5, 0.5) and std=(0.5, 0.5, 0.5)."
    )


ORDERS = {
    "shuffled": (
        np.array([4, 6, 2, 7, 3, 5, 9, 0, 8, 1]),
        None,
        "With the labels in another order (the network says 0",
    ),
    "from one": (np.roll(np.arange(10), -1), None, "With every label one lower"),
    "by name": (np.arange(10)[::-1], tuple("jihgfedcba"), "With the classes in alphabetical order"),
}


@pytest.mark.parametrize("case", ORDERS)
def test_a_wrong_order_of_labels_is_found(case, digits):
    order, names, without = ORDERS[case]
    net, data = digits
    report = check_network(net, relabelled(data, order, names), expected=0.1)
    assert not report.ok
    assert report.explanation.without.startswith(without)
    assert report.explanation.error == pytest.approx(check_network(net, data).error, abs=0.02)
    assert "Put them in its order: class folders are taken in alphabetical order" in str(report)


def test_untrained_network_is_not_explained_away(digits):
    data = digits[1]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = WideResNet(10, 1, stem_stride=2, base=8)
    for expected in (None, 0.05):
        report = check_network(net, data, expected=expected)
        assert not report.ok
        assert report.explanation is None
        assert "None of the common mistakes explains it" in str(report)


def test_network_is_left_as_it_was_found(digits):
    net, data = copy.deepcopy(digits[0]), digits[1]
    net.train()
    net.block1.eval()
    modes = [module.training for module in net.modules()]
    before = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    check_network(raw(net), data, limit=300, expected=0.05, device="cpu")
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(before[key], tensor) for key, tensor in net.state_dict().items())
    assert all(module.track_running_stats for module in net.modules() if isinstance(module, nn.BatchNorm2d))


def test_limit_takes_images_from_all_over_the_data():
    class Brightness(nn.Module):
        def forward(self, x):  # one_hot refuses what is not a label, as a careful network might
            return nn.functional.one_hot((x.mean((1, 2, 3)) * 255).round().long(), 100).float()

    labels = np.repeat(np.arange(100), 3)
    images = np.broadcast_to(labels.astype(np.uint8)[:, None, None, None], (300, 2, 2, 3)).copy()
    data = ImageData(images, labels, tuple(map(str, range(100))), "sorted")
    report = check_network(Brightness(), data, limit=50, batch_size=7)
    assert (report.images, report.error) == (50, 0.0)
    numbers = sorted(range(100), key=str)
    report = check_network(Brightness(), relabelled(data, np.array(numbers)), limit=150)
    assert report.explanation.without.startswith("With the labels sorted as text")


def test_images_that_can_only_be_sliced_will_do(digits):
    class Files:
        """Images that are read from somewhere when they are needed."""

        def __init__(self, images) -> None:
            self.images, self.shape = images, images.shape

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: slice):
            assert isinstance(index, slice)
            return self.images[index]

    net, data = digits
    source = copy.copy(data)
    object.__setattr__(source, "images", Files(data.images))
    for limit in (100, None):
        assert check_network(net, source, limit=limit) == check_network(net, data, limit=limit)


def test_grey_images_can_be_checked():
    data = ImageData(np.zeros((20, 4, 4, 1), np.uint8), np.arange(20) % 10, tuple(map(str, range(10))), "grey")
    report = check_network(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), data)
    assert not report.ok
    assert not any("BGR" in mistake.without for mistake in report.mistakes)


def linear(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, outputs))


@pytest.mark.parametrize(
    ("net", "options", "text"),
    [
        (
            linear(11),
            {},
            "Expected 10 outputs, one for each class, but the network has 11. It may have a background class",
        ),
        (linear(1000), {}, "the network has 1000. It is for another data set"),
        (nn.Identity(), {}, r"logits of shape \(n, 10\), but got shape \(20, 3, 2, 2\)"),
        (Before(lambda x: x * float("nan"), linear(10)), {}, "returns NaN or infinity"),
        (linear(10), {"limit": 0}, "`limit` to be at least 1"),
        (linear(10), {"batch_size": 0}, "`batch_size` to be at least 1"),
        (linear(10), {"expected": 5.4}, "to be 0 to 1, but got 5.4. Give a fraction, not per cent"),
    ],
)
def test_wrong_arguments_are_refused(net, options, text):
    data = ImageData(np.ones((20, 2, 2, 3), np.uint8), np.arange(20) % 10, tuple(map(str, range(10))), "tiny")
    with pytest.raises(ValueError, match=text):
        check_network(net, data, **options)


def test_empty_data_are_refused():
    data = ImageData(np.zeros((0, 2, 2, 3), np.uint8), np.zeros(0, np.int64), ("a",), "nothing")
    with pytest.raises(ValueError, match="Expected images in nothing, but it has none"):
        check_network(linear(1), data)
