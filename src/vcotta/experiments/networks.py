"""The networks that cells start from, made once and kept in the cache folder by what they are made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from vcotta._version import __version__
from vcotta.bayes import WarmUpConfig, is_warmed_file, load_warmed, to_variational
from vcotta.experiments.benchmark import Benchmark
from vcotta.experiments.cells import Cell, printed_warm_up
from vcotta.experiments.setup import source_network, train_network, warm_network
from vcotta.experiments.warmed import kept_warmed
from vcotta.files import cache_dir, sha256
from vcotta.locks import locked
from vcotta.models import save_weights
from vcotta.runtime import Runtime

__all__ = ["Weights", "network_for", "recipe"]

SCRATCH_KL = 0.01
"""Weight of the divergence for a network from scratch, whose prior is a random start that must not hold it."""
SCRATCH_LR = 1e-3
"""Smallest step size for a network from scratch: a warm-up's is too small to get anywhere."""


@dataclass(frozen=True)
class Weights:
    """Files of networks that were made elsewhere, so that none is made here.

    Attributes:
        source: The source network; None to train one on the spot, where the benchmark is that small.
        warmed: That network warmed up, for cells that start so with the preset's own warm-up; None to warm up here.
    """

    source: Path | None = None
    warmed: Path | None = None

    def __post_init__(self) -> None:
        for path in (self.source, self.warmed):
            if path is not None and not path.is_file():
                raise FileNotFoundError(f"Expected the file of a network, but {path} is not there.")
        if self.source is not None and is_warmed_file(self.source):
            raise ValueError(
                f"Expected `weights` of a source network, but {self.source} is warmed: give it as `warmed`."
            )
        if self.warmed is not None and not is_warmed_file(self.warmed):
            raise ValueError(
                f"Expected `warmed` to be a file of `vcotta warmup`, but {self.warmed} is none. Give a plain network "
                "as `weights`: it is warmed up here."
            )

    def absolute(self) -> Weights:
        """The same files by names that hold in every folder."""
        return Weights(self.source and self.source.absolute(), self.warmed and self.warmed.absolute())

    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file that was given."""
        given = {"source": self.source, "warmed": self.warmed}
        return {kind: sha256(path) for kind, path in given.items() if path is not None}


def network_for(
    cell: Cell, benchmark: Benchmark, weights: Weights | None = None, runtime: Runtime | None = None
) -> nn.Module:
    """Return the network a cell starts from.

    It is that of `start_network` with what experiments vary, and a network trained here is kept, too, for the other
    cells. Several processes may ask at once: one makes it, the others wait for it and read it.

    Args:
        cell: Says which network, how it is warmed up, and from which seed.
        benchmark: The cell's benchmark.
        weights: Networks that were made elsewhere.
        runtime: Device and precision.
    """
    runtime, weights = runtime or Runtime(), weights or Weights()
    if _takes_warmed(cell) and weights.warmed is not None:
        return load_warmed(benchmark.build(None, seed=cell.seed), weights.warmed)
    config = _warm_up(cell, benchmark)
    if cell.start == "scratch":
        model = benchmark.build(None, seed=cell.seed)
    else:
        model = _source(benchmark, weights.source, cell.seed, runtime)
    if cell.start == "source":
        return model
    if cell.start == "unwarmed":
        return to_variational(model, config.sigma_ratio)
    benchmark = replace(benchmark, warm_up=config, source_share=cell.source_share)
    warm = partial(warm_network, benchmark, model, seed=cell.seed, runtime=runtime)
    return kept_warmed(benchmark, None, model, lambda path: warm(path=path), seed=cell.seed, runtime=runtime)[0]


def recipe(cell: Cell, benchmark: Benchmark, weights: Weights | None = None) -> dict[str, Any]:
    """Return the settings by which `network_for` makes a network, None for what it is given or does not do.

    Example:
        >>> from vcotta.experiments.benchmark import find_benchmark
        >>> made = recipe(Cell("bn", "digits", "bn"), find_benchmark("digits"))
        >>> made["training"]["epochs"], made["warm_up"]
        (20, None)
    """
    weights = weights or Weights()
    given = _takes_warmed(cell) and weights.warmed is not None
    trained = weights.source is None and not given and cell.start != "scratch"
    return {
        "training": asdict(benchmark.training) if trained and benchmark.training else None,
        "warm_up": None if given or cell.start == "source" else asdict(_warm_up(cell, benchmark)),
    }


def _takes_warmed(cell: Cell) -> bool:
    """Whether a given warmed network will do: not where the warm-up is what is varied; a preset's own is not."""
    usual = not cell.varies_warm_up and cell.warm_up in ({}, printed_warm_up(cell.dataset))
    return cell.start == "warmed" and usual and cell.source_share == 1


def _warm_up(cell: Cell, benchmark: Benchmark) -> WarmUpConfig:
    config = replace(benchmark.warm_up, **cell.warm_up)
    if cell.start != "scratch":
        return config
    epochs = benchmark.training.epochs if benchmark.training else config.epochs
    return replace(config, epochs=epochs, lr=max(config.lr, SCRATCH_LR), kl_weight=SCRATCH_KL)


def _source(benchmark: Benchmark, weights: Path | None, seed: int, runtime: Runtime) -> nn.Module:
    if weights is not None or benchmark.training is None or not benchmark.trains_itself:
        return source_network(benchmark, None, weights, seed=seed, runtime=runtime)
    facts = {
        "network": benchmark.network,
        "training": asdict(replace(benchmark.training, seed=seed)),
        "data_sha256": benchmark.training_images().sha256(),
        "batch_size": benchmark.training_batch,
        "precision": runtime.precision,
        "vcotta": __version__,
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "trained" / f"{key}.safetensors"
    with locked(path.with_suffix(".lock")):
        if not path.exists():
            save_weights(train_network(benchmark, seed=seed, runtime=runtime), path)
    return benchmark.build(None, path, seed=seed)
