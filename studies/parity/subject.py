"""What both sides are compared on: the digits network of the package, and corrupted digits of 32 by 32 pixels."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from studies.parity.draws import Tape
from vcotta.corruptions import STANDARD, corrupt
from vcotta.data import batches, load_digits
from vcotta.data.types import to_tensor
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import source_network
from vcotta.methods import Adapter

CLASSES = 10
SOURCE_BATCH = 100
SEVERITY = 5


@dataclass(frozen=True)
class Subject:
    """A comparison: what both sides get, and our adapter.

    Attributes:
        network: The trained network, not changed by anyone; in the layout of RobustBench.
        source: Batches of labelled source images.
        root: The official checkout.
        tape: Our draws.
        adapter: Our side, ready for its first batch.
        scratch: A folder for files that official code writes.
    """

    network: nn.Module
    source: list[tuple[Tensor, Tensor]]
    root: Path
    tape: Tape
    adapter: Adapter
    scratch: Path

    def copied(self) -> nn.Module:
        """Return a copy of the network to train, with the attribute that the benchmark's methods read."""
        network = copy.deepcopy(self.network).requires_grad_(True)
        network.model_preprocess = None  # type: ignore[assignment]
        return network


def trained_network() -> nn.Module:
    """Return the package's digits network, trained once and then read from the cache folder."""
    return source_network(find_benchmark("digits"))


def source_batches(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return the digits' training images in batches."""
    train, _ = load_digits()
    loader = batches(train.images, train.labels, SOURCE_BATCH)
    return [(images.to(dtype).contiguous(), labels) for images, labels in loader]


def stream(count: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    """Return batches of test images, each with the next of the fifteen corruptions and of other digits."""
    _, test = load_digits()
    found = []
    for place in range(count):
        first = place * size % (len(test) - size)
        images = corrupt(test.images[first : first + size], STANDARD[place % len(STANDARD)], SEVERITY, seed=place)
        found.append(to_tensor(images).to(dtype).contiguous())  # torch rounds channels-last images otherwise
    return found


def split_network(network: nn.Module, *names: str) -> tuple[nn.Sequential, nn.Module]:
    """Return features and classifier of a network in RobustBench's layout, as the benchmark's function does."""
    parts = [getattr(network, name) for name in ("conv1", "block1", "block2", "block3", "bn1")]
    return nn.Sequential(*parts, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()), network.fc


class FeaturesAndClasses(nn.Module):
    """A network that can return its features, in place of the benchmark's ``BaseModel`` for AdaContrast."""

    def __init__(self, model: nn.Module, *names: str) -> None:
        super().__init__()
        self.encoder, self.fc = split_network(model)
        self.num_classes, self.output_dim = self.fc.out_features, self.fc.in_features

    def forward(self, x: Tensor, return_feats: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits, after the features if they are asked for."""
        features = self.encoder(x)
        logits: Tensor = self.fc(features)
        return (features, logits) if return_feats else logits
