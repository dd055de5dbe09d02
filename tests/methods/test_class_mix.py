"""Which classes a batch holds: its diversity, the label prior, and adapters that use both."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

from vcotta.bayes import to_variational
from vcotta.methods import Guard, build_adapter, configure, find_method
from vcotta.methods.class_mix import LabelPrior, _expected_entropy, class_diversity, recorded_settings
from vcotta.nn.batch_norm import MixedStatistics


def one_hot(labels: torch.Tensor, classes: int, sure: float = 0.98) -> torch.Tensor:
    rest = (1 - sure) / (classes - 1)
    return (torch.nn.functional.one_hot(labels, classes) * (sure - rest) + rest).log()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(6, 4)).eval()
    net[-1].weight.data.mul_(30)  # sure of its few classes
    return net


@pytest.mark.parametrize(("images", "classes"), [(1, 10), (5, 3), (40, 10)])
def test_the_expected_entropy_is_that_of_simulated_labels(images, classes) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (4000, images), generator=generator)
    shares = torch.nn.functional.one_hot(labels, classes).double().mean(1)
    simulated = -(shares * shares.clamp_min(1e-12).log()).sum(1).mean().item()
    assert _expected_entropy(images, classes) == pytest.approx(simulated, abs=0.02)


def test_a_batch_of_one_class_has_no_diversity_and_a_shuffled_one_nearly_all() -> None:
    assert class_diversity(one_hot(torch.full((50,), 3), 10, sure=1 - 1e-9)).item() == pytest.approx(0, abs=1e-3)
    shuffled = torch.randint(10, (200,), generator=torch.Generator().manual_seed(1))
    assert class_diversity(one_hot(shuffled, 10)).item() > 0.95
    assert class_diversity(one_hot(torch.tensor([2]), 10)).item() == 0  # a single image


def test_two_of_ten_classes_have_a_ninth_of_the_diversity() -> None:
    labels = torch.arange(200) % 2
    found = class_diversity(one_hot(labels, 10, sure=1 - 1e-9)).item()
    assert found == pytest.approx(1 / (math.exp(_expected_entropy(200, 10)) - 1), rel=1e-3)


def test_a_label_prior_is_recovered_from_calibrated_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([0.7, 0.2, 0.1, 0.0])
    prior = LabelPrior()
    for _ in range(60):
        labels = torch.multinomial(true, 50, replacement=True, generator=generator)
        logits = torch.randn(50, 4, generator=generator)
        logits[torch.arange(50), labels] += 1.0  # calibrated for a flat prior: a shift of one standard deviation
        found = prior(logits.log_softmax(-1), update=True).exp().mean(0)
    assert prior.concentration(4).item() < 2
    assert torch.allclose(found, true, atol=0.15)
    assert (prior.counts / prior.counts.sum() - true).abs().max() < 0.15


def test_a_flat_label_prior_stays_flat() -> None:
    generator, prior = torch.Generator().manual_seed(0), LabelPrior()
    for _ in range(100):
        log_probs = one_hot(torch.randint(10, (50,), generator=generator), 10, sure=0.8)
        answered = prior(log_probs, update=True)
    assert prior.concentration(10).item() > 20
    assert (answered.exp() - log_probs.exp()).abs().max() < 0.1


def test_a_clumped_stream_is_recognised_within_a_few_batches() -> None:
    prior = LabelPrior()
    unsure = one_hot(torch.full((20,), 1), 10, sure=0.5)
    for _ in range(15):
        answered = prior(unsure, update=True)
    assert answered[:, 1].exp().min() > 0.8


def test_a_prediction_alone_leaves_the_label_prior_as_it_is() -> None:
    prior = LabelPrior()
    prior(one_hot(torch.full((20,), 1), 10), update=True)
    before = {key: torch.as_tensor(value).clone() for key, value in prior.state_dict().items()}
    prior(one_hot(torch.full((20,), 2), 10))
    assert all(torch.equal(torch.as_tensor(value), before[key]) for key, value in prior.state_dict().items())


def test_pooled_statistics_are_those_of_the_images_together() -> None:
    source, batch = torch.randn(30, 1), 3 + 2 * torch.randn(10, 1)
    norm = nn.BatchNorm1d(1, affine=False, eps=0.0).eval()
    norm.running_mean.copy_(source.mean(0))
    norm.running_var.copy_(source.var(0, correction=0))
    pooled = torch.cat([source, batch])
    with MixedStatistics(0.25, between=True):
        mixed = norm(batch)
    share = 0.25 * (batch.var(0) - batch.var(0, correction=0))  # the mixture has the batch's unbiased variance
    expected = (batch - pooled.mean(0)) / (pooled.var(0, correction=0) + share).sqrt()
    assert torch.allclose(mixed, expected, atol=1e-5)


@pytest.mark.parametrize("method", ["bn", "tent", "vcotta"])
def test_a_single_image_is_normalised_by_the_source_statistics(method) -> None:
    model = network()
    start = to_variational(model) if method == "vcotta" else model
    options = {"views": 0} if method == "vcotta" else {}
    adapter = build_adapter(method, start, statistics="inferred", guard=False, **options)
    image = torch.rand(1, 3, 8, 8)
    assert torch.allclose(adapter(image), model(image).log_softmax(-1), atol=1e-4)
    assert adapter.last["share"] == 0


def test_inferred_statistics_lie_between_the_sources_and_the_batchs() -> None:
    model, images = network(), torch.rand(40, 3, 8, 8)
    adapter = build_adapter("bn", model, statistics="inferred")
    adapter(images)
    assert 0 < adapter.last["share"] < 40 / 48
    assert adapter.last["share"] == pytest.approx(adapter.last["class_diversity"] * 40 / 48)


def test_vcotta_takes_smaller_steps_on_batches_of_few_classes() -> None:
    adapter = build_adapter("vcotta", to_variational(network()), statistics="inferred", views=0, guard=False)
    adapter(torch.rand(64, 3, 8, 8))
    group = adapter.optimizer.param_groups[0]
    assert group["lr"] == pytest.approx(group["initial_lr"] * adapter.last["class_diversity"])
    assert adapter.last["class_diversity"] < 1


@pytest.mark.parametrize("method", ["bn", "vcotta"])
def test_a_resumed_stream_with_both_inferences_equals_an_uninterrupted_one(method) -> None:
    start = to_variational(network()) if method == "vcotta" else network()
    options = {"statistics": "inferred", "label_prior": True} | ({"views": 2} if method == "vcotta" else {})
    whole, batches = build_adapter(method, start, **options), [torch.rand(12, 3, 8, 8) for _ in range(6)]
    for images in batches[:3]:
        whole(images)
    resumed = build_adapter(method, start, **options)
    resumed.load_state_dict(whole.state_dict())
    for images in batches[3:]:
        assert torch.equal(whole.predict(images).probabilities, resumed.predict(images).probabilities)
        assert torch.equal(whole(images), resumed(images))


@pytest.mark.parametrize("method", ["adacontrast", "cotta", "eata", "roid", "sar", "tent", "vcotta"])
def test_predictions_use_the_share_that_was_inferred(method) -> None:
    images, kind = torch.rand(24, 3, 8, 8), find_method(method)
    model = to_variational(network()) if kind.needs_variational else network()
    source = [(torch.rand(16, 3, 8, 8), torch.arange(16) % 4)] if kind.needs_source else None
    adapter = build_adapter(method, model, source=source, statistics="inferred", guard=False, lr=0.0)
    assert (adapter(images) - network()(images).log_softmax(-1)).abs().max() > 1e-3
    assert adapter.last["share"] > 0


def test_a_label_prior_alone_never_alarms_the_guard() -> None:
    guard = Guard(collapse=None, unsure=None, window=40)
    adapter = build_adapter("tent", network(), lr=0.0, label_prior=True, statistics="inferred", guard=guard)
    flat = 0.9 * torch.rand(1, 3, 8, 8).expand(20, -1, -1, -1)
    for _ in range(30):
        adapter(flat + 0.05 * torch.rand(20, 3, 8, 8))
        assert "guard" not in adapter.last


def colours(count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Images whose brightest channel is their class, and a network that finds it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    images = 0.2 + 0.4 * torch.nn.functional.one_hot(labels, 4).float()[..., None, None].expand(-1, -1, 6, 6)
    images = images + 0.2 * torch.rand(images.shape, generator=generator)
    norm, last = nn.BatchNorm2d(4), nn.Linear(4, 4)
    norm.running_mean, norm.running_var = images.mean((0, 2, 3)), images.var((0, 2, 3))
    last.weight.data, last.bias.data = 5 * torch.eye(4), torch.zeros(4)
    return nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval(), images, labels


def test_a_sorted_stream_gives_one_warning_and_a_shuffled_one_none() -> None:
    net, images, labels = colours(320)
    for order, expected in ((labels.argsort(stable=True), 1), (torch.arange(320), 0)):
        adapter = build_adapter("bn", net)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers = torch.cat([adapter(part).argmax(1) for part in images[order].split(16)])
        assert len([one for one in caught if "statistics='inferred'" in str(one.message)]) == expected
        assert ((answers != labels[order]).float().mean() > 0.5) == bool(expected)


def test_inferred_statistics_answer_a_sorted_stream() -> None:
    net, images, labels = colours(320)
    order = labels.argsort(stable=True)
    adapter = build_adapter("bn", net, statistics="inferred", label_prior=True)
    answers = torch.cat([adapter(part).argmax(1) for part in images[order].split(16)])
    assert (answers == labels[order]).all()


def test_single_images_give_no_warning_about_classes() -> None:
    adapter = build_adapter("bn", network())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            adapter(torch.rand(1, 3, 8, 8))


def test_looking_for_clumps_leaves_no_trace_in_what_is_recorded() -> None:
    adapter = build_adapter("bn", network())
    adapter(torch.rand(16, 3, 8, 8))
    assert (adapter.last["forwards"], adapter.last.keys()) == (1, {"forwards", "backwards", "skipped"})


def test_manifests_of_usual_settings_are_those_of_before_these_settings() -> None:
    assert recorded_settings(configure("tent")) == {"lr": 1e-3, "optimizer": "adam"}
    assert recorded_settings(configure("tent", label_prior=True))["label_prior"] is True
    assert recorded_settings(configure("bn"))["statistics"] == "batch"  # BN's own field, which it always had
