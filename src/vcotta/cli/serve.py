"""The commands `vcotta bundle` and `vcotta serve`."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vcotta.cli.options import Dataset, Device, Model, Overwrite, Precision, Seed, Settings, parse_settings, runtime_for
from vcotta.cli.output_paths import check_out_file, refuse_existing

if TYPE_CHECKING:
    from vcotta.methods.guard import Guard

__all__ = ["bundle", "parse_guard", "serve"]


def bundle(
    out: Annotated[Path, typer.Option(help="File for the bundle.")],
    dataset: Dataset = "digits",
    model: Model = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the network, or a warmed network; digits trains its own.")
    ] = None,
    method: Annotated[str, typer.Option(help="Method; `vcotta methods` lists them.")] = "vcotta",
    preprocess: Annotated[
        str | None,
        typer.Option(help="How images are resized: none, resize or res256crop224 (the default for 224 pixels)."),
    ] = None,
    settings: Settings = None,
    guard: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUE",
            help="An option of the guard, such as contradiction=0.4 or collapse=none; may be repeated. "
            "`off` serves without a guard.",
        ),
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(
            help="Put so many labelled training images into the bundle, by which the guard sees that the model "
            "forgets. Default: none.",
            min=1,
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = None,
    precision: Precision = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a network and a method to one file for `vcotta serve`.

    A warm-up or source data that the method needs are used now: the server has no source data.
    """
    from vcotta._util.errors import unknown_name
    from vcotta._util.progress import display
    from vcotta.data.probe import make_probe
    from vcotta.data.sizes import PREPROCESSES
    from vcotta.experiments.benchmarks import find_benchmark
    from vcotta.experiments.build import adapter_for_spec
    from vcotta.runs.spec import RunSpec
    from vcotta.serve import Preprocess, make_bundle, save_bundle

    chosen = parse_guard(guard)
    if probe is not None and chosen is False:
        raise ValueError("Expected a guard, which looks at the probe, but got `--guard off`. Leave one of them out.")
    runtime = runtime_for(device, precision)
    spec = RunSpec(
        method,
        dataset,
        model,
        weights,
        parse_settings(settings, method),
        seed=seed,
        device=runtime.device,
        precision=runtime.precision,
        guard=chosen,
    )
    benchmark = find_benchmark(dataset)
    if preprocess not in (None, *PREPROCESSES):
        raise unknown_name("preprocess", preprocess, PREPROCESSES)
    check_out_file(out)
    refuse_existing(out, overwrite)
    size = benchmark.image_size
    how = Preprocess(size, how=preprocess or ("res256crop224" if size == 224 else "resize"))
    with display() as task:
        adapter = adapter_for_spec(spec, task=task)
    if probe is not None:
        adapter.add_probe(*make_probe(benchmark.load("train"), probe))
    name, more = benchmark.network_options(model)
    names = benchmark.load().class_names
    save_bundle(make_bundle(adapter, name, names, how, batch_size=benchmark.batch_size, guard=chosen, **more), out)
    typer.echo(f"Wrote {method} on {name} with {len(names)} classes to {out}")


def parse_guard(entries: list[str] | None) -> Guard | bool:
    """Return the guard of a bundle: the default one with every OPTION=VALUE changed, or False for ``off``."""
    from vcotta._util.errors import unknown_name
    from vcotta.methods.guard import Guard

    if entries == ["off"]:
        return False
    known, chosen = [field.name for field in fields(Guard)], dict[str, Any]()
    for entry in entries or []:
        name, _, text = (part.strip() for part in entry.partition("="))
        if not text:
            raise ValueError(f"Expected `--guard` to be OPTION=VALUE, or `off` alone, but got {entry!r}.")
        if name not in known:
            raise unknown_name("option of the guard", name, known)
        try:
            chosen[name] = None if text.lower() in ("none", "off") else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(f"Expected `--guard {name}` to be a number or none, but got {text!r}.") from None
    return Guard(**chosen)


def serve(
    path: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A file from `vcotta bundle`.")],
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that clients need to change states, or JSON with one for each stream."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; without a token a loopback one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 8000,
    state: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoints. Default: the bundle's name with .state added.")
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between two checkpoints; 0 for one before each answer.", min=0)
    ] = 30.0,
    pool: Annotated[
        int | None,
        typer.Option(help="Pool small requests up to so many images. Default: the bundle's batch size.", min=1),
    ] = None,
    wait_ms: Annotated[float, typer.Option(help="Milliseconds a small request waits for others.", min=0)] = 20.0,
    max_body: Annotated[int, typer.Option(help="Most bytes in a request.", min=1)] = 16 * 2**20,
    max_images: Annotated[int, typer.Option(help="Most images in a request.", min=1)] = 256,
    max_pixels: Annotated[int, typer.Option(help="Most pixels in an image file.", min=1)] = 25_000_000,
    max_queue: Annotated[int, typer.Option(help="Most images of one stream that may wait.", min=1)] = 1024,
    max_requests: Annotated[int, typer.Option(help="Most requests that are read at once.", min=1)] = 64,
    streams: Annotated[int, typer.Option(help="Most streams, the default one included.", min=1)] = 64,
    memory: Annotated[
        int | None,
        typer.Option(help="MiB for the states of streams; the others are on the disk. Default: 2048, or two states."),
    ] = None,
    merge_every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Seconds between two merges of what the streams have learned. Default: never.",
            min=1,
        ),
    ] = None,
    merge: Annotated[
        str, typer.Option(metavar="PATTERN", help="Names of the streams to merge; pinned and flagged ones are not.")
    ] = "*",
    max_waiting: Annotated[int, typer.Option(help="Most images of all streams that may wait.", min=1)] = 4096,
    name: Annotated[str, typer.Option(help="Name of the model in the Open Inference Protocol.")] = "vcotta",
    trust: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Allow the bundle to call this function of yours."),
    ] = None,
    log_format: Annotated[str, typer.Option(help="Form of the log on standard error: text or json.")] = "text",
    threads: Annotated[int, typer.Option(help="Threads of torch on the CPU.", min=1)] = 1,
    device: Device = None,
    precision: Precision = None,
    engine: Annotated[
        str, typer.Option(help="local: this process serves; ray: replicas on Ray Serve do (the extra cluster).")
    ] = "local",
    replicas: Annotated[int, typer.Option(help="Replicas of the engine ray.", min=1)] = 2,
    max_replicas: Annotated[
        int | None, typer.Option(help="Add replicas up to so many while requests wait. Default: a fixed number.", min=1)
    ] = None,
    address: Annotated[
        str, typer.Option(help="Ray cluster of the engine ray: HOST:PORT, auto, or local for a new one here.")
    ] = "local",
) -> None:
    """Serve a bundle over HTTP and adapt to the requests.

    SIGTERM or Ctrl-C answers the open requests, for at most 30 seconds, saves the state and stops. The next start
    continues from there.
    """
    import logging

    import torch

    from vcotta._util.errors import unknown_name
    from vcotta.serve import load_bundle

    try:
        from vcotta.serve.app import create_app
        from vcotta.serve.auth import check_exposure, read_tokens
        from vcotta.serve.logs import log_to
        from vcotta.serve.merging import MergeRule
        from vcotta.serve.requests import Limits
        from vcotta.serve.server import listen, run_app
        from vcotta.serve.service import Service
        from vcotta.serve.streams import StreamLimits
    except ImportError as error:
        raise ValueError(
            f"Expected the packages of the extra `serve`, but {error.name} is missing. Install them: "
            "pip install fastapi uvicorn python-multipart prometheus-client"
        ) from error
    if log_format not in ("text", "json"):
        raise unknown_name("log_format", log_format, ("text", "json"))
    if engine not in ("local", "ray"):
        raise unknown_name("engine", engine, ("local", "ray"))
    log_to("json" if log_format == "json" else "text")
    tokens = None if token_file is None else read_tokens(token_file)
    check_exposure(host, tokens)
    torch.set_num_threads(threads)
    limits = Limits(
        body=max_body,
        images=max_images,
        image_pixels=max_pixels,
        request_pixels=max(Limits.request_pixels, max_pixels),
        queue=max_queue,
        requests=max_requests,
    )
    together = StreamLimits(streams, None if memory is None else memory * 2**20, max_waiting)
    folder = path.with_name(path.name + ".state") if state is None else state
    runtime = runtime_for(device, precision)
    options: dict[str, Any] = {
        "limits": limits,
        "streams": together,
        "pool": pool,
        "wait": wait_ms / 1000,
        "checkpoint_seconds": checkpoint_seconds,
        "runtime": runtime,
        "trusted": trust,
    }
    rule = MergeRule(merge_every, merge)
    if engine == "ray":
        from vcotta.serve.ray_engine import Fleet, FleetOptions, fleet_front, update_on_hangup
        from vcotta.serve.replica import ReplicaOptions

        how_many = FleetOptions(replicas, max_replicas, device=runtime.device, address=address)
        fleet = Fleet(how_many, ReplicaOptions(path, options, tokens, name, log_format, threads), folder, rule)
        sockets = listen(host, port)
        with fleet_front(fleet, path, limits) as front, update_on_hangup(fleet, path):
            typer.echo(f"Serving {path} with {replicas} replicas; states: {folder}")
            run_app(front, sockets)
        typer.echo(f"Stopped; the states are in {folder}")
        return
    service = Service(load_bundle(path), state=folder, merging=rule, **options)
    sockets = listen(host, port)
    with service:
        default = service.engine
        version = f"after {default.changes} changes" if default.changes else "new"
        typer.echo(f"Serving {service.bundle.method} on {service.bundle.network.name}; state: {folder}, {version}")
        run_app(create_app(service, tokens, name), sockets)
    if not service.saved:
        stopped = "Stopped; the state (version %d) could not be saved in %s"
        logging.getLogger("vcotta.serve").error(stopped, default.changes, folder)
        raise typer.Exit(1)
    others = len(service.list_streams()) - 1
    more = f" and {others} other streams" if others else ""
    typer.echo(f"Stopped; the state is in {folder} (version {default.changes}){more}")
