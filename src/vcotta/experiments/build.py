"""Makes what a `RunSpec` describes: its stream, its network and its adapter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vcotta._util.errors import counted
from vcotta._util.progress import Progress, with_estimate
from vcotta._util.tensorfile import read_state, weights_sha256, write_state
from vcotta.bayes import WarmUpConfig, is_warmed_file, load_warmed, to_variational, warm_up
from vcotta.data import CorruptedSource, DomainData, ImageSource
from vcotta.data.corrupted import open_corrupted
from vcotta.experiments.benchmarks import BENCHMARKS, Benchmark, find_benchmark, find_source
from vcotta.experiments.cache import cached, own_code
from vcotta.methods import Adapter, find_method, warm_up_settings
from vcotta.models import save_weights
from vcotta.nn.runtime import Runtime
from vcotta.runs.spec import RunSpec
from vcotta.streams.stream import ProtocolStream, make_stream
from vcotta.training.trainer import TrainConfig, train

__all__ = [
    "Task",
    "adapter_for_spec",
    "few_threads",
    "network_facts",
    "one_thread",
    "prepare_adapter",
    "source_network",
    "start_network",
    "stream_for",
    "train_network",
    "warm_network",
]

Task = Callable[[str, str], Progress]
"""Starts a line of the progress display, see `vcotta._util.progress.display`."""

SCRATCH_KL = 0.01
"""Weight of the divergence for a network from scratch; small, as its prior is a random initialisation."""
SCRATCH_LR = 4e-3
"""Step size for a network from scratch; those of a warm-up, in units of weights that have learned, do not suit it."""
_PREPARED = "vcotta-prepared-1"


def stream_for(spec: RunSpec) -> ProtocolStream:
    """Make the stream of a spec, corrupted on the fly or read from corrupted files.

    Raises:
        ValueError: The data or a number of the stream is wrong, or the source has other classes than the stream.
    """
    benchmark = find_benchmark(spec.data, spec.domains)
    data: ImageSource | CorruptedSource | DomainData
    if spec.corrupted is None:
        data = benchmark.load_stream()
    else:
        data = open_corrupted(spec.data, spec.corrupted, **spec.corrupted_options)
    if spec.source is not None:
        find_source(spec.source, benchmark).check_classes(data.class_names)
    return make_stream(
        spec.protocol,
        data,
        spec.corruptions,
        spec.severity,
        benchmark.batch_size if spec.batch_size is None else spec.batch_size,
        spec.limit,
        spec.stream_seed,
        spec.device,
        spec.table,
        **spec.protocol_options,
    )


def adapter_for_spec(spec: RunSpec, *, task: Task | None = None, model: nn.Module | None = None) -> Adapter:
    """Make the adapter of a spec, ready for its first batch.

    Networks that are trained or warmed up here, and what the adapter learns from source data, are kept in the cache
    folder. A caller that has the network from `start_network` already gives it as ``model``.
    """
    with few_threads(spec):
        model = start_network(spec, task) if model is None else model
        method, guard = find_method(spec.method), spec.resolved_guard
        adapter = method(model, spec.config, seed=spec.seed, runtime=spec.runtime, guard=guard)
        if adapter.uses_source:
            prepare_adapter(adapter, _source_of(spec), spec.seed)
    return adapter


def start_network(spec: RunSpec, task: Task | None = None) -> nn.Module:
    """Return the network that a spec starts from; one that is trained or warmed up here is kept in the cache folder.

    A file of `vcotta warmup` is used as it is, by every method.

    Raises:
        ValueError: Weights are needed but not given, or do not fit the spec.
    """
    benchmark, start, runtime = find_benchmark(spec.data, spec.domains), spec.resolved_start, spec.runtime
    if spec.weights is not None and is_warmed_file(spec.weights):
        if start in ("unwarmed", "scratch") or spec.warm_up or not spec.whole_source:
            raise ValueError(
                f"Expected `weights` of a plain network, but {spec.weights} is warmed up already. This run needs "
                "another warm-up or none."
            )
        return load_warmed(benchmark.build(spec.network, seed=spec.seed), spec.weights)
    if start == "scratch":
        model = benchmark.build(spec.network, seed=spec.seed)
    else:
        model = source_network(benchmark, spec.network, spec.weights, seed=spec.seed, runtime=runtime, task=task)
    if start == "source":
        return model
    config = _warm_up_config(spec, benchmark)
    if start == "unwarmed":
        return to_variational(model, config.sigma_ratio, unsupported=config.unsupported)
    data = replace(_source_of(spec), warm_up=config)
    return _cached_warm_up(data, spec.network or benchmark.network, model, spec.seed, runtime, task)


def network_facts(spec: RunSpec) -> dict[str, Any]:
    """Return the manifest's entries on the network: name, file, and settings of training and warm-up if done here.

    Example:
        >>> facts = network_facts(RunSpec("bn"))
        >>> facts["network"], facts["training"]["epochs"], facts["warm_up"]
        ('digits', 20, None)
    """
    benchmark, start = find_benchmark(spec.data, spec.domains), spec.resolved_start
    warmed = spec.weights is not None and is_warmed_file(spec.weights)
    training = benchmark.training_of(spec.network) if spec.weights is None and start != "scratch" else None
    return {
        "network": spec.network or benchmark.network,
        "weights_file_sha256": spec.weights_file_sha256,
        "training": None if training is None else asdict(training),
        "warm_up": None if warmed or start == "source" else asdict(_warm_up_config(spec, benchmark)),
    }


def train_network(
    benchmark: Benchmark,
    network: str | None = None,
    *,
    seed: int = 0,
    config: TrainConfig | None = None,
    runtime: Runtime | None = None,
    checkpoint: Path | None = None,
    task: Task | None = None,
    init: Path | None = None,
) -> nn.Module:
    """Train a source network on the benchmark's training images.

    By default these are the benchmark's own network and the settings for that network; ``seed`` replaces that of
    ``config``. The file ``checkpoint`` gets the state after each epoch, to continue after an interruption. The training
    starts from the weights ``init``, with a new classifier where they are of another number of classes, or else from
    random ones.
    """
    config = config or benchmark.training_of(network)
    if config is None:
        able = ", ".join(name for name, other in BENCHMARKS.items() if other.training is not None)
        raise ValueError(
            f"Expected one of the data sets with settings for training, {able} and folder:DIR, but got "
            f"{benchmark.name}. Train your network with your own code, and give its `weights`."
        )
    runtime = runtime or Runtime()
    report = task("Training", "loss {:.3f}") if task else None
    loader = benchmark.source(seed, runtime.device)
    model = benchmark.build(network, init, seed=seed, new_classifier=init is not None)
    if report and not (checkpoint and checkpoint.exists()):  # a training that continues reports its epochs itself
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
    """Return the plain source network: from its weights, or trained here if the benchmark is digits.

    A network trained here is kept in the cache folder if it is the benchmark's own; the code of others may change.
    """
    if weights is not None:
        return benchmark.build(network, weights, seed=seed)
    if not benchmark.trains_itself or benchmark.training is None:
        train_it = f"Train one with `vcotta train --dataset {benchmark.name} --out FILE`, or give"
        raise ValueError(
            f"Expected `weights` of a trained network for {benchmark.name}, but got none. "
            f"{'Give' if benchmark.training is None else train_it} the file of a published one."
        )
    runtime = runtime or Runtime()
    training = partial(train_network, benchmark, network, seed=seed, runtime=runtime, task=task)
    if network not in (None, benchmark.network):
        return training()

    def make(path: Path) -> nn.Module:
        save_weights(trained := training(), path)
        return trained

    facts = {"config": asdict(replace(benchmark.training, seed=seed)), **_made_on(benchmark, network, runtime)}
    return cached("trained", facts, make, lambda path: benchmark.build(None, path, seed=seed))[0]


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

    If the result goes to a file, ``path``, the state is kept in ``path`` with ``.warming`` until it is complete: called
    again after an interruption, the warm-up continues.
    """
    runtime = runtime or Runtime()
    report = with_estimate("Warm-up", task("Warm-up", "loss {:.3f}")) if task else False
    config = replace(config or benchmark.warm_up, seed=seed)
    loader = benchmark.source(seed, runtime.device)
    checkpoint = None if path is None else path.with_name(path.name + ".warming")
    warmed = warm_up(model, loader, config, path=path, runtime=runtime, progress=report, checkpoint=checkpoint)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return warmed


def prepare_adapter(adapter: Adapter, benchmark: Benchmark, seed: int = 0) -> None:
    """Let an adapter learn from the benchmark's training images, or read the result from the cache."""
    facts = {
        "method": adapter.name,
        "method_file_sha256": own_code(type(adapter)),
        "config": asdict(adapter.config),
        "weights_sha256": weights_sha256(adapter.start),
        "seeds": [seed, adapter.seed],
        **_made_on(benchmark, None, adapter.runtime),
        "batch_size": benchmark.batch_size,
    }

    def make(path: Path) -> dict[str, Tensor]:
        adapter.prepare(benchmark.source(seed, adapter.runtime.device, benchmark.batch_size))
        write_state(path, _PREPARED, {"prepared": adapter.prepared})
        return adapter.prepared

    prepared, found = cached("prepared", facts, make, lambda path: read_state(path, _PREPARED)["prepared"])
    if found:
        adapter.adopt(prepared)


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Use one torch thread within the block, if wanted."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def few_threads(spec: RunSpec) -> AbstractContextManager[None]:
    """Use one torch thread within the block for digits on a CPU: more are not faster, and change the last bits."""
    return one_thread(find_benchmark(spec.data, spec.domains).trains_itself and torch.device(spec.device).type == "cpu")


def _source_of(spec: RunSpec) -> Benchmark:
    """The benchmark whose images a method learns from before testing."""
    benchmark = find_benchmark(spec.data, spec.domains)
    source = benchmark if spec.source is None else find_source(spec.source, benchmark)
    return replace(source, source_share=spec.source_share, source_limit=spec.source_limit)


def _warm_up_config(spec: RunSpec, benchmark: Benchmark) -> WarmUpConfig:
    """The data set's warm-up with the changes of start, preset and spec; without flips if the views have none."""
    config, changes = benchmark.warm_up, dict[str, Any]()
    if spec.resolved_start == "scratch":
        training = benchmark.training_of(spec.network)
        epochs = training.epochs if training else config.epochs
        changes = {"epochs": epochs, "lr": SCRATCH_LR, "relative": False, "sigma_travel": None}
        changes |= {"held_back": 0.0, "kl_weight": SCRATCH_KL}
    elif spec.resolved_start == "warmed":
        changes = warm_up_settings(spec.method, spec.settings["dataset"], spec.options.get("preset"))
    flip = config.flip and getattr(spec.config, "flip", True)
    return replace(config, **{"flip": flip, **changes, **spec.warm_up})


def _cached_warm_up(
    data: Benchmark, network: str, model: nn.Module, seed: int, runtime: Runtime, task: Task | None
) -> nn.Module:
    facts = {
        "config": asdict(replace(data.warm_up, seed=seed)),
        "weights_sha256": weights_sha256(model),
        **_made_on(data, network, runtime),
    }

    def make(path: Path) -> nn.Module:
        if task:
            print(
                f"The network is a plain one, so it is warmed up first: {counted(data.warm_up.epochs, 'epoch')} over "
                f"{counted(data.source_count(), 'image')}. The result is kept for later runs.",
                file=sys.stderr,
            )
        return warm_network(data, model, seed=seed, runtime=runtime, path=path, task=task)

    warmed, found = cached("warmed", facts, make, lambda path: load_warmed(model, path))
    if found and task:
        task("Warm-up", "from the cache")(1, 1, 0.0)
    return warmed


def _made_on(data: Benchmark, network: str | None, runtime: Runtime) -> dict[str, Any]:
    """What any training depends on besides its settings."""
    images = data.training_images()
    return {
        "network": network or data.network,
        "data": images.name,
        "data_sha256": images.sha256(),
        "batch_size": data.training_batch,
        "precision": runtime.precision,
        "device": torch.device(runtime.device).type,
    }
