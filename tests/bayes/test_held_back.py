"""Source images that judge a warm-up: which they are, and how far back they send it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta import Runtime, to_variational
from vcotta.bayes import variational_parameters
from vcotta.bayes.gaussian import inverse_softplus
from vcotta.bayes.held_back import HeldBack

NO_WARNING = "error:The warm-up made the network worse"


def labelled(n: int = 100) -> tuple[Tensor, Tensor]:
    """Images whose class is the channel that is bright."""
    labels = torch.arange(n) % 3
    images = torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 0.3
    images[torch.arange(n), labels] += 0.5
    return images, labels


def classifier(scale: float) -> nn.Module:
    """It tells the brightest channel; the larger the scale, the surer it is."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    net[2].weight.data = scale * torch.eye(3)
    net[2].bias.data.zero_()
    return net


def judge() -> HeldBack:
    held = HeldBack(0.1)
    images, labels = labelled()
    held.collect(images, labels, torch.zeros(len(images)))
    return held


def go_back(net: nn.Module, prior: nn.Module):
    return judge().go_back(net, prior, [], Runtime("cpu"))


def test_the_same_images_are_held_back_in_any_order_and_batch() -> None:
    held, images = HeldBack(0.2), torch.rand(500, 3, 4, 4)
    whole, order = held.learned(images), torch.randperm(500)
    assert torch.equal(torch.cat([held.learned(part) for part in images[order].split(7)]), whole[order])


@pytest.mark.parametrize(("share", "size", "expected"), [(0.1, None, 0.1), (0.5, 2000, 0.25), (0.1, 50_000, 0.01)])
def test_about_the_share_asked_for_is_held_back_but_no_more_than_five_hundred(share, size, expected) -> None:
    images = torch.rand(5000, 1, 4, 4, generator=torch.Generator().manual_seed(0))  # few images: a seed in ten is off
    learned = HeldBack(share, size).learned(images)
    assert abs(1 - learned.mean().item() - expected) < 0.25 * expected


@pytest.mark.filterwarnings(NO_WARNING)
def test_a_warm_up_that_helps_goes_all_its_way() -> None:
    prior, net = to_variational(classifier(1.0), 1e-3), to_variational(classifier(4.0), 1e-3)
    verdict = go_back(net, prior)
    assert verdict.way == 1
    assert torch.equal(net[2].weight, 4.0 * torch.eye(3))
    assert verdict.after[1] < verdict.before[1]


def test_a_warm_up_that_ruins_is_undone_with_a_message() -> None:
    prior, net = to_variational(classifier(4.0), 1e-3), to_variational(classifier(-40.0), 1e-3)
    with pytest.warns(UserWarning, match="worse on 100 held-back source images, so the network keeps its weights"):
        verdict = go_back(net, prior)
    assert verdict.way == 0
    assert torch.equal(net[2].weight, prior[2].weight)
    assert verdict.before == verdict.after


def test_a_warm_up_that_goes_too_far_is_taken_back_as_far_as_needed() -> None:
    prior, net = to_variational(classifier(4.0), 1e-3), to_variational(classifier(4.0), 1e-3)
    net[2].bias.data = torch.tensor([4.0, 0.0, 0.0])
    with pytest.warns(UserWarning, match="of its change to the weights is kept"):
        verdict = go_back(net, prior)
    assert 0 < verdict.way < 1
    assert torch.allclose(net[2].bias, verdict.way * torch.tensor([4.0, 0.0, 0.0]))
    assert verdict.after[0] <= verdict.before[0] + 0.03


def test_widths_are_narrowed_by_one_factor_until_draws_predict_about_as_well_as_the_means() -> None:
    prior = to_variational(classifier(8.0), 1e-3)
    net = copy.deepcopy(prior)
    ((_, mean, rho), *_) = variational_parameters(net)
    wide = torch.linspace(1.0, 9.0, 9).reshape(mean.shape)
    rho.data.copy_(inverse_softplus(wide))
    verdict = go_back(net, prior)
    assert verdict.width < 1
    assert torch.allclose(F.softplus(rho), verdict.width * wide, rtol=1e-5)
    assert verdict.draws <= 1.1 * verdict.after[1] + 0.002


def test_too_few_images_judge_nothing() -> None:
    held, (images, labels) = HeldBack(0.1), labelled(29)
    held.collect(images, labels, torch.zeros(29))
    net = to_variational(classifier(-40.0), 1e-3)
    assert held.go_back(net, to_variational(classifier(4.0), 1e-3), [], Runtime("cpu")) is None
    assert torch.equal(net[2].weight, -40.0 * torch.eye(3))


class Sided(nn.Module):
    """It tells a bright left half from a bright right one, or from both alike."""

    def forward(self, images: Tensor) -> Tensor:
        left, right = images.mean(1).chunk(2, -1)
        sides = torch.stack([left.mean((1, 2)), right.mean((1, 2))], 1)
        return 20 * sides


def sided(wrong: int = 0) -> HeldBack:
    """A hundred images with a bright half each, some with the other label."""
    labels = torch.arange(100) % 2
    images = torch.zeros(100, 3, 8, 8)
    images[labels == 0, :, :, :4], images[labels == 1, :, :, 4:] = 0.9, 0.9
    held = HeldBack(0.1, flip=False)
    held.collect(images, torch.where(torch.arange(100) < wrong, 1 - labels, labels), torch.zeros(100))
    return held


@pytest.mark.parametrize("error", [0.86, 0.9, 1.0])
def test_a_network_no_better_than_chance_on_its_source_is_warned_of(error) -> None:
    held = HeldBack(0.1)
    held.collect(torch.rand(100, 3, 4, 4), torch.arange(100) % 10, torch.zeros(100))
    with pytest.warns(UserWarning, match="labels in the order of its outputs"):
        held._look_at_chance(error)


@pytest.mark.parametrize(("classes", "error"), [(1, 0.0), (2, 0.35), (10, 0.8), (50, 0.95)])
@pytest.mark.filterwarnings("error")
def test_a_poor_network_that_is_better_than_chance_is_not_warned_of(classes, error) -> None:
    held = HeldBack(0.1)
    held.collect(torch.rand(100, 3, 4, 4), torch.arange(100) % classes, torch.zeros(100))
    held._look_at_chance(error)


def test_where_left_and_right_matter_mirrored_views_are_warned_of() -> None:
    held = sided()
    held.flip = True
    with pytest.warns(
        UserWarning, match=r"mistakes 100% of mirrored source images, where it mistakes 0%.*`flip=False`"
    ):
        held._look_at_mirrored(Sided(), 0.0, Runtime("cpu"))


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_of_mirrored_images_that_are_no_harder_or_not_used() -> None:
    judge()._look_at_mirrored(classifier(10.0), 0.0, Runtime("cpu"))
    sided()._look_at_mirrored(Sided(), 0.0, Runtime("cpu"))


def bright(scale: float, bound: float) -> nn.Module:
    """It tells images that are brighter than the bound; the larger the scale, the surer it is."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    net[2].weight.data = scale / 3 * torch.tensor([[0.0] * 3, [1.0] * 3])
    net[2].bias.data = torch.tensor([0.0, -scale * bound])
    return net


@pytest.mark.parametrize(("mistaken", "way"), [(0, 1), (40, 0.5)])
@pytest.mark.filterwarnings("ignore:The warm-up made the network worse")
def test_the_error_may_rise_to_three_per_cent_but_not_from_more(mistaken, way) -> None:
    """Both warm-ups cost three points of 500 images; only the network that errs on eight per cent must go back."""
    values = torch.linspace(0.0, 1.0, 500)
    labels = (values > 0.5).long()
    labels[:mistaken] = 1
    held = HeldBack(0.1, flip=False)
    held.collect(values.view(-1, 1, 1, 1).expand(-1, 3, 8, 8).contiguous(), labels, torch.zeros(500))
    prior, net = to_variational(bright(200.0, 0.5), 1e-3), to_variational(bright(20.0, 0.53), 1e-3)
    verdict = held.go_back(net, prior, [], Runtime("cpu"))
    assert verdict.before[0] == pytest.approx(mistaken / 500)
    assert verdict.way == way
