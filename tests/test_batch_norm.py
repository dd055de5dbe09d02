from __future__ import annotations

import torch
from torch import nn

from vcotta.batch_norm import freeze_statistics, reestimate_statistics, use_batch_statistics


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
