"""A cell: one method with one setting on one stream, the unit that experiments are made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from vcotta.experiments.benchmark import find_benchmark
from vcotta.methods import configure

__all__ = ["Cell", "Start", "printed_warm_up"]

Start = Literal["source", "warmed", "unwarmed", "scratch"]
"""The network a cell starts from: the ``source`` network; that network ``warmed`` up, or made variational without a
warm-up (``unwarmed``); or a variational network trained from ``scratch`` by variational inference."""


@dataclass(frozen=True)
class Cell:
    """All that determines one run.

    Attributes:
        label: The row of the table it belongs to; cells of one label differ in seed or order and are averaged.
        dataset: Name of the benchmark.
        method: The adapter.
        options: Its options beside the data set's settings.
        start: The network it starts from.
        warm_up: Settings of the warm-up in place of the benchmark's.
        varies_warm_up: Whether they are what the experiment varies, so that no warmed network that is given will do.
        source_share: Share of the source images that the warm-up sees.
        protocol: Name of the test protocol, and its ``protocol_options``.
        batch_size: Images in a batch; None for the benchmark's own.
        limit: Images of each domain; None for all.
        seed: Seed of the adaptation, and of the networks where they are made here.

    Example:
        >>> plain = Cell("vcotta", "digits", "vcotta", start="warmed", seed=1)
        >>> same = Cell("8 views", "digits", "vcotta", {"views": 8}, start="warmed", seed=1)
        >>> plain.key == same.key, plain.key == Cell("vcotta", "digits", "vcotta", start="warmed", seed=2).key
        (True, False)
    """

    label: str
    dataset: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Start = "source"
    warm_up: Mapping[str, Any] = field(default_factory=dict)
    varies_warm_up: bool = False
    source_share: float = 1.0
    protocol: str = "continual"
    protocol_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    limit: int | None = None
    seed: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """What its run is known by: everything but the label and the options that name what is usual anyway."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("label", "varies_warm_up")}
        preset = {name: value for name, value in self.options.items() if name == "preset"}
        usual = asdict(configure(self.method, dataset=find_benchmark(self.dataset).settings, **preset))
        facts["options"] = {
            name: value for name, value in self.options.items() if name in preset or usual.get(name) != value
        }
        return facts

    @property
    def key(self) -> str:
        """A name for its folder, the same for rows of several experiments that are the same run."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.method}-{self.seed}-{digest}"


def printed_warm_up(dataset: str) -> dict[str, Any]:
    """What the paper's warm-up has in place of the data set's own: KL / N, and on CIFAR-100 five epochs of views.

    Example:
        >>> printed_warm_up("cifar10")
        {'kl_weight': None}
    """
    return {"kl_weight": None} | ({"epochs": 5, "augmix": False} if dataset == "cifar100" else {})
