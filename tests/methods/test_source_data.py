from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import vcotta
from vcotta.bayes import WarmUpConfig, warm_up
from vcotta.nn.mirroring import ENOUGH

MIRRORED = "mirrored source images, .* as if left and right mattered"


@pytest.fixture(scope="module")
def one_sided() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A network that tells on which side an image is brighter, and its source data."""
    torch.manual_seed(0)
    images = 0.5 * torch.rand(300, 3, 8, 8)
    labels = torch.arange(300) % 2
    images[labels == 0, ..., :4] += 0.4
    images[labels == 1, ..., 4:] += 0.4
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    return net.eval(), list(zip(images.split(50), labels.split(50), strict=True))


def warnings_of(build) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("name", ["cotta", "petal", "tca", "rmt", "roid"])
def test_mirrored_views_are_warned_of_once_where_left_and_right_matter(name, one_sided) -> None:
    net, source = one_sided
    with pytest.warns(UserWarning, match=rf"{MIRRORED}.* give {name} `flip=False`") as caught:
        vcotta.build_adapter(name, net, source=source)
    assert [one.filename for one in caught if "mirrored" in str(one.message)] == [__file__]


@pytest.mark.parametrize("options", [{"name": "vcl"}, {"preset": "paper"}, {"preset": "authors"}], ids=str)
def test_a_warm_up_that_nothing_judges_warns_of_mirrored_views_too(options, one_sided) -> None:
    net, source = one_sided  # 300 images: with the default share too few are held back to judge
    options = {"name": "vcotta", "preset": "best"} | options
    heard = warnings_of(lambda: vcotta.build_adapter(model=net, source=source, **options))
    assert len([text for text in heard if "mirrored" in text]) == 1


def test_mirrored_views_are_warned_of_on_a_network_warmed_up_before(one_sided) -> None:
    net, source = one_sided
    warmed = warm_up(net, source, WarmUpConfig(epochs=1, flip=False), progress=False)
    with pytest.warns(UserWarning, match=rf"{MIRRORED}.* give vcotta `flip=False`"):
        vcotta.build_adapter("vcotta", warmed, source=source)
    assert not warnings_of(lambda: vcotta.build_adapter("vcotta", warmed, source=source, flip=False))


@pytest.mark.parametrize(
    ("name", "options"), [("cotta", {"flip": False}), ("cotta", {"views": 0}), ("tent", {})], ids=str
)
def test_without_mirrored_views_nothing_is_warned_of(name, options, one_sided) -> None:
    net, source = one_sided
    assert not warnings_of(lambda: vcotta.build_adapter(name, net, source=source, **options))


def test_where_left_and_right_do_not_matter_nothing_is_warned_of() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    source = [(torch.rand(50, 3, 8, 8), torch.arange(50) % 2)]
    assert not warnings_of(lambda: vcotta.build_adapter("cotta", net, source=source))


def test_the_look_at_mirrored_images_reads_no_more_source_data_than_it_needs(one_sided) -> None:
    net, source = one_sided
    read = 0

    class Loader:
        def __iter__(self):
            nonlocal read
            for images, labels in source:
                read += len(images)
                yield images, labels

    with pytest.warns(UserWarning, match=MIRRORED):
        vcotta.build_adapter("roid", net, source=Loader())
    assert read == ENOUGH


def test_the_look_at_mirrored_images_changes_no_prediction(one_sided) -> None:
    net, source = one_sided
    with pytest.warns(UserWarning, match=MIRRORED):
        looked = vcotta.build_adapter("tca", net, source=source)
    assert torch.equal(looked(source[0][0]), vcotta.build_adapter("tca", net)(source[0][0]))


@pytest.mark.parametrize(
    "source",
    [
        [],
        iter(()),
        [(torch.randn(4, 3, 8, 8), torch.zeros(4))],
        [torch.rand(4, 3, 8, 8)],
        [(torch.rand(4, 3, 8, 8), ["cat", "dog", "cat", "dog"])],
        [(torch.rand(4, 3, 8, 8), torch.tensor(1))],
        vcotta,
    ],
    ids=["empty", "spent generator", "normalised", "no labels", "names", "one label", "no loader"],
)
def test_source_data_that_a_method_ignores_cannot_stop_it(source, one_sided) -> None:
    assert not warnings_of(lambda: vcotta.build_adapter("cotta", one_sided[0], source=source, threshold=0.9))


def test_a_generator_that_a_method_ignores_stays_unread(one_sided) -> None:
    net, source = one_sided
    given = iter(source)
    assert not warnings_of(lambda: vcotta.build_adapter("roid", net, source=given))
    assert len(list(given)) == len(source)


def test_source_data_that_a_method_reads_must_be_readable(one_sided) -> None:
    with pytest.raises(ValueError, match="it is empty"):
        vcotta.build_adapter("cotta", one_sided[0], source=[])  # its threshold is learned


def test_a_method_without_its_source_data_is_warned_of_when_it_is_built(one_sided) -> None:
    net, source = one_sided
    with pytest.warns(UserWarning, match=r"santa learns from source data .* `source=loader`, or call its prepare"):
        adapter = vcotta.build_adapter("santa", net, flip=False)
    adapter.prepare(source)
    adapter(source[0][0])


def test_a_method_that_needs_no_source_data_is_built_without_a_warning(one_sided) -> None:
    assert not warnings_of(lambda: vcotta.build_adapter("eata", one_sided[0], fisher_weight=0.0))
    assert not warnings_of(lambda: vcotta.build_adapter("cotta", one_sided[0]))
