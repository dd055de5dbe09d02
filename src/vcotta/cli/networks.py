"""Commands that make or check a network: train, check, warmup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vcotta.cli.options import (
    Dataset,
    Device,
    Model,
    Overwrite,
    Precision,
    Seed,
    SourceLimit,
    Unsupported,
    interrupt_message,
    runtime_for,
)
from vcotta.cli.output_paths import check_out_file, refuse_existing

__all__ = ["check", "train", "warmup"]


def train(
    out: Annotated[Path, typer.Option(help="File for the trained network (safetensors).")],
    dataset: Annotated[
        str, typer.Option(help="digits, cifar10, cifar100, tiny-imagenet, or folder:DIR[@SIZE] for class folders.")
    ] = "digits",
    model: Model = None,
    init: Annotated[
        Path | None,
        typer.Option(help="Weights to start from; the classifier is new where they have another number of classes."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; by default the data set's own.")] = None,
    augmix: Annotated[bool | None, typer.Option(help="Train with AugMix; by default the data set's own.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="L2 penalty; by default the data set's own.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; by default the data set's own.")] = None,
    rise: Annotated[
        float | None,
        typer.Option(help="Share of the training in which the learning rate rises; by default the data set's own."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images in a batch; by default the data set's own.", min=2)
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    precision: Precision = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a source network, or fine-tune one (--init).

    Vision transformers have settings of their own. Checkpoints are written beside
    the file; after an interruption the same command resumes from them.
    """
    from dataclasses import asdict, replace

    from vcotta._util.files import require_file, sha256
    from vcotta._util.progress import display
    from vcotta.data import ImageData
    from vcotta.experiments.benchmarks import find_training
    from vcotta.experiments.build import train_network
    from vcotta.models import save_weights
    from vcotta.training.diagnose import check_network

    benchmark, runtime = find_training(dataset, init is not None), runtime_for(device, precision)
    check_out_file(out)
    refuse_existing(out, overwrite)
    start = None if init is None else sha256(require_file(init, "weights"))
    config = benchmark.training_of(model)
    if config is not None:
        asked: dict[str, Any] = {"epochs": epochs, "augmix": augmix, "weight_decay": weight_decay}
        asked |= {"lr": lr, "rise": rise, "mixing": 0.0 if augmix else None}
        config = replace(config, **{name: value for name, value in asked.items() if value is not None})
    if batch_size is not None:
        benchmark = replace(benchmark, training_batch=batch_size)
    checkpoint = out.with_name(f"{out.name}.{start[:8]}.training" if start else f"{out.name}.training")
    with display() as task, interrupt_message():
        trained = train_network(
            benchmark, model, seed=seed, config=config, runtime=runtime, checkpoint=checkpoint, task=task, init=init
        )
    test = benchmark.load()
    error = check_network(trained, test, limit=None).error if isinstance(test, ImageData) else None
    name, classes = model or benchmark.network, len(test.class_names)
    training = None if config is None else asdict(replace(config, seed=seed)) | {"batch_size": benchmark.training_batch}
    about = {"network": name, "dataset": dataset, "classes": classes, "error": error, "training": training}
    save_weights(trained, out, **about | ({"init_sha256": start} if start else {}))
    checkpoint.unlink(missing_ok=True)
    made = benchmark.network_options(model)[0]
    label = name if made == name else f"{name} (a small {made})"
    typer.echo(
        f"Wrote {label} to {out}" + ("" if error is None else f"; its error on clean test images is {error:.2%}")
    )


def check(
    weights: Annotated[Path, typer.Option(help="Weights of the network.")],
    dataset: Dataset = "digits",
    model: Model = None,
    expected: Annotated[float | None, typer.Option(help="The expected error, in per cent.")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of images; 0 for all.")] = 1000,
    device: Device = None,
) -> None:
    """Check a network on clean images.

    Finds the usual mistakes: a normalisation too many or too few, BGR images, labels in another order.
    """
    from vcotta.experiments.benchmarks import find_benchmark
    from vcotta.models import expected_error
    from vcotta.training.diagnose import check_network

    benchmark = find_benchmark(dataset)
    name = model or benchmark.network
    wanted = expected_error(name, dataset) if expected is None else expected / 100
    report = check_network(
        benchmark.build(model, weights),
        benchmark.load(),
        limit=limit or None,
        expected=wanted,
        device=runtime_for(device, None).device,
    )
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


def warmup(
    out: Annotated[Path, typer.Option(help="File for the warmed network (safetensors).")],
    dataset: Dataset = "digits",
    model: Model = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the network; for digits one is trained.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; by default the data set's own.")] = None,
    lr: Annotated[float | None, typer.Option(help="First step size of Adam; by default the data set's own.")] = None,
    augmix: Annotated[bool | None, typer.Option(help="Use AugMix images; by default the data set's own.")] = None,
    flip: Annotated[bool | None, typer.Option(help="Mirror images; by default the data set's own.")] = None,
    source_limit: SourceLimit = None,
    unsupported: Unsupported = None,
    seed: Seed = 0,
    device: Device = None,
    precision: Precision = None,
    overwrite: Overwrite = False,
) -> None:
    """Make a source network variational (Algorithm 1).

    The result is for `vcotta run --weights`. With `--dataset folder:DIR` the folder holds source images, like those
    that the network was trained on. Checkpoints are written beside the file; after an interruption the same command
    resumes from them.
    """
    from dataclasses import replace

    from vcotta._util.progress import display
    from vcotta.experiments.benchmarks import find_source
    from vcotta.experiments.build import one_thread, source_network, warm_network

    benchmark, runtime = find_source(dataset), runtime_for(device, precision)
    check_out_file(out)
    refuse_existing(out, overwrite)
    asked: dict[str, Any] = {"epochs": epochs, "lr": lr, "augmix": augmix, "flip": flip, "unsupported": unsupported}
    config = replace(benchmark.warm_up, **{name: value for name, value in asked.items() if value is not None})
    with display() as task, interrupt_message(), one_thread(dataset == "digits"):
        plain = source_network(benchmark, model, weights, seed=seed, runtime=runtime, task=task)
        benchmark = replace(benchmark, source_limit=source_limit)  # the training above has all images
        warm_network(benchmark, plain, seed=seed, config=config, runtime=runtime, path=out, task=task)
    typer.echo(f"Wrote the warmed network to {out}")
