from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from vcotta.methods import BN, BNConfig, Source


def test_bn_is_memoryless(tiny, images) -> None:
    adapter = BN(tiny())
    first = adapter(images())
    adapter(images(seed=1))
    assert torch.equal(adapter(images()), first)


def test_bn_uses_mean_and_biased_variance_of_the_batch(tiny, images) -> None:
    model, x = tiny(), images()
    h = model.conv1(x)
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    h = model.conv2(torch.relu(h))
    h = (h - h.mean((0, 2, 3), keepdim=True)) / (h.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    expected = model.fc(torch.relu(h).mean((2, 3))).log_softmax(-1)
    assert torch.allclose(BN(model)(x), expected, atol=1e-5)


def test_permuting_a_batch_permutes_the_predictions(tiny, images) -> None:
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(BN(tiny())(images()[order]), BN(tiny())(images())[order], atol=1e-5)


def test_without_batch_norm_bn_is_source_and_says_so_once(tiny, images) -> None:
    with pytest.warns(UserWarning, match="TinyNet has no BatchNorm layer: bn has nothing to do") as warned:
        adapter = BN(tiny("group"))
    assert len(warned) == 1
    with warnings.catch_warnings(action="error"):
        assert torch.equal(adapter(images()), Source(tiny("group"))(images()))
        adapter.reset()


def test_with_batch_norm_bn_has_no_warning(tiny, recwarn) -> None:
    BN(tiny())
    assert not list(recwarn)


def prior(model: nn.Module, **options) -> BN:
    return BN(model, BNConfig(statistics="prior", **options))


def ema(model: nn.Module, **options) -> BN:
    return BN(model, BNConfig(statistics="ema", **options))


def normalised_by(statistics, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Log-probabilities when ``statistics(h, norm)`` gives mean and variance of each layer's input."""
    h = x
    for conv, norm in ((model.conv1, model.norm1), (model.conv2, model.norm2)):
        h = conv(h)
        mean, variance = (values.view(1, -1, 1, 1) for values in statistics(h, norm))
        h = torch.relu((h - mean) / (variance + 1e-5).sqrt())
    return model.fc(h.mean((2, 3))).log_softmax(-1)


def test_the_first_layer_of_bn_does_not_see_an_affine_change_of_its_input() -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    x = 0.2 + 0.6 * torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    changed = x * torch.tensor([0.5, 0.8, 1.2]).view(1, 3, 1, 1) + torch.tensor([0.1, 0.1, 0.0]).view(1, 3, 1, 1)
    assert torch.allclose(BN(model)(x), BN(model)(changed), atol=2e-3)


@pytest.mark.parametrize("n", [1, 6])
def test_a_prior_mixes_source_and_batch(n, tiny, images) -> None:
    def mixed(h, norm):
        mean, variance = h.mean((0, 2, 3)), h.var((0, 2, 3), unbiased=True)
        return 0.7 * norm.running_mean + 0.3 * mean, 0.7 * norm.running_var + 0.3 * variance

    model, x = tiny(), images(n)
    assert torch.allclose(prior(model, alpha=0.3)(x), normalised_by(mixed, model, x), atol=1e-5)


def test_a_prior_worth_n_images_has_the_share_of_so_many(tiny, images) -> None:
    assert torch.equal(prior(tiny(), prior_images=18)(images(6)), prior(tiny(), alpha=0.25)(images(6)))
    assert torch.equal(prior(tiny(), prior_images=6)(images(2)), prior(tiny(), alpha=0.25)(images(2)))


def test_the_ends_of_the_prior_are_source_and_batch(tiny, images) -> None:
    assert torch.equal(prior(tiny(), alpha=0.0)(images()), Source(tiny())(images()))
    x = images(40)
    assert torch.equal(prior(tiny(), alpha=1.0)(x), BN(tiny())(x))


def test_the_prior_is_memoryless_and_changes_nothing(tiny, images) -> None:
    adapter = prior(tiny(), prior_images=4)
    first = adapter(images())
    adapter(images(3, seed=1))
    assert torch.equal(adapter(images()), first)
    for ours, source in zip(adapter.start.state_dict().values(), tiny().state_dict().values(), strict=True):
        assert torch.equal(ours, source)


def test_a_single_value_has_no_variance_and_takes_the_sources(images) -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3), nn.Linear(3, 4)).eval()
    assert torch.equal(prior(model, alpha=0.5)(images(1)), Source(model)(images(1)))
    assert prior(model, alpha=0.5)(images(2)).isfinite().all()


def test_running_statistics_move_by_their_momentum_and_then_predict(tiny, images) -> None:
    adapter, reference = ema(tiny(), momentum=0.2), tiny()
    for norm in (reference.norm1, reference.norm2):
        norm.momentum = 0.2
    for seed in range(3):
        reference.train()(images(seed=seed))
        expected = reference.eval()(images(seed=seed)).log_softmax(-1)
        assert torch.allclose(adapter(images(seed=seed)), expected, atol=1e-5)
        assert adapter.last["forwards"] == 2
    for ours, theirs in zip(adapter.networks["model"].buffers(), reference.buffers(), strict=True):
        assert torch.allclose(ours.float(), theirs.float(), atol=1e-5)


def test_running_statistics_without_momentum_are_the_sources(tiny, images) -> None:
    adapter = ema(tiny(), momentum=0.0)
    for seed in range(2):
        assert torch.allclose(adapter(images(seed=seed)), Source(tiny())(images(seed=seed)), atol=1e-6)


def test_a_single_image_is_predicted_with_the_running_statistics_and_moves_nothing(tiny, images) -> None:
    adapter = ema(tiny())
    adapter(images())
    before = [buffer.clone() for buffer in adapter.networks["model"].buffers()]
    adapter(images(1))
    assert adapter.last["forwards"] == 1
    assert all(map(torch.equal, before, adapter.networks["model"].buffers()))


def test_an_infinite_buffer_of_another_layer_does_not_keep_statistics_from_moving(images) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor(-torch.inf))

        def forward(self, x):
            return torch.maximum(x, self.mask)

    adapter = ema(nn.Sequential(Masked(), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval())
    before = adapter.networks["model"][1].running_mean.clone()
    adapter(images())
    assert adapter.last["skipped"] is False
    assert not torch.equal(adapter.networks["model"][1].running_mean, before)


def test_statistics_that_are_not_finite_are_not_stored(images) -> None:
    class Overflow(nn.Module):
        def forward(self, x):
            return torch.where(x > 0.99, torch.inf, x)

    model = nn.Sequential(Overflow(), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    adapter, x = ema(model), 0.9 * images()
    adapter(x)
    before = [buffer.clone() for buffer in adapter.networks["model"].buffers()]
    bad = x.clone()
    bad[0, 0, 0, 0] = 1.0
    adapter(bad)
    assert adapter.last["skipped"] is True
    assert all(map(torch.equal, before, adapter.networks["model"].buffers()))
    assert adapter(x).isfinite().all()


@pytest.mark.parametrize("make", [prior, ema])
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_every_form_is_reset_and_resumed_and_trains_nothing(make, norm, tiny, images) -> None:
    batches = [images(n, seed, size=(8, 11)) for seed, n in enumerate((6, 1, 3, 6))]
    whole, first, second = make(tiny(norm)), make(tiny(norm)), make(tiny(norm, seed=9))
    expected = [whole(batch) for batch in batches]
    assert all(torch.allclose(output.exp().sum(-1), torch.ones(len(output)), atol=1e-5) for output in expected)
    for batch in batches[:2]:
        first(batch)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(second(batch), out) for batch, out in zip(batches[2:], expected[2:], strict=True))
    whole.reset()
    assert all(torch.equal(whole(batch), out) for batch, out in zip(batches, expected, strict=True))
    network = whole.networks["model"] if make is ema else whole.start
    assert all(map(torch.equal, network.parameters(), tiny(norm).parameters()))
    assert whole.optimizer is None


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"statistics": "source"}, {"alpha": 1.5}, {"prior_images": -1}, {"momentum": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            BNConfig(**wrong)
