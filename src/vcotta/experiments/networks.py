"""The networks that cells start from, made once and kept in the cache folder by what they are made of."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from torch import nn

from vcotta._version import __version__
from vcotta.bayes import is_warmed_file, load_warmed, to_variational
from vcotta.experiments.benchmark import Benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.setup import source_network, train_network, warm_network
from vcotta.experiments.warmed import kept_warmed
from vcotta.files import cache_dir
from vcotta.locks import locked
from vcotta.models import save_weights
from vcotta.runtime import Runtime

__all__ = ["network_for"]


def network_for(
    cell: Cell, benchmark: Benchmark, weights: Path | None = None, runtime: Runtime | None = None
) -> nn.Module:
    """Return the network a cell starts from.

    It is that of `start_network` with what experiments vary, and a network trained here is kept, too, for the other
    cells. Several processes may ask at once: one makes it, the others wait for it and read it.

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
    benchmark = replace(benchmark, warm_up=config, source_share=cell.source_share)
    warm = partial(warm_network, benchmark, model, seed=cell.seed, runtime=runtime)
    return kept_warmed(benchmark, None, model, lambda path: warm(path=path), seed=cell.seed, runtime=runtime)[0]


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
