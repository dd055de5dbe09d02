"""Searches a method's options on the four extra corruptions only."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vcotta._util.errors import differences
from vcotta._util.files import read_json, write_json
from vcotta._version import __version__
from vcotta.corruptions import EXTRA
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import Task, start_network, stream_for
from vcotta.experiments.cache import own_code
from vcotta.experiments.grid import run_spec
from vcotta.methods import find_method
from vcotta.runs.spec import RunSpec, without_paths

__all__ = ["SPACES", "searched", "tune", "tune_spec", "write_trials"]

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
    "foa": {"discrepancy": [0.0, 0.1, 0.4, 1.6], "step": [0.1, 0.3, 1.0]},
    "come": {"lr": [*_STEPS, 3e-2]},
    "rem": {"lr": _STEPS, "share": [0.05, 0.1, 0.2], "ranking": [0.0, 1.0]},
    "ecotta": {"lr": [1e-3, 2e-3, 5e-3, 1e-2], "regularisation": [0.0, 0.25, 1.0]},
    "becotta": {"lr": _STEPS, "restore": [0.0, 0.01]},
    "swa": {"lr": _STEPS, "beta": _DECAYS},
    "dss": {"lr": _STEPS, "beta": _DECAYS, "negative": [0.0, 1.0]},
    "vida": {"lr": [1e-4, *_STEPS[1:]], "beta": _DECAYS, "restore": [0.01, 0.1]},
    "continual-mae": {"lr": [1e-5, 1e-4, 1e-3, 3e-3], "mask": [0.25, 0.5], "hog": [0.0, 0.5]},
    "dvp": {"lr": [1e-3, 1e-2, 5e-2, 2e-1], "beta": _DECAYS, "homeostasis": [0.0, 0.1]},
    "vcotta": {"alpha": [0.2, 0.5, "entropy"], "lr": [0.03, 0.1, 0.2], "beta": [0.95, 0.98, 0.99]},
    "vcl": {"lr": [0.01, 0.03, 0.1]},
}
"""The options of each method that `tune` tries by default, with their values."""


def tune_spec(method: str, data: str = "digits", severities: Sequence[int] = (5,), **more: Any) -> RunSpec:
    """Return the run for `tune`: a method on the four extra corruptions, with other fields of `RunSpec`."""
    return RunSpec(method, data, corruptions=EXTRA, severity=tuple(severities), **more)


def tune(
    spec: RunSpec,
    space: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    trials: int | None = None,
    task: Task,
    checkpoint: Path | None = None,
) -> list[dict[str, Any]]:
    """Score combinations of options and return them, best first.

    Args:
        spec: The run, from `tune_spec`.
        space: The values to try of each option; all combinations are tried.
        seeds: Seeds to average over.
        trials: Try only this many combinations, drawn at random with a fixed seed.
        task: Starts a line of the progress display.
        checkpoint: File that is written after every combination. Combinations in it are not tried again, so a search
            can continue after an interruption or with more values.

    Raises:
        ValueError: An option is wrong, or the checkpoint is of another search.

    Returns:
        One dictionary for each combination: ``options``, and ``error`` (per cent) and ``nll``, means over seeds; sorted
        by error, then NLL.
    """
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    if trials is not None and trials < len(combinations):
        combinations = random.Random(0).sample(combinations, trials)
    # A wrong option raises here.
    tried = [replace(spec, options={**spec.options, **options}) for options in combinations]
    about = searched(spec, seeds)
    found = _kept(checkpoint, about)
    missing = [
        (options, one)
        for options, one in zip(combinations, tried, strict=True)
        if not any(row["options"] == options for row in found)
    ]
    if not missing:
        return _ranked(found, combinations)
    stream_for(spec)  # a mistake in it is reported before any training
    models = {seed: start_network(replace(spec, seed=seed), task) for seed in seeds}
    report = task(f"Tuning {spec.method}", "best {:.1%}")
    for done, (options, one) in enumerate(missing, len(combinations) - len(missing) + 1):
        means = [run_spec(replace(one, seed=seed), model=models[seed]).summary()["mean"] for seed in seeds]
        error, nll = (statistics.fmean(mean[score] for mean in means) for score in ("error", "nll"))
        found.append({"options": options, "error": 100 * error, "nll": nll})
        if checkpoint is not None:
            write_trials(checkpoint, about, found)
        report(done, len(combinations), _ranked(found, combinations)[0]["error"] / 100)
    return _ranked(found, combinations)


def _ranked(found: Sequence[dict[str, Any]], combinations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trials of these combinations, best first."""
    wanted = [row for row in found if row["options"] in combinations]
    return sorted(wanted, key=lambda row: (row["error"], row["nll"]))


def searched(spec: RunSpec, seeds: Sequence[int]) -> dict[str, Any]:
    """Return what the scores of `tune` depend on besides the options, for its files."""
    return {
        "spec": without_paths(spec.to_json()),
        "seeds": list(seeds),
        "method_file_sha256": own_code(find_method(spec.method)),
        "data_sha256": find_benchmark(spec.data).load().sha256(),
        "weights_file_sha256": spec.weights_file_sha256,
        "versions": {"vcotta": __version__, "torch": str(torch.__version__)},
    }


def write_trials(path: Path, about: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """Write a search and its trials; an infinite NLL is null."""
    rows = [{**row, "nll": row["nll"] if math.isfinite(row["nll"]) else None} for row in trials]
    write_json(path, {**about, "trials": rows})


def _kept(path: Path | None, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The trials of an interrupted search, an empty list if there was none."""
    if path is None or not path.exists():
        return []
    try:
        kept = read_json(path)
        trials = [
            {"options": row["options"], "error": row["error"], "nll": math.inf if row["nll"] is None else row["nll"]}
            for row in kept.pop("trials")
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Expected the trials of a search in {path}, but it cannot be read. Move it away.") from error
    if odd := differences(dict(about), kept):
        raise ValueError(f"The trials in {path} are of another search: {', '.join(odd)}. Move it away.")
    return trials
