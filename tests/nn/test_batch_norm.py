from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta.nn.batch_norm import (
    MixedStatistics,
    RobustBatchNorm,
    SavedStatistics,
    correcting,
    freeze_statistics,
    join_views,
    keep_views_apart,
    make_robust,
    normalise,
    reestimate_statistics,
    use_batch_statistics,
)
from vcotta.nn.pooled_statistics import Corrected


def test_frozen_statistics_never_move_and_both_kinds_can_be_used() -> None:
    norm, x = nn.BatchNorm1d(3), torch.rand(8, 3) + 5
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    freeze_statistics(norm)
    use_batch_statistics(norm, True)
    assert norm(x).mean().abs() < 1e-5
    use_batch_statistics(norm, False)
    assert torch.allclose(norm(x), x, atol=1e-4)
    assert all(torch.equal(v, before[k]) for k, v in norm.state_dict().items())


def test_only_batch_norm_changes_mode() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    freeze_statistics(net)
    use_batch_statistics(net, True)
    assert net[0].training
    assert not net[1].training


def test_reestimated_statistics_are_the_average_over_batches() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9), nn.BatchNorm1d(3)).eval()
    batches = [torch.rand(8, 3) + k for k in range(4)]
    reestimate_statistics(net, batches)
    assert torch.allclose(net[0].running_mean, torch.stack([b.mean(0) for b in batches]).mean(0), atol=1e-5)
    assert torch.allclose(net[0].running_var, torch.stack([b.var(0) for b in batches]).mean(0), atol=1e-5)
    assert net[0].momentum == 0.1
    assert not net[0].training


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_views_in_one_batch_are_normalised_as_if_each_came_alone(affine, tracked) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, affine=affine, track_running_stats=tracked)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.BatchNorm2d(4))
    if tracked:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    views = torch.rand(5, 6, 3, 8, 8) + torch.arange(5.0).view(5, 1, 1, 1, 1)  # as different as views can be
    freeze_statistics(net)
    use_batch_statistics(net, True)
    alone = torch.stack([net(view) for view in views])
    assert keep_views_apart(net)
    use_batch_statistics(net, True, views=5)
    together = net(views.flatten(0, 1)).unflatten(0, (5, 6))
    assert torch.allclose(together, alone, atol=2e-5)
    use_batch_statistics(net, True)
    assert not torch.allclose(net(views.flatten(0, 1)).unflatten(0, (5, 6)), alone, atol=0.1)


@pytest.mark.parametrize("tracked", [True, False])
def test_the_variance_survives_a_mean_far_from_zero(tracked) -> None:
    norm = nn.BatchNorm2d(2, track_running_stats=tracked)
    if tracked:
        norm.running_mean.fill_(300.0)
    views = 300 + 0.1 * torch.randn(3, 50, 2, 4, 4)
    freeze_statistics(norm)
    use_batch_statistics(norm, True)
    alone = torch.stack([norm(view) for view in views])
    keep_views_apart(norm)
    use_batch_statistics(norm, True, views=3)
    assert torch.allclose(norm(views.flatten(0, 1)).unflatten(0, (3, 50)), alone, atol=1e-3)


def test_networks_with_other_kinds_of_batch_norm_are_left_alone() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm1d(2))
    assert not keep_views_apart(net)
    assert type(net[0]) is nn.BatchNorm2d


def test_views_kept_apart_can_be_joined_again() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2))
    keep_views_apart(net)
    assert type(net[0]) is not nn.BatchNorm2d
    join_views(net)
    assert type(net[0]) is nn.BatchNorm2d


def norm_with_source(norm: nn.Module) -> nn.Module:
    """The layer with other statistics, scales and offsets than the trivial ones."""
    generator = torch.Generator().manual_seed(1)
    for tensor in (norm.running_mean, norm.running_var, *norm.parameters()):
        tensor.data.uniform_(0.5, 2, generator=generator)
    freeze_statistics(norm)
    return norm


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("make", "shape"), [(nn.BatchNorm1d, (5, 3)), (nn.BatchNorm2d, (5, 3, 2, 4))])
def test_mixed_statistics_are_those_of_source_and_batch_by_their_shares(make, shape, affine) -> None:
    norm, x = norm_with_source(make(3, affine=affine)), torch.rand(shape, generator=torch.Generator().manual_seed(0))
    batch = x.transpose(0, 1).flatten(1)
    mean = 0.7 * norm.running_mean + 0.3 * batch.mean(1)
    variance = 0.7 * norm.running_var + 0.3 * batch.var(1)
    with MixedStatistics(0.3):
        mixed = norm(x)
    expected = nn.functional.batch_norm(x, mean, variance, norm.weight, norm.bias)
    assert torch.allclose(mixed, expected, atol=1e-6)
    assert type(norm) is make


def test_gradients_go_through_the_batchs_part_of_mixed_statistics() -> None:
    norm = norm_with_source(nn.BatchNorm2d(2).double())

    def mixed(x: torch.Tensor) -> torch.Tensor:
        with MixedStatistics(0.6):
            return norm(x)

    assert torch.autograd.gradcheck(mixed, torch.rand(3, 2, 2, 2, dtype=torch.double, requires_grad=True))


def test_statistics_are_mixed_within_the_block_only_and_where_the_sources_are_used() -> None:
    norm, x = norm_with_source(nn.BatchNorm1d(3)), torch.rand(5, 3)
    source = norm(x)
    with MixedStatistics(0.5):
        assert not torch.allclose(norm(x), source, atol=1e-2)
    assert torch.equal(norm(x), source)
    use_batch_statistics(norm, True)
    batch = norm(x)
    with MixedStatistics(0.5):
        assert torch.equal(norm(x), batch)


class NormAndActivation(nn.BatchNorm2d):
    """A layer that does more than to normalise, as some networks have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_custom_batch_norm_layer_keeps_its_other_computations() -> None:
    fused, plain = norm_with_source(NormAndActivation(3)), norm_with_source(nn.BatchNorm2d(3))
    x = torch.rand(2, 3, 4, 4)
    with MixedStatistics(0.5):
        assert torch.equal(fused(x), plain(x).relu())


def test_a_layer_without_running_statistics_has_nothing_to_mix() -> None:
    norm, x = nn.BatchNorm1d(3, track_running_stats=False), torch.rand(5, 3)
    with MixedStatistics(0.1):
        assert torch.allclose(norm(x), nn.functional.batch_norm(x, None, None, training=True), atol=1e-6)


def test_each_view_is_corrected_after_its_own_statistics() -> None:
    net = norm_with_source(nn.BatchNorm2d(3))
    views = torch.rand(4, 5, 3, 2, 2) + torch.arange(4.0).view(4, 1, 1, 1, 1)
    correction = [(torch.rand(3) + 0.5, torch.rand(3))]
    alone = []
    for view in views:
        with Corrected(correction):
            alone.append(net(view))
    assert keep_views_apart(net)
    use_batch_statistics(net, True, 4, correction)
    assert torch.allclose(net(views.flatten(0, 1)).unflatten(0, (4, 5)), torch.stack(alone), atol=1e-5)
    with correcting(net, correction):
        assert torch.equal(net(views[2]), alone[2])
    use_batch_statistics(net, True)
    assert not torch.allclose(net(views[2]), alone[2], atol=1e-2)


def test_a_correction_of_one_value_per_channel_uses_the_sources_statistics() -> None:
    net, x = norm_with_source(nn.BatchNorm2d(3)), torch.rand(1, 3, 1, 1)
    expected = net(x)
    assert keep_views_apart(net)
    with correcting(net, [(torch.rand(3) + 0.5, torch.rand(3))]):
        assert torch.equal(net(x), expected)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5)])
def test_normalise_is_batch_norm_with_the_given_statistics(shape, affine) -> None:
    x, mean, variance = torch.rand(shape), torch.rand(3), torch.rand(3) + 0.5
    weight, bias = (torch.rand(3), torch.rand(3)) if affine else (None, None)
    expected = F.batch_norm(x, mean, variance, weight, bias, eps=1e-3)
    assert torch.allclose(normalise(x, mean, variance, weight, bias, 1e-3), expected, atol=1e-6)


def test_gradients_of_normalise_reach_the_statistics() -> None:
    x = torch.rand(3, 2, 2, dtype=torch.double)
    mean, variance = (torch.rand(2, dtype=torch.double).add(0.5).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda m, v: normalise(x, m, v, None, None, 1e-5), (mean, variance))


def test_images_of_less_precision_are_normalised_in_that_of_the_statistics_and_keep_their_own() -> None:
    x, mean, variance = torch.rand(64, 3, dtype=torch.bfloat16), torch.full((3,), 0.501), torch.full((3,), 1e-4)
    found = normalise(x, mean, variance, None, None, 0.0)
    assert found.dtype == torch.bfloat16
    assert torch.allclose(found.float(), (x.float() - mean) * 100, rtol=1e-2, atol=1e-2)


def test_robust_normalisation_with_alpha_one_is_batch_norm_in_training() -> None:
    x = torch.randn(6, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    plain, net = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    nn.init.uniform_(plain.weight)
    net[0].load_state_dict(plain.state_dict())
    make_robust(net, alpha=1.0)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    assert torch.allclose(net(ours), plain(theirs), atol=1e-6)
    net(ours).square().sum().backward()
    plain(theirs).square().sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)
    assert torch.allclose(net[0].running_mean, x.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(net[0].running_var, x.var((0, 2, 3), correction=0), atol=1e-6)


def test_robust_normalisation_in_eval_mode_uses_its_statistics_and_keeps_them() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3))
    make_robust(net, alpha=0.5)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    net(x)
    mean = 0.5 * x.mean(0)
    assert torch.allclose(net[0].running_mean, mean, atol=1e-6)
    net.eval()
    expected = (x - mean) / (0.5 + 0.5 * x.var(0, correction=0) + net[0].eps).sqrt()
    assert torch.allclose(net(x), expected, atol=1e-6)
    assert torch.allclose(net[0].running_mean, mean, atol=1e-6)


def test_layers_without_running_statistics_stay_as_they_are() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.BatchNorm2d(3))
    make_robust(net, alpha=0.1)
    assert [type(layer) for layer in net] == [nn.BatchNorm2d, RobustBatchNorm]


@pytest.mark.parametrize("taken", [True, False])
def test_saved_statistics_are_restored_unless_the_step_was_taken(taken) -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm1d(2).double()))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    saved = SavedStatistics(net)
    for buffer in net.buffers():
        buffer.add_(3)
    net[0].running_var[1] = torch.nan
    after = {name: buffer.clone() for name, buffer in net.named_buffers()}
    saved.restore(unless=torch.tensor(taken))
    torch.testing.assert_close(dict(net.named_buffers()), after if taken else before, rtol=0, atol=0, equal_nan=True)


def test_a_network_without_batch_norm_has_no_statistics_to_save() -> None:
    net = nn.Linear(2, 2)
    weight = net.weight.detach().clone()
    SavedStatistics(net).restore(unless=torch.tensor(False))
    assert torch.equal(net.weight, weight)
