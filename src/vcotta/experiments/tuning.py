"""The search for a method's options, on the four extra corruptions and nothing else."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vcotta._version import __version__
from vcotta.corruptions import EXTRA
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import Benchmark
from vcotta.experiments.setup import Task, adapter_for, start_network, stream_for
from vcotta.files import sha256, write_json
from vcotta.methods import METHODS, Adapter, configure
from vcotta.runtime import Runtime

__all__ = ["SPACES", "searched", "tune", "write_trials"]

_STEPS = [3e-4, 1e-3, 3e-3, 1e-2]  # around the published ones of CIFAR
_DECAYS = [0.98, 0.99, 0.999]  # of a teacher

SPACES: dict[str, dict[str, list[Any]]] = {
    "bn": {"statistics": ["prior"], "alpha": [0.1, 0.3, 0.5, 0.7, 0.9, 1.0]},
    "tent": {"lr": [*_STEPS, 3e-2]},
    "adacontrast": {"lr": [2e-4, 1e-3, 5e-3], "contrast": [0.0, 1.0], "beta": _DECAYS},
    "cotta": {"lr": [1e-3, 3e-3, 1e-2, 3e-2], "beta": _DECAYS, "restore": [0.001, 0.01]},
    "eata": {"lr": _STEPS, "similarity_margin": [0.05, 0.1, 0.4], "fisher_weight": [0.0, 1.0, 2000.0]},
    "rotta": {"lr": _STEPS, "nu": [0.001, 0.01], "alpha": [0.01, 0.05, 0.2]},
    "petal": {"lr": _STEPS, "beta": _DECAYS, "delta": [0.003, 0.03]},
    "rmt": {"lr": _STEPS, "beta": _DECAYS, "contrast": [0.0, 1.0]},
    "santa": {"lr": _STEPS, "anchor": [1.0, 2.0], "contrast": [0.0, 1.0]},
    "palm": {"lr": [5e-5, 1.5e-4, 5e-4, 1.5e-3], "decay": [0.1, 0.5, 0.9], "threshold": [0.3, 1.0, 3.0]},
    "surgeon": {"lr": _STEPS, "consistency": [0.0, 0.01, 0.1]},
    "obao": {"lr": _STEPS, "beta": _DECAYS, "margin": [0.1, 0.2, 0.4]},
    "tca": {"lr": _STEPS, "beta": _DECAYS, "student_share": [0.3, 0.5]},
    "roid": {"lr": _STEPS, "source_momentum": [0.95, 0.99, 0.999]},
    "sar": {"lr": _STEPS, "reset_below": [0.0, 0.05, 0.2]},
    "rdumb": {"lr": _STEPS, "similarity_margin": [0.05, 0.1, 0.4]},
    "cmf": {"lr": _STEPS, "source_momentum": [0.95, 0.99, 0.999], "alpha": [0.99, 0.999]},
    "deyo": {"lr": _STEPS, "entropy_margin": [0.4, 0.5], "drop": [0.1, 0.2, 0.3]},
    "vcotta": {"alpha": [0.2, 0.5, "entropy"], "lr": [0.03, 0.1, 0.2], "beta": [0.95, 0.98, 0.99]},
}
"""What `tune` tries where the caller names nothing: for each option its values."""


def tune(
    benchmark: Benchmark,
    method: str,
    space: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    severities: Sequence[int] = (5,),
    trials: int | None = None,
    limit: int | None = None,
    table: int | None = None,
    network: str | None = None,
    weights: Path | None = None,
    runtime: Runtime | None = None,
    task: Task,
    checkpoint: Path | None = None,
) -> list[dict[str, Any]]:
    """Score combinations of options on the four extra corruptions and return them, best first.

    Args:
        benchmark: Data set and network.
        method: One of `list_methods`.
        space: For each option the values to try; all combinations are.
        seeds: Networks and streams to average over.
        severities: Severities of the extra corruptions.
        trials: Try only this many combinations, drawn at random with a fixed seed.
        limit: Use only this many images of each corruption.
        table: Severity constants, as in `corrupt`.
        network: Name of the network; None for the benchmark's own.
        weights: Its weights, or a warmed network.
        runtime: Device and precision.
        task: Starts a line of the progress display.
        checkpoint: File that is written after every combination. Those that it has already are not tried again, so
            that a search goes on after an interruption, or with more values.

    Raises:
        ValueError: If an option is wrong, or the checkpoint is of another search.

    Returns:
        One dictionary a combination: ``options``, and ``error`` (per cent) and ``nll``, means over seeds; sorted by
        error, then NLL.
    """
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    if trials is not None and trials < len(combinations):
        combinations = random.Random(0).sample(combinations, trials)
    for options in combinations:  # a mistake is told before any training
        configure(method, **{"dataset": benchmark.settings, **options})
    about = searched(benchmark, method, seeds, severities, limit, table, network, weights, runtime)
    found = _kept(checkpoint, about)
    missing = [options for options in combinations if not any(row["options"] == options for row in found)]
    if not missing:
        return _ranked(found, combinations)
    device, severity = runtime.device if runtime else None, tuple(severities)
    streams = [
        stream_for(benchmark, seed=seed, corruptions=EXTRA, severity=severity, limit=limit, table=table, device=device)
        for seed in seeds
    ]
    models = [
        start_network(benchmark, method, network, weights, seed=seed, runtime=runtime, task=task) for seed in seeds
    ]
    report = task(f"Tuning {method}", "best {:.1%}")
    for done, options in enumerate(missing, len(combinations) - len(missing) + 1):
        scores = []
        for seed, model, stream in zip(seeds, models, streams, strict=True):
            adapter = adapter_for(benchmark, method, model, seed=seed, runtime=runtime, guard=False, **options)
            mean = run_stream(adapter, stream).summary()["mean"]
            scores.append([100 * mean["error"], mean["nll"]])
        error, nll = torch.tensor(scores, dtype=torch.float64).mean(0).tolist()
        found.append({"options": options, "error": error, "nll": nll})
        if checkpoint is not None:
            write_trials(checkpoint, about, found)
        report(done, len(combinations), _ranked(found, combinations)[0]["error"] / 100)
    return _ranked(found, combinations)


def _ranked(found: Sequence[dict[str, Any]], combinations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trials that were asked for, best first."""
    asked = [row for row in found if row["options"] in combinations]
    return sorted(asked, key=lambda row: (row["error"], row["nll"]))


def searched(
    benchmark: Benchmark,
    method: str,
    seeds: Sequence[int],
    severities: Sequence[int],
    limit: int | None,
    table: int | None,
    network: str | None,
    weights: Path | None,
    runtime: Runtime | None,
) -> dict[str, Any]:
    """What the scores of `tune` hang on beside the options, as its files tell it."""
    runtime = runtime or Runtime()
    return {
        "method": method,
        "method_file_sha256": _own_code(METHODS[method]),
        "dataset": benchmark.name,
        "data_sha256": benchmark.load().sha256(),
        "network": network or benchmark.network,
        "weights_file_sha256": None if weights is None else sha256(weights),
        "corruptions": list(EXTRA),
        "severities": list(severities),
        "table": table,
        "limit": limit,
        "seeds": list(seeds),
        "device": runtime.device,
        "precision": runtime.precision,
        "versions": {"vcotta": __version__, "torch": str(torch.__version__)},
    }


def _own_code(method: type[Adapter]) -> str | None:
    """The hash of the file of a method of the user's own, None for those that come with the version."""
    if method.__module__.partition(".")[0] == "vcotta":
        return None
    file = inspect.getsourcefile(method)
    return None if file is None else sha256(file)


def write_trials(path: Path, about: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """Write what was searched and found; JSON has no infinity, so an infinite NLL is null."""
    rows = [{**row, "nll": row["nll"] if math.isfinite(row["nll"]) else None} for row in trials]
    write_json(path, {**about, "trials": rows})


def _kept(path: Path | None, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials of a search that was interrupted, none if there was no such."""
    if path is None or not path.exists():
        return []
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        trials = [
            {"options": row["options"], "error": row["error"], "nll": math.inf if row["nll"] is None else row["nll"]}
            for row in kept.pop("trials")
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected the trials of a search in {path}, but it cannot be read. Move it away.") from error
    for name, value in about.items():
        if kept.get(name) != value:
            raise ValueError(
                f"The trials in {path} are of another search: {name} is {kept.get(name)} there and {value} here. "
                "Move it away."
            )
    return trials
