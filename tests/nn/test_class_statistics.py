"""Inferred statistics: their limits, their memory, and what other networks do with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from vcotta.nn.batch_norm import freeze_statistics, use_batch_statistics
from vcotta.nn.class_statistics import (
    GROUPS,
    ClassStatistics,
    Look,
    class_diversity,
    expected_entropy,
    share_in_random_order,
)
from vcotta.nn.pooled_statistics import Corrected


def colours(count: int, *, one: bool = False, brighter: float = 0.0, seed: int = 0) -> Tensor:
    """Images whose brightest channel is their class, in turn or all of class 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.zeros(count, dtype=torch.long) if one else torch.arange(count) % 4
    images = 0.2 + brighter + 0.4 * nn.functional.one_hot(labels, 4).float()[..., None, None].expand(-1, -1, 6, 6)
    return images + 0.2 * torch.rand(images.shape, generator=generator)


@pytest.fixture
def net() -> nn.Module:
    """One BatchNorm layer, whose statistics are those of all classes, and a reading of the brightest channel."""
    norm, images = nn.BatchNorm2d(4), colours(400)
    norm.running_mean, norm.running_var = images.mean((0, 2, 3)), images.var((0, 2, 3))
    last = nn.Linear(4, 4)
    last.weight.data, last.bias.data = 8 * torch.eye(4), torch.zeros(4)
    made = nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval()
    freeze_statistics(made)
    use_batch_statistics(made, False)
    return made


def clumped(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Labels that do not come in random order."""
    return log_probs, torch.zeros(())


def shuffled(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Labels that come in random order."""
    return log_probs, torch.ones(())


def look_at(statistics: ClassStatistics, net: nn.Module, images: Tensor, *, remember: bool = True) -> Look:
    look = statistics.infer(lambda: net(images), clumped, len(images))
    if remember:
        statistics.memory = look.memory
    return look


@pytest.mark.parametrize(("images", "classes"), [(1, 10), (5, 3), (40, 10)])
def test_the_expected_entropy_is_that_of_simulated_labels(images, classes) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (4000, images), generator=generator)
    shares = torch.nn.functional.one_hot(labels, classes).double().mean(1)
    simulated = -(shares * shares.clamp_min(1e-12).log()).sum(1).mean().item()
    assert expected_entropy(images, classes) == pytest.approx(simulated, abs=0.02)


def test_the_diversity_of_one_class_is_none_and_of_random_labels_nearly_all() -> None:
    assert class_diversity(torch.eye(10)[3], 50) == 0
    shuffled = torch.randint(10, (200,), generator=torch.Generator().manual_seed(1)).bincount(minlength=10) / 200
    assert class_diversity(shuffled, 200) > 0.95
    assert class_diversity(torch.full((10,), 0.1), 1) == 0  # a single image
    two = torch.tensor([0.5, 0.5, *[0.0] * 8])
    assert class_diversity(two, 200).item() == pytest.approx(1 / math.expm1(expected_entropy(200, 10)), rel=1e-3)


def test_many_images_of_all_classes_have_the_statistics_of_the_batch(net) -> None:
    images = colours(4000, brighter=0.3)
    look = look_at(ClassStatistics(), net, images)
    assert look.share > 0.99
    use_batch_statistics(net, True)
    assert torch.allclose(look.logits, net(images), atol=0.05)


def test_in_random_order_the_share_is_the_batchs_though_it_seems_to_hold_one_class(net) -> None:
    images = colours(200, one=True)
    clump = ClassStatistics().infer(lambda: net(images), clumped, len(images))
    mixed = ClassStatistics().infer(lambda: net(images), shuffled, len(images))
    assert clump.diversity < 0.01
    assert clump.share < 0.01
    assert mixed.share == pytest.approx(share_in_random_order(200))


def test_images_of_one_class_have_the_statistics_of_the_source(net) -> None:
    images = colours(200, one=True)
    look = look_at(ClassStatistics(), net, images)
    assert look.share < 0.01
    assert torch.allclose(look.logits, net(images), atol=0.05)


def test_a_batch_of_one_class_has_its_share_in_early_layers_and_none_in_the_last(net) -> None:
    first, last = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    deep = nn.Sequential(first, nn.Conv2d(4, 4, 1), last, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    freeze_statistics(deep)
    images = colours(24, one=True, brighter=0.3)
    statistics = ClassStatistics()
    look = statistics.infer(lambda: torch.eye(4)[0].repeat(24, 1) * 9 + 0 * deep(images), clumped, len(images))

    def used(layer: int, inputs: Tensor) -> Tensor:
        scale, offset = look.correction[layer]
        deviation = (inputs.var((0, 2, 3), correction=0) + 1e-5).sqrt() / scale
        return inputs.mean((0, 2, 3)) - offset * deviation

    style = images.mean((0, 2, 3)) * share_in_random_order(24)  # the source's mean is 0
    assert torch.allclose(used(0, images), style, atol=1e-4)
    with torch.no_grad(), Corrected(look.correction):
        inputs = deep[1](first(images))
    assert used(1, inputs).abs().max() < 0.02


def test_one_image_alone_is_answered_with_finite_numbers_near_the_sources(net) -> None:
    image = colours(1)
    look = look_at(ClassStatistics(), net, image)
    assert look.logits.isfinite().all()
    assert (look.logits.softmax(-1) - net(image).softmax(-1)).abs().max() < 0.05


def test_a_batch_of_one_class_uses_what_was_seen_of_the_others(net) -> None:
    statistics = ClassStatistics()
    for seed in range(5):
        look_at(statistics, net, colours(100, brighter=0.3, seed=seed))
    clump = colours(50, one=True, brighter=0.3, seed=9)
    remembered, alone = look_at(statistics, net, clump, remember=False), look_at(ClassStatistics(), net, clump)
    assert remembered.share > 0.8
    assert alone.share < 0.5
    use_batch_statistics(net, True)
    expected = net(torch.cat([colours(150, brighter=0.3), clump]))[-50:]  # about as many of each class
    assert (remembered.logits - expected).abs().mean() < (alone.logits - expected).abs().mean() / 2


def test_the_memory_ends_with_its_domain_and_not_with_a_change_of_classes(net) -> None:
    statistics = ClassStatistics()
    for seed in range(5):
        look_at(statistics, net, colours(100, seed=seed))
    before = statistics.memory[:, 0].sum()
    clump = look_at(statistics, net, colours(50, one=True, seed=8), remember=False).memory
    changed = look_at(statistics, net, colours(50, brighter=0.5, seed=8), remember=False).memory
    assert clump[:, 0].sum() > 0.9 * before
    assert changed[:, 0].sum() == pytest.approx(50, rel=0.05)


def test_what_was_corrected_is_what_was_inferred(net) -> None:
    statistics, images = ClassStatistics(), colours(30, brighter=0.2)
    look_at(statistics, net, colours(100))
    look = look_at(statistics, net, images)
    with Corrected(look.correction):
        assert torch.allclose(net(images), look.logits, atol=1e-4)


def test_gradients_pass_through_what_was_corrected(net) -> None:
    images = colours(30)
    look = look_at(ClassStatistics(), net, images)
    with Corrected(look.correction):
        net(images).square().mean().backward()
    assert net[0].weight.grad.isfinite().all()
    assert net[0].weight.grad.abs().sum() > 0


def test_a_batch_that_is_not_finite_is_not_remembered(net) -> None:
    statistics = ClassStatistics()
    look_at(statistics, net, colours(40))
    before = statistics.memory.clone()
    look_at(statistics, net, torch.full((8, 4, 6, 6), torch.nan))
    assert statistics.memory.isfinite().all()
    assert statistics.memory[:, 0].sum() <= before[:, 0].sum()


def test_many_classes_share_groups() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 1000)).eval()
    statistics = ClassStatistics()
    images = torch.rand(20, 3, 2, 2)
    look = statistics.infer(lambda: net(images), clumped, 20)
    assert look.log_probs.shape == (20, 1000)
    assert len(look.memory) == GROUPS
    assert look.memory[:, 0].sum().item() == pytest.approx(20, rel=1e-3)


def test_a_network_without_batch_norm_is_left_as_it_is() -> None:
    net, images = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.rand(6, 3, 2, 2)
    statistics = ClassStatistics()
    look = statistics.infer(lambda: net(images), clumped, 6)
    assert torch.equal(look.logits, net(images))
    assert look.correction == []
