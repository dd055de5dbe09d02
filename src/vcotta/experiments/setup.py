"""From a benchmark's name to what a run needs: its network, its adapter, its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from vcotta.bayes import WarmUpConfig, is_warmed_file, load_warmed, warm_up
from vcotta.corruptions import STANDARD
from vcotta.data import CorruptedSource, ImageSource
from vcotta.data.corrupted import open_corrupted
from vcotta.experiments.benchmark import BENCHMARKS, Benchmark
from vcotta.experiments.prepared import prepare_adapter
from vcotta.experiments.warmed import kept_warmed
from vcotta.methods import METHODS, Adapter, build_adapter
from vcotta.report.progress import Report
from vcotta.runtime import Runtime
from vcotta.streams import ContinualStream
from vcotta.training import TrainConfig, train

__all__ = [
    "Task",
    "adapter_for",
    "source_network",
    "start_network",
    "stream_for",
    "train_network",
    "warm_network",
]

Task = Callable[[str, str], Report]
"""Starts a line of the progress display, see `vcotta.report.progress.display`."""


def train_network(
    benchmark: Benchmark,
    network: str | None = None,
    *,
    seed: int = 0,
    config: TrainConfig | None = None,
    runtime: Runtime | None = None,
    checkpoint: Path | None = None,
    task: Task | None = None,
) -> nn.Module:
    """Train a source network on the benchmark's training images.

    Args:
        benchmark: The benchmark.
        network: Name of the network; None for the benchmark's own.
        seed: Seed of initial weights, batch order and augmentation.
        config: Settings; None for the benchmark's own. Its seed is replaced by ``seed``.
        runtime: Device and precision.
        checkpoint: Where to keep the state as training goes, to go on after an interruption.
        task: Starts a line of the progress display.
    """
    config = config or benchmark.training
    if config is None:
        able = ", ".join(name for name, other in BENCHMARKS.items() if other.training is not None)
        raise ValueError(
            f"Expected one of the data sets that networks are trained on here, {able}, but got {benchmark.name}. Train "
            "yours with your own code, and give its `weights`."
        )
    runtime = runtime or Runtime()
    report = task("Training", "loss {:.3f}") if task else None
    loader = benchmark.source(seed, runtime.device)
    model = benchmark.build(network, seed=seed)
    if report and not (checkpoint and checkpoint.exists()):  # with which it begins where it was
        report(0, config.epochs, 0.0)  # the first epoch may take minutes
    return train(model, loader, replace(config, seed=seed), runtime=runtime, progress=report, checkpoint=checkpoint)


def source_network(
    benchmark: Benchmark,
    network: str | None = None,
    weights: Path | None = None,
    *,
    seed: int = 0,
    runtime: Runtime | None = None,
    task: Task | None = None,
) -> nn.Module:
    """Return the plain source network: from its weights, or trained on the spot where the benchmark is that small."""
    if weights is not None:
        return benchmark.build(network, weights, seed=seed)
    if not benchmark.trains_itself:
        train_it = f"Train one with `vcotta train --dataset {benchmark.name} --out FILE`, or give"
        raise ValueError(
            f"Expected `weights` of a trained network for {benchmark.name}, but got none. "
            f"{'Give' if benchmark.training is None else train_it} the file of a published one."
        )
    return train_network(benchmark, network, seed=seed, runtime=runtime, task=task)


def warm_network(
    benchmark: Benchmark,
    model: nn.Module,
    *,
    seed: int = 0,
    config: WarmUpConfig | None = None,
    runtime: Runtime | None = None,
    path: Path | None = None,
    task: Task | None = None,
) -> nn.Module:
    """Warm a source network up on the benchmark's training images.

    Where the result goes to a file, ``path``, the state is kept beside it, ``path`` with ``.warming``, until it is
    there: asked again after an interruption, it goes on.
    """
    runtime = runtime or Runtime()
    report = task("Warm-up", "loss {:.3f}") if task else False
    config = replace(config or benchmark.warm_up, seed=seed)
    loader = benchmark.source(seed, runtime.device)
    checkpoint = None if path is None else path.with_name(path.name + ".warming")
    warmed = warm_up(model, loader, config, path=path, runtime=runtime, progress=report, checkpoint=checkpoint)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return warmed


def start_network(
    benchmark: Benchmark,
    method: str,
    network: str | None = None,
    weights: Path | None = None,
    *,
    seed: int = 0,
    runtime: Runtime | None = None,
    source: Benchmark | None = None,
    task: Task | None = None,
) -> nn.Module:
    """Return the network a method starts from: the source network, warmed up if the method needs that.

    A file written by `vcotta warmup` is taken as it is, by every method. A network that is warmed up here, on
    ``source`` or on the benchmark's own training images, is kept in the cache folder for the next time, see
    `kept_warmed`, unless it is small enough to be trained on the spot.
    """
    if weights is not None and is_warmed_file(weights):
        return load_warmed(benchmark.build(network, seed=seed), weights)
    model = source_network(benchmark, network, weights, seed=seed, runtime=runtime, task=task)
    if not METHODS[method].needs_variational:
        return model
    data, name = source or benchmark, network or benchmark.network
    if data.trains_itself:
        return warm_network(data, model, seed=seed, runtime=runtime, task=task)
    warm = partial(warm_network, data, model, seed=seed, runtime=runtime, task=task)
    warmed, kept = kept_warmed(data, name, model, lambda path: warm(path=path), seed=seed, runtime=runtime)
    if kept and task:
        task("Warm-up", "from the cache")(1, 1, 0.0)
    return warmed


def adapter_for(
    benchmark: Benchmark,
    method: str,
    model: nn.Module,
    *,
    seed: int = 0,
    runtime: Runtime | None = None,
    source: Benchmark | None = None,
    **options: Any,
) -> Adapter:
    """Build a method with the benchmark's settings and, on top of them, ``options``, ready for its first batch.

    What it learns from source data, ``source`` or the benchmark's own training images, in batches of the benchmark's
    ``batch_size``, is kept in the cache folder for the next time, see `prepare_adapter`, unless they are few enough to
    do it on the spot.
    """
    settings = {"dataset": benchmark.settings, **options}
    data = source or benchmark
    loader = data.source(seed, batch_size=data.batch_size) if data.trains_itself else None
    adapter = build_adapter(method, model, source=loader, seed=seed, runtime=runtime or Runtime(), **settings)
    if adapter.uses_source and loader is None:
        prepare_adapter(adapter, data, seed)
    return adapter


def stream_for(
    benchmark: Benchmark,
    *,
    seed: int = 0,
    corruptions: Sequence[str] = STANDARD,
    severity: int | Sequence[int] = 5,
    batch_size: int | None = None,
    limit: int | None = None,
    table: int | None = None,
    corrupted: Path | None = None,
    files: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> ContinualStream:
    """Return the benchmark's continual stream, corrupted on the fly or read from the official files.

    Args:
        benchmark: The benchmark.
        seed: Seed of the corruptions.
        corruptions: Names in order, or ``("none",)`` for the images as they are.
        severity: 1 to 5, or several.
        batch_size: Images in a batch; None for the benchmark's own.
        limit: Use only so many images of each corruption.
        table: Severity constants, as in `corrupt`.
        corrupted: Folder of the official corrupted files, CIFAR-10-C for example.
        files: How those files are read: ``preprocess``, ``legacy``, ``subset`` and ``list_file`` of `open_corrupted`.
        device: Where to corrupt and put the batches.
    """
    if files and corrupted is None:
        raise ValueError(f"Expected {', '.join(files)} only together with `corrupted`, but got no such folder.")
    data: ImageSource | CorruptedSource
    data = benchmark.load() if corrupted is None else open_corrupted(benchmark.name, corrupted, **(files or {}))
    size = benchmark.batch_size if batch_size is None else batch_size
    return ContinualStream(data, corruptions, severity, size, limit, seed, device, table)
