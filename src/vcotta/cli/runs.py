"""Commands that adapt: run and tune."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

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
    Subset,
    interruptions_told,
    numbers,
    parse_grid,
    parse_settings,
    runtime_for,
    set_threads,
    show,
)
from vcotta.cli.places import check_out_file, check_out_folder, refuse_existing

__all__ = ["run", "tune"]

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
            help="Source images for what a method learns before testing, such as folder:DIR; by default the data set's "
            "own training images."
        ),
    ] = None,
    seed: Seed = 0,
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
        typer.Option(help="Folder of the official corrupted files, or from `vcotta corrupt`; by default on the fly."),
    ] = None,
    subset: Subset = None,
    list_file: ListFile = None,
    preprocess: Annotated[
        str | None,
        typer.Option(help="ImageNet-C: none (default; it is 224 x 224 already), or res256crop224 with --legacy."),
    ] = None,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="ImageNet-C: resize once more, to repeat numbers of code that does.")
    ] = False,
    settings: Settings = None,
    guard: Annotated[
        bool | None,
        typer.Option("--guard/--no-guard", help="Protect the adapter from its stream; on for vcotta's preset best."),
    ] = None,
    device: Device = None,
    precision: Precision = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder if it was stopped; start it if need be.")
    ] = False,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            help="Save what --resume needs every so many batches, but not within 30 s, and on Ctrl-C; 0 for never.",
            min=0,
        ),
    ] = 50,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share each batch with the other processes that torchrun started.")
    ] = False,
) -> None:
    """Run one method through the fifteen corruptions.

    Every batch is recorded in the folder: manifest.json, records.jsonl, timing.jsonl, summary.json. Of ImageNet-C
    (--corrupted DIR), --subset, --list, --preprocess and --legacy say which images are read, and how.

    A run that was killed goes on with the same command and --resume, and its records are those of an undisturbed run.
    A finished one is left as it is.

    Several processes, one for each GPU or CPU core, run it as one: torchrun --nproc-per-node 2 -m vcotta run ...
    --distributed.
    """
    from rich.console import Console

    from vcotta.corruptions import STANDARD, frost_source
    from vcotta.distributed import World, join_world
    from vcotta.evaluate import already_finished, run_stream
    from vcotta.experiments.benchmark import find_benchmark, find_source
    from vcotta.experiments.setup import adapter_for, start_network, stream_for
    from vcotta.files import sha256
    from vcotta.methods import check_distributed, choose_guard, configure, distribute
    from vcotta.methods.elsewhere import known_method
    from vcotta.report.progress import display
    from vcotta.report.tables import by_corruption, comparison
    from vcotta.resume import has_checkpoints
    from vcotta.runs import SUMMARY, check_folder

    method, benchmark, runtime = known_method(method), find_benchmark(dataset), runtime_for(device, precision)
    options = parse_settings(settings, method)
    known = None if source is None else find_source(source, benchmark)
    files = {"subset": subset, "list_file": list_file, "preprocess": preprocess, "legacy": legacy or None}
    config = configure(method, **{"dataset": benchmark.settings, **options})  # a mistake is told before any training
    check_folder(out, overwrite, resume)
    if distributed:
        check_distributed(method)
    with ExitStack() as stack:
        world = stack.enter_context(join_world(runtime.device)) if distributed else World()
        if not world.leads:
            warnings.simplefilter("ignore")  # the first process tells them
        with world.all_or_none():
            if world.leads and not (resume and (out / SUMMARY).exists()):  # a finished run may be a read-only one
                check_out_folder(out)
        stream = stream_for(
            benchmark,
            seed=seed,
            corruptions=STANDARD if corruptions is None else [name.strip() for name in corruptions.split(",")],
            severity=severity,
            batch_size=batch_size,
            limit=limit,
            corrupted=corrupted,
            files={key: value for key, value in files.items() if value is not None},
            device=runtime.device,
        )
        if known is not None:
            known.check_classes(stream.data.class_names)
        facts = {
            "dataset": dataset,
            "network": model or benchmark.network,
            "weights_file_sha256": weights and sha256(weights),
            "frost": frost_source(),
        }
        if source is not None:
            facts["source"] = source
        set_threads(dataset)
        done = None
        if resume and not distributed:  # several processes agree on it when they have opened the run
            protection = choose_guard(method, guard, options)
            done = already_finished(
                out, method, config, stream, seed=seed, runtime=runtime, guard=protection, manifest=facts
            )
        if done is None:
            task = stack.enter_context(display(None if world.leads else Console(quiet=True)))
            with interruptions_told():  # in its warm-up
                start = start_network(
                    benchmark, method, model, weights, seed=seed, runtime=runtime, source=known, task=task
                )
            adapter = adapter_for(
                benchmark, method, start, seed=seed, runtime=runtime, source=known, guard=guard, **options
            )
            distribute(adapter, world)
            report = task(method, "error {:.1%}")
            if not (resume and has_checkpoints(out)):  # which begins with what was done
                report(0, len(stream), 0.0)  # the first batch may take minutes
            with interruptions_told("Use the same command with --resume."):
                done = run_stream(
                    adapter,
                    stream,
                    out,
                    progress=report,
                    manifest=facts,
                    overwrite=overwrite,
                    resume=resume,
                    checkpoint_every=checkpoint_every or None,
                    checkpoint_seconds=CHECKPOINT_SECONDS,
                )
    if world.leads:
        show(comparison([done]).rich())
        show(by_corruption([done]).rich())
        frost = f" Frost: {frost_source()}." if "frost" in stream.corruptions else ""
        typer.echo(f"{stream}{frost} Files: {out}")


def tune(
    method: Method,
    out: Annotated[Path, typer.Option(help="JSON file for what was found.")],
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

    These are the four extra ones: speckle_noise, gaussian_blur, spatter, saturate. The fifteen that are reported are
    never looked at. Trials are kept beside the file as they are made: the same command goes on after an interruption.
    """
    from vcotta.experiments.benchmark import find_benchmark
    from vcotta.experiments.tuning import SPACES, searched, tune, write_trials
    from vcotta.methods import configure
    from vcotta.methods.elsewhere import known_method
    from vcotta.report.progress import display

    method, benchmark, runtime = known_method(method), find_benchmark(dataset), runtime_for(device, precision)
    configure(method)
    space = parse_grid(grid, method) or SPACES.get(method)
    if not space:
        raise ValueError(f"Expected a method with options, but {method} has none to search.")
    check_out_file(out)
    refuse_existing(out, overwrite)
    on: dict[str, Any] = {
        "seeds": numbers("seeds", seeds),
        "severities": numbers("severities", severities),
        "limit": limit,
        "table": table,
        "network": model,
        "weights": weights,
        "runtime": runtime,
    }
    set_threads(dataset)
    checkpoint = out.with_name(out.name + ".tuning")
    with display() as task, interruptions_told(kept="Finished trials are kept: the same command goes on."):
        found = tune(benchmark, method, space, **on, trials=trials, task=task, checkpoint=checkpoint)
    write_trials(out, searched(benchmark, method, **on), found)
    checkpoint.unlink(missing_ok=True)
    best = found[0]
    chosen = " ".join(f"--set {key}={value}" for key, value in best["options"].items())
    typer.echo(f"Best of {len(found)}: error {best['error']:.2f} %, NLL {best['nll']:.3f} with {chosen}")
    typer.echo(f"All trials: {out}")
