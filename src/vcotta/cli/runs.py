"""The commands run and tune."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from vcotta.cli.config_file import ConfigFile
from vcotta.cli.options import (
    Dataset,
    Device,
    Limit,
    ListFile,
    Method,
    Model,
    Overwrite,
    Precision,
    Seed,
    Settings,
    SourceLimit,
    Subset,
    Unsupported,
    interrupt_message,
    numbers,
    parse_grid,
    parse_protocol,
    parse_settings,
    runtime_for,
    show,
)
from vcotta.cli.output_paths import check_out_file, check_out_folder, refuse_existing

__all__ = ["run", "tune"]

StreamSeed = Annotated[
    int, typer.Option(help="Seed of the corrupted test images, the same in every run unless changed.", min=0)
]

CHECKPOINT_SECONDS = 30.0  # a checkpoint of a large network takes about a second


def run(
    method: Method,
    out: Annotated[Path, typer.Option(help="Folder for the files of the run.")],
    dataset: Dataset = "digits",
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the network, or a warmed network from `vcotta warmup`.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="Source images that a method learns from before testing, such as folder:DIR; by default the data "
            "set's own training images."
        ),
    ] = None,
    source_limit: SourceLimit = None,
    unsupported: Unsupported = None,
    seed: Seed = 0,
    stream_seed: StreamSeed = 0,
    protocol: Annotated[
        str,
        typer.Option(
            help="Test protocol: continual, gradual, orders, loops, reset_each_shift, mixed_domains, correlated, "
            "practical, recurring, bursts or day_night."
        ),
    ] = "continual",
    protocol_set: Annotated[
        list[str] | None,
        typer.Option(
            "--protocol-set",
            metavar="OPTION=VALUE",
            help="A number of the protocol: order=3 of orders, rounds=10 of loops, delta=0.1 of correlated and "
            "practical (0 sorts by class), visits=20 of recurring, frames=32 of bursts, turns=5 of day_night.",
        ),
    ] = None,
    domains: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="With --dataset folder:DIR: sub-folders of DIR to visit in this order, each with class folders.",
        ),
    ] = None,
    corruptions: Annotated[
        str | None,
        typer.Option(
            help="Names in order, separated by commas, or none for images as they are; by default the fifteen."
        ),
    ] = None,
    severity: Annotated[int, typer.Option(help="1 (mild) to 5 (severe).")] = 5,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch; by default the data set's own.")] = None,
    limit: Limit = None,
    corrupted: Annotated[
        Path | None,
        typer.Option(
            help="Folder of corrupted files, official or from `vcotta corrupt`; by default images are corrupted here."
        ),
    ] = None,
    subset: Subset = None,
    list_file: ListFile = None,
    preprocess: Annotated[
        str | None,
        typer.Option(help="ImageNet-C: none (default; it is 224 x 224 already), or res256crop224 with --legacy."),
    ] = None,
    legacy: Annotated[bool, typer.Option("--legacy", help="ImageNet-C: resize once more, as older code did.")] = False,
    settings: Settings = None,
    guard: Annotated[
        bool | None,
        typer.Option(
            "--guard/--no-guard",
            help="Protect the adapter from its stream; by default on for vcotta's preset best only.",
        ),
    ] = None,
    device: Device = None,
    precision: Precision = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in the folder if it was stopped; start it if there is none."),
    ] = False,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            help="Batches between two checkpoints for --resume, at least 30 s apart; one more on Ctrl-C; 0 for none.",
            min=0,
        ),
    ] = 50,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share each batch with the other processes that torchrun started.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the numbers of each batch for TensorBoard.")
    ] = None,
    config: ConfigFile = None,  # read by ConfiguredCommand
) -> None:
    """Run one method through a stream of corrupted images.

    Every batch is recorded in the folder: manifest.json, records.jsonl, timing.jsonl, summary.json. For ImageNet-C
    (--corrupted DIR), --subset, --list, --preprocess and --legacy choose which images are read, and how.

    To continue a run that was killed, use the same command with --resume: its records will be those of a run that was
    not killed. A finished run is shown and not changed.

    Several processes, one for each GPU or CPU core, can share each batch: torchrun --nproc-per-node 2 -m vcotta run ...
    --distributed.
    """
    from rich.console import Console

    from vcotta._util.progress import display
    from vcotta.corruptions import STANDARD
    from vcotta.experiments.build import stream_for
    from vcotta.experiments.grid import run_spec
    from vcotta.methods import check_distributed, find_method, import_method
    from vcotta.nn.distributed import World, join_world
    from vcotta.report.tables import by_corruption, comparison
    from vcotta.runs.run import SUMMARY, check_folder
    from vcotta.runs.spec import RunSpec
    from vcotta.runs.tensorboard import TensorBoardLog

    method, runtime = import_method(method), runtime_for(device, precision)
    if unsupported is not None and not find_method(method).needs_variational:
        raise ValueError(
            f"Expected `--unsupported` only with a method whose network is warmed up, but {method} has no warm-up. "
            "Leave it out."
        )
    files = {"subset": subset, "list_file": list_file, "preprocess": preprocess, "legacy": legacy or None}
    spec = RunSpec(
        method,
        dataset,
        model,
        weights,
        parse_settings(settings, method),
        source=source,
        source_limit=source_limit,
        warm_up={} if unsupported is None else {"unsupported": unsupported},
        protocol=protocol,
        protocol_options=parse_protocol(protocol_set),
        domains=() if domains is None else [name.strip() for name in domains.split(",")],
        corruptions=STANDARD if corruptions is None else [name.strip() for name in corruptions.split(",")],
        severity=severity,
        batch_size=batch_size,
        limit=limit,
        corrupted=corrupted,
        corrupted_options={key: value for key, value in files.items() if value is not None},
        seed=seed,
        stream_seed=stream_seed,
        guard=guard,
        device=runtime.device,
        precision=runtime.precision,
    )
    check_folder(out, overwrite, resume)
    if distributed:
        check_distributed(method)
    with ExitStack() as stack:
        world = stack.enter_context(join_world(runtime.device)) if distributed else World()
        if not world.leads:
            warnings.simplefilter("ignore")  # the first process shows them
        with world.all_or_none():
            if world.leads and not (resume and (out / SUMMARY).exists()):  # a finished run may be a read-only one
                check_out_folder(out)
            if world.leads and tensorboard:
                check_out_folder(tensorboard)
            log = TensorBoardLog(tensorboard) if tensorboard and world.leads else None
        if log is not None:
            stack.enter_context(log)
        task = stack.enter_context(display(None if world.leads else Console(quiet=True)))
        stack.enter_context(interrupt_message("Use the same command with --resume."))
        done = run_spec(
            spec,
            out,
            task=task,
            log=log,
            overwrite=overwrite,
            resume=resume,
            checkpoint_every=checkpoint_every or None,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            world=world,
        )
        if log is not None:
            log(done)  # of a run that was finished before
    if world.leads:
        show(comparison([done]).rich())
        show(by_corruption([done]).rich())
        frost = done.manifest["stream"]["frost"]
        typer.echo(f"{stream_for(spec)}{f' Frost: {frost}.' if frost else ''} Files: {out}")


def tune(
    method: Method,
    out: Annotated[Path, typer.Option(help="JSON file for the results.")],
    dataset: Dataset = "digits",
    model: Model = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the network, or a warmed network.")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="OPTION=A,B,...", help="Values to try of an option; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to average over, separated by commas.")] = "0",
    severities: Annotated[str, typer.Option(help="Severities of the corruptions, separated by commas.")] = "5",
    trials: Annotated[int | None, typer.Option(help="Try only this many combinations, drawn at random.", min=1)] = None,
    limit: Limit = None,
    table: Annotated[int | None, typer.Option(help="Severity constants: 32, 64 or 224; by default by size.")] = None,
    device: Device = None,
    precision: Precision = None,
    overwrite: Overwrite = False,
) -> None:
    """Search a method's options on held-out corruptions.

    These are the four extra ones: speckle_noise, gaussian_blur, spatter, saturate; the fifteen that are reported are
    not used. Finished trials are kept beside the file: after an interruption the same command continues.
    """
    from vcotta._util.progress import display
    from vcotta.experiments.tune import SPACES, searched, tune, tune_spec, write_trials
    from vcotta.methods import import_method

    method, runtime = import_method(method), runtime_for(device, precision)
    spec = tune_spec(
        method,
        dataset,
        numbers("severities", severities),
        network=model,
        weights=weights,
        limit=limit,
        table=table,
        device=runtime.device,
        precision=runtime.precision,
    )
    space = parse_grid(grid, method) or SPACES.get(method)
    if not space:
        raise ValueError(f"Expected a method with options, but {method} has none to search.")
    check_out_file(out)
    refuse_existing(out, overwrite)
    checkpoint, chosen_seeds = out.with_name(out.name + ".tuning"), numbers("seeds", seeds)
    with display() as task, interrupt_message(kept="Finished trials are kept: the same command continues."):
        found = tune(spec, space, seeds=chosen_seeds, trials=trials, task=task, checkpoint=checkpoint)
    write_trials(out, searched(spec, chosen_seeds), found)
    checkpoint.unlink(missing_ok=True)
    best = found[0]
    chosen = " ".join(f"--set {key}={value}" for key, value in best["options"].items())
    typer.echo(f"Best of {len(found)}: error {best['error']:.2f} %, NLL {best['nll']:.3f} with {chosen}")
    typer.echo(f"All trials: {out}")
