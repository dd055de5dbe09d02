"""Commands that bring a model into service: bundle and serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vcotta.cli.options import Dataset, Device, Model, Overwrite, Precision, Seed, Settings, parse_settings, runtime_for
from vcotta.cli.places import check_out_file, refuse_existing

__all__ = ["bundle", "serve"]


def bundle(
    out: Annotated[Path, typer.Option(help="File for the bundle.")],
    dataset: Dataset = "digits",
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the network, or a warmed network; digits trains its own.")
    ] = None,
    method: Annotated[str, typer.Option(help="Method; `vcotta methods` lists them.")] = "vcotta",
    preprocess: Annotated[
        str | None, typer.Option(help="How images get their size: none, resize or res256crop224; by default by size.")
    ] = None,
    settings: Settings = None,
    guard: Annotated[
        bool,
        typer.Option("--guard/--no-guard", help="Protect the served adapter from its stream, whatever the method."),
    ] = True,
    seed: Seed = 0,
    device: Device = None,
    precision: Precision = None,
    overwrite: Overwrite = False,
) -> None:
    """Pack a network and a method into one file.

    The file is for `vcotta serve`: weights, class names, preprocessing, settings. A plain network is warmed up first
    where the method needs that, and the method learns from source data what it needs of them: the server has none.
    """
    from vcotta._messages import unknown_name
    from vcotta.cli.options import set_threads
    from vcotta.data.image_files import PREPROCESSES
    from vcotta.experiments.benchmark import find_benchmark
    from vcotta.experiments.setup import adapter_for, start_network
    from vcotta.methods import configure
    from vcotta.report.progress import display
    from vcotta.serve import Preprocess, make_bundle, save_bundle

    benchmark, runtime = find_benchmark(dataset), runtime_for(device, precision)
    options = parse_settings(settings, method)
    configure(method, **{"dataset": benchmark.settings, **options})  # a mistake is told before any training
    if preprocess not in (None, *PREPROCESSES):
        raise unknown_name("preprocess", preprocess, PREPROCESSES)
    check_out_file(out)
    refuse_existing(out, overwrite)
    size = benchmark.image_size
    how = Preprocess(size, how=preprocess or ("res256crop224" if size == 224 else "resize"))
    set_threads(dataset)
    with display() as task:
        start = start_network(benchmark, method, model, weights, seed=seed, runtime=runtime, task=task)
        adapter = adapter_for(benchmark, method, start, seed=seed, runtime=runtime, **options)
    name, more = benchmark.network_facts(model)
    names = benchmark.load().class_names
    save_bundle(make_bundle(adapter, name, names, how, batch_size=benchmark.batch_size, guard=guard, **more), out)
    typer.echo(f"Wrote {method} on {name} with {len(names)} classes to {out}")


def serve(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file from `vcotta bundle`.")],
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that is needed to change the state.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; without a token only this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 8000,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoints; by default the bundle's name with .state added.")
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between two checkpoints.", min=0.1)] = 30.0,
    pool: Annotated[
        int | None, typer.Option(help="Pool small requests up to so many images; by default the bundle's batch.", min=1)
    ] = None,
    wait_ms: Annotated[float, typer.Option(help="Milliseconds a small request waits for others.", min=0)] = 20.0,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.", min=1)] = 16 * 2**20,
    max_images: Annotated[int, typer.Option(help="Images in a request.", min=1)] = 256,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image file.", min=1)] = 25_000_000,
    max_queue: Annotated[int, typer.Option(help="Images that may wait.", min=1)] = 1024,
    trust: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Let the bundle's network be made by this code of yours."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads of torch on the CPU.", min=1)] = 1,
    device: Device = None,
    precision: Precision = None,
) -> None:
    """Serve a bundle over HTTP, adapting.

    Predictions, metrics and a status page; docs/operations.md tells it all.

    SIGTERM or Ctrl-C ends it: open requests have 30 seconds to be answered, then the state is saved; the next start
    goes on from there.
    """
    import torch

    from vcotta.serve import load_bundle
    from vcotta.serve.gate import read_token
    from vcotta.serve.limits import Limits
    from vcotta.serve.service import Service

    try:
        from vcotta.serve.app import create_app
        from vcotta.serve.run import check_exposure, listen, run_app
    except ImportError as error:
        raise ValueError(
            f"Expected the extra `serve`, but {error.name} is missing: pip install 'vcotta[serve]'"
        ) from error
    token = None if token_file is None else read_token(token_file)
    check_exposure(host, token)
    torch.set_num_threads(threads)
    limits = Limits(
        body=max_body,
        images=max_images,
        image_pixels=max_pixels,
        request_pixels=max(Limits.request_pixels, max_pixels),
        queue=max_queue,
    )
    kept = path.with_name(path.name + ".state") if state is None else state
    service = Service(
        load_bundle(path),
        state=kept,
        limits=limits,
        pool=pool,
        wait=wait_ms / 1000,
        checkpoint_seconds=checkpoint_seconds,
        runtime=runtime_for(device, precision),
        trusted=trust,
    )
    sockets = listen(host, port)
    with service:
        typer.echo(f"Serving {service.bundle.method} on {service.bundle.network.name}; state: {kept}, ", nl=False)
        typer.echo(f"after {service.changes} changes" if service.changes else "new")
        run_app(create_app(service, token), sockets)
    if not service.keeper.has(service.changes):
        typer.echo(f"Stopped; the state after {service.changes} changes could not be saved in {kept}", err=True)
        raise typer.Exit(1)
    typer.echo(f"Stopped; the state after {service.changes} changes is in {kept}")
