"""The networks that cells start from, made once and kept in the cache folder by what they are made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from torch import nn

from vcotta._version import __version__
from vcotta.bayes import is_warmed_file, load_warmed, to_variational
from vcotta.experiments.benchmark import Benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.setup import train_network, warm_network
from vcotta.experiments.warmed import note_warmed, read_warmed, warmed_facts, warmed_path
from vcotta.files import cache_dir
from vcotta.locks import locked
from vcotta.models import save_weights
from vcotta.runtime import Runtime

__all__ = ["network_for"]


def network_for(
    cell: Cell, benchmark: Benchmark, weights: Path | None = None, runtime: Runtime | None = None
) -> nn.Module:
    """Return the network a cell starts from.

    Several processes may ask at once: one makes it, the others wait for it and read it.

    Args:
        cell: Says which network, how it is warmed up, and from which seed.
        benchmark: The cell's benchmark.
        weights: The source network, or a warmed one, which is then taken as it is by every cell that starts warmed;
            None to train one on the spot, where the benchmark is that small.
        runtime: Device and precision.
    """
    runtime = runtime or Runtime()
    if cell.start == "warmed" and weights is not None and is_warmed_file(weights):
        return load_warmed(benchmark.build(None, seed=cell.seed), weights)
    config = replace(benchmark.warm_up, **cell.warm_up)
    if cell.start == "scratch":
        epochs = benchmark.training.epochs if benchmark.training else config.epochs
        model = benchmark.build(None, seed=cell.seed)
        config = replace(config, epochs=epochs, kl_weight=None)  # the prior is a random start: it must not hold
    else:
        model = _source(benchmark, weights, cell.seed, runtime)
    if cell.start == "source":
        return model
    if cell.start == "unwarmed":
        return to_variational(model, config.sigma_ratio)
    return _warmed(replace(benchmark, warm_up=config, source_share=cell.source_share), model, cell.seed, runtime)


def _source(benchmark: Benchmark, weights: Path | None, seed: int, runtime: Runtime) -> nn.Module:
    if weights is not None:
        return benchmark.build(None, weights, seed=seed)
    if not benchmark.trains_itself or benchmark.training is None:
        raise ValueError(
            f"Expected `weights` of a trained network for {benchmark.name}, but got none. Train one with "
            f"`vcotta train --dataset {benchmark.name} --out FILE`."
        )
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


def _warmed(benchmark: Benchmark, model: nn.Module, seed: int, runtime: Runtime) -> nn.Module:
    facts = warmed_facts(benchmark, None, model, seed=seed, runtime=runtime)
    path = warmed_path(facts)
    with locked(path.with_suffix(".lock")):
        if (kept := read_warmed(path, model)) is not None:
            return kept
        made = warm_network(benchmark, model, seed=seed, runtime=runtime, path=path)
        note_warmed(path, facts)
        return made
