"""`run_spec` runs one `RunSpec`, `run_specs` many; each run can be resumed, and finished runs are not repeated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta._util.progress import Progress
from vcotta.experiments.build import Task, adapter_for_spec, few_threads, network_facts, stream_for
from vcotta.experiments.launch import GridProgress, Launcher, LocalLauncher
from vcotta.methods import distribute
from vcotta.nn.distributed import World
from vcotta.report.stats import without_rounding_noise
from vcotta.runs.run import SUMMARY, Run
from vcotta.runs.runner import already_finished, run_stream
from vcotta.runs.spec import RunSpec

__all__ = ["run_spec", "run_specs"]

CHECKPOINT_EVERY = 20
"""Batches between two checkpoints of a run of many."""
CHECKPOINT_SECONDS = 20.0
"""Least number of seconds between two checkpoints: those of a large network are more than a gigabyte."""


def run_spec(
    spec: RunSpec,
    out: Path | None = None,
    *,
    task: Task | None = None,
    progress: Progress | None = None,
    log: Callable[[Run], None] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float = 0.0,
    world: World | None = None,
    model: nn.Module | None = None,
) -> Run:
    """Make the stream, the network and the adapter of a spec, and run it.

    ``out``, ``progress``, ``log``, ``overwrite``, ``resume`` and the checkpoints are as in `run_stream`. With
    ``resume`` a finished run is returned before any network is made. ``task`` starts a line of the progress display for
    training, warm-up and, without ``progress``, the run. ``world`` has the processes that share each batch. A caller
    that has the network from `start_network` already gives it as ``model``.

    Example:
        >>> net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
        >>> spec = RunSpec("source", corruptions=("fog", "contrast"), limit=100)
        >>> run = run_spec(spec, model=net)  # without `model` the digits network is trained, or read from the cache
        >>> len(run.records), RunSpec.from_json(run.manifest["spec"]) == spec
        (4, True)
    """
    world = world or World()
    if resume and out is not None and world.size == 1 and (done := _finished(spec, out)) is not None:
        return done  # of several processes the first one decides, in `run_stream`
    with few_threads(spec):
        stream, facts = stream_for(spec), _facts(spec)  # a mistake is reported before any training
        adapter = adapter_for_spec(spec, task=task, model=model)
        distribute(adapter, world)
        if progress is None and task is not None:
            progress = _as_tables_round(task(spec.method, "error {:.1f} %"))
        return run_stream(
            adapter,
            stream,
            out,
            progress=progress,
            log=log,
            manifest=facts,
            overwrite=overwrite,
            resume=resume,
            checkpoint_every=checkpoint_every,
            checkpoint_seconds=checkpoint_seconds,
        )


def _as_tables_round(line: Progress) -> Progress:
    """Show an error in per cent with the digits that the table will have."""
    return lambda done, total, error: line(done, total, without_rounding_noise(100 * error))


def run_specs(
    specs: Sequence[RunSpec],
    out: Path,
    *,
    launcher: Launcher | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    report: Progress | None = None,
) -> list[Run]:
    """Run many specs, each in the folder of ``out`` that its key names, and return their runs in order.

    Called again after an interruption, it reads finished runs and resumes others from their last checkpoint. Equal
    specs are run once, whatever their labels.

    Args:
        specs: What to run.
        out: Folder of the runs.
        launcher: Where they run; None for two processes of this machine.
        checkpoint_every: Batches between two checkpoints of a run.
        checkpoint_seconds: Least number of seconds between two checkpoints.
        report: Called with (batches done, batches known of, runs finished).

    Raises:
        ValueError: A finished run was made with other settings, for example with other defaults of an earlier version.
    """
    out = out.absolute()  # another process may be in another folder
    by_key = {spec.key: _absolute(spec) for spec in specs}
    visible = specs[0].device == "cpu" or torch.cuda.is_available()  # otherwise machines with a GPU check this
    done = {key: _finished(spec, out / key) if visible else None for key, spec in by_key.items()}
    options = {"resume": True, "checkpoint_every": checkpoint_every, "checkpoint_seconds": checkpoint_seconds}
    jobs = {
        out / key: partial(run_spec, spec, out / key, **options)  # type: ignore[arg-type]
        for key, spec in by_key.items()
        if done[key] is None
    }
    if jobs:
        progress = GridProgress(list(jobs), report)
        progress.begin()
        (launcher or LocalLauncher())(jobs, progress, device=specs[0].device)
        progress.end()
    return [done[spec.key] or Run.load(out / spec.key) for spec in specs]


def _finished(spec: RunSpec, out: Path) -> Run | None:
    """The run in a folder if it is finished; no network is made for that."""
    return already_finished(out, spec, stream_for(spec), _facts(spec)) if (out / SUMMARY).exists() else None


def _facts(spec: RunSpec) -> dict[str, Any]:
    """Entries of the manifest that only runs of a spec have."""
    return {"spec": spec.to_json(), **network_facts(spec)}


def _absolute(spec: RunSpec) -> RunSpec:
    """The same spec with absolute paths."""
    return replace(
        spec, weights=spec.weights and spec.weights.absolute(), corrupted=spec.corrupted and spec.corrupted.absolute()
    )
