"""The cache of warmed networks: each beside what it was made of, its hash and its licence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from vcotta._version import __version__
from vcotta.bayes import load_warmed
from vcotta.experiments.benchmark import Benchmark
from vcotta.files import cache_dir, sha256, write_json
from vcotta.locks import locked
from vcotta.runtime import Runtime
from vcotta.state_files import weights_sha256

__all__ = ["kept_warmed"]


def kept_warmed(
    benchmark: Benchmark,
    network: str | None,
    model: nn.Module,
    make: Callable[[Path], nn.Module],
    *,
    seed: int = 0,
    runtime: Runtime | None = None,
) -> tuple[nn.Module, bool]:
    """Return a warmed network from the cache, or make it and keep it there.

    Several processes may ask at once: one makes it, the others wait for it and read it.

    Args:
        benchmark: Its data and warm-up.
        network: Name of the network; None for the benchmark's own.
        model: The source network.
        make: Warms it up and writes it to the path it is given.
        seed: Seed of the warm-up.
        runtime: Device and precision.

    Returns:
        The network, and whether it was in the cache.
    """
    facts = _facts(benchmark, network, model, seed, runtime)
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "warmed" / f"{key}.safetensors"
    if (kept := _read(path, model)) is not None:
        return kept, True
    with locked(path.with_suffix(".lock")):  # a folder that cannot be written is told before the work
        if (kept := _read(path, model)) is not None:
            return kept, True
        made = make(path)
        licence = "a work derived from the network and the data named here, under their licences"
        write_json(path.with_suffix(".json"), {**facts, "sha256": sha256(path), "licence": licence})
        return made, False


def _facts(
    benchmark: Benchmark, network: str | None, model: nn.Module, seed: int, runtime: Runtime | None
) -> dict[str, Any]:
    """All that a warm-up depends on."""
    data = benchmark.training_images()
    return {
        "network": network or benchmark.network,
        "weights_sha256": weights_sha256(model),
        "data": data.name,
        "data_sha256": data.sha256(),
        "batch_size": benchmark.training_batch,
        "config": asdict(replace(benchmark.warm_up, seed=seed)),
        "precision": (runtime or Runtime()).precision,
        "vcotta": __version__,
    }


def _read(path: Path, model: nn.Module) -> nn.Module | None:
    """The network of the cache in the shape of ``model``; None if it is not there or not whole."""
    try:
        noted = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["sha256"]
        return load_warmed(model, path) if sha256(path) == noted else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
