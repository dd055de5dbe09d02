"""The cache of what methods learned from source data, so that no later run reads it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from vcotta._version import __version__
from vcotta.experiments.benchmark import Benchmark
from vcotta.files import cache_dir
from vcotta.methods import Adapter
from vcotta.state_files import read_state, weights_sha256, write_state

__all__ = ["prepare_adapter", "prepared_path"]

_KIND = "vcotta-prepared-1"


def prepare_adapter(adapter: Adapter, benchmark: Benchmark, seed: int = 0) -> None:
    """Prepare an adapter on the benchmark's training images, or from the cache where it was done before.

    Raises:
        ValueError: If the benchmark has no training images here.
    """
    facts = _facts(adapter, benchmark, seed)
    path = prepared_path(facts)
    if (prepared := _read(path, facts)) is None:
        path.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written is told before the work
        adapter.prepare(benchmark.source(seed, adapter.runtime.device, benchmark.batch_size))
        write_state(path, _KIND, {"facts": facts, "prepared": adapter.prepared})
    else:
        adapter.adopt(prepared)


def prepared_path(facts: dict[str, Any]) -> Path:
    """Return where the cache keeps what was learned under these facts; its name is their hash."""
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return cache_dir() / "prepared" / f"{facts['method']}-{key}.safetensors"


def _facts(adapter: Adapter, benchmark: Benchmark, seed: int) -> dict[str, Any]:
    """All that a preparation depends on."""
    return {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "weights_sha256": weights_sha256(adapter.start),
        "data_sha256": benchmark.training_images().sha256(),
        "batch_size": benchmark.batch_size,
        "seeds": [seed, adapter.seed],
        "precision": adapter.runtime.precision,
        "vcotta": __version__,
    }


def _read(path: Path, facts: dict[str, Any]) -> dict[str, Tensor] | None:
    """What the cache holds, None if it is not there, not whole, or of other facts."""
    try:
        found = read_state(path, _KIND)
    except (OSError, ValueError):
        return None
    prepared: dict[str, Tensor] = found["prepared"]
    return prepared if found["facts"] == facts else None
