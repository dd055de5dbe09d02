"""The search for a method's options, on the four extra corruptions and nothing else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vcotta.corruptions import EXTRA
from vcotta.evaluate import run_stream
from vcotta.experiments.digits import digits_adapter, digits_stream, train_digits, warm_up_digits
from vcotta.methods import METHODS
from vcotta.report.progress import Report

__all__ = ["SPACES", "tune"]

SPACES: dict[str, dict[str, list[Any]]] = {
    "tent": {"lr": [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]},
    "cotta": {"lr": [1e-3, 3e-3, 1e-2, 3e-2], "beta": [0.98, 0.99, 0.999], "restore": [0.001, 0.01]},
    "vcotta": {
        "alpha": ["entropy", 0.5],
        "loss": ["ce", "sce"],
        "inference": ["x0", "anchored"],
        "lr": [1e-3, 3e-3, 1e-2],
        "beta": [0.98, 0.996],
    },
}
"""What `tune` tries where the caller names nothing: for each option its values."""


def tune(
    method: str,
    space: Mapping[str, Sequence[Any]],
    *,
    seeds: Sequence[int] = (0,),
    severities: Sequence[int] = (5,),
    trials: int | None = None,
    limit: int | None = None,
    table: int | None = None,
    task: Callable[[str, str], Report],
) -> list[dict[str, Any]]:
    """Score combinations of options on the four extra corruptions and return them, best first.

    Args:
        method: One of `list_methods`.
        space: For each option the values to try; all combinations are.
        seeds: Networks and streams to average over.
        severities: Severities of the extra corruptions.
        trials: Try only this many combinations, drawn at random with a fixed seed.
        limit: Use only this many images of each corruption.
        table: Severity constants, as in `corrupt`.
        task: Starts a line of the progress display.

    Returns:
        One dictionary a combination: ``options``, and ``error`` (per cent) and ``nll``, means over seeds; sorted by
        error, then NLL.
    """
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    if trials is not None and trials < len(combinations):
        combinations = random.Random(0).sample(combinations, trials)
    models = []
    for seed in seeds:
        model = train_digits(seed, task(f"Training {seed}", "loss {:.3f}"))
        models.append(warm_up_digits(model, seed) if METHODS[method].needs_variational else model)
    report, found = task(f"Tuning {method}", "best {:.1%}"), []
    for done, options in enumerate(combinations, 1):
        scores = []
        for seed, model in zip(seeds, models, strict=True):
            stream = digits_stream(seed, EXTRA, tuple(severities), limit=limit, table=table)
            mean = run_stream(digits_adapter(method, model, seed, **options), stream).summary()["mean"]
            scores.append([100 * mean["error"], mean["nll"]])
        error, nll = torch.tensor(scores, dtype=torch.float64).mean(0).tolist()
        found.append({"options": options, "error": error, "nll": nll})
        report(done, len(combinations), min(row["error"] for row in found) / 100)
    return sorted(found, key=lambda row: (row["error"], row["nll"]))
