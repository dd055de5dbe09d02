"""The cache of warmed networks: each beside what it was made of, its hash and its licence."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import nn

from vcotta._version import __version__
from vcotta.bayes import load_warmed
from vcotta.evaluate import weights_sha256
from vcotta.experiments.benchmark import Benchmark
from vcotta.files import cache_dir, sha256, write_json
from vcotta.runtime import Runtime

__all__ = ["note_warmed", "read_warmed", "warmed_facts", "warmed_path"]


def warmed_facts(
    benchmark: Benchmark, network: str | None, model: nn.Module, *, seed: int = 0, runtime: Runtime | None = None
) -> dict[str, Any]:
    """Return all that a warm-up depends on."""
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


def warmed_path(facts: dict[str, Any]) -> Path:
    """Return where the cache keeps the network made of these facts; its name is their hash."""
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "warmed" / f"{key}.safetensors"


def note_warmed(path: Path, facts: dict[str, Any]) -> None:
    """Write down beside a warmed network what it was made of, its hash, and whose licence it is under."""
    licence = "a work derived from the network and the data named here, under their licences"
    write_json(path.with_suffix(".json"), {**facts, "sha256": sha256(path), "licence": licence})


def read_warmed(path: Path, model: nn.Module) -> nn.Module | None:
    """Return the network of the cache in the shape of ``model``; None if it is not there or not whole."""
    try:
        noted = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["sha256"]
        return load_warmed(model, path) if sha256(path) == noted else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
