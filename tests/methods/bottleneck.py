"""A network with a layer of every kind that SURGEON prunes."""

from __future__ import annotations

import torch
from torch import nn

from vcotta.nn.batch_norm import freeze_statistics

__all__ = ["network"]


class Bottleneck(nn.Module):
    """Layers of all kinds that can be pruned, with activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding="same", padding_mode="reflect")
        self.norm1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, groups=2)
        self.norm2 = nn.GroupNorm(3, 6)
        self.hidden = nn.Linear(6, 8)
        self.norm3 = nn.LayerNorm(8)
        self.norm4 = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        x = nn.functional.relu(self.norm1(self.conv1(x)), inplace=True)
        x = nn.functional.relu(self.norm2(self.conv2(x)), inplace=True)
        return self.fc(self.norm4(self.norm3(self.hidden(x.mean((2, 3))))))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Bottleneck()
        net.train()(torch.rand(16, 3, 9, 9))
    freeze_statistics(net)
    return net
