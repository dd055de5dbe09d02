"""The command that repeats the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcotta.cli.options import Device, Model, decimals, interrupt_message, numbers, runtime_for, show
from vcotta.cli.output_paths import check_out_folder

if TYPE_CHECKING:
    from vcotta.experiments.launch import Launcher

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list shows their names.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    dataset: Annotated[str, typer.Option(help="digits, cifar10, cifar100, imagenet or tiny-imagenet.")] = "digits",
    scale: Annotated[str, typer.Option(help="quick (fewer images, views and values) or full.")] = "quick",
    preset: Annotated[str, typer.Option(help="VCoTTA's preset, with its warm-up: best, paper or authors.")] = "best",
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas; by default 0,1,2, or 0 at quick beyond digits.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")] = None,
    values: Annotated[
        str | None, typer.Option(help="Only these values of the setting that is varied, as in --values 0,8,32.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The source network; not needed for digits.")] = None,
    warmed: Annotated[
        Path | None, typer.Option(help="The same network from `vcotta warmup`; it is used whatever the preset.")
    ] = None,
    model: Model = None,
    source: Annotated[
        str | None,
        typer.Option(help="Source images, such as folder:DIR; by default the data set's own training images."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of runs and results; with the same folder an experiment continues.")
    ] = Path("reproduced"),
    workers: Annotated[
        int | None, typer.Option(help="Processes of the local launcher; by default 2, on a GPU 1.", min=1)
    ] = None,
    launcher: Annotated[str, typer.Option(help="local (this machine) or ray (a Ray cluster).")] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster, as host:port, or local for a new one; by default the one of this machine, or a new one."
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Repeat an experiment of the paper and compare the results.

    Finished runs are kept in the folder and not repeated; stopped ones resume from their last checkpoint. The outcome
    is written as a page with its picture, as JSON and as CSV, into a folder named after the options that were chosen.

    With --launcher ray every machine must see the folder and the cache folder under the same names.
    """
    from rich.table import Table

    from vcotta._util.errors import counted, unknown_name
    from vcotta._util.progress import display
    from vcotta.experiments.paper.experiments import EXPERIMENTS
    from vcotta.experiments.reproduce import reproduce as repeat
    from vcotta.experiments.reproduce import scaled

    if listed or name is None:
        table = Table()
        for heading in ("Experiment", "What it shows", "In the paper"):
            table.add_column(heading, overflow="fold")
        for experiment in EXPERIMENTS.values():
            table.add_row(experiment.name, experiment.title, experiment.where)
        show(table)
        return
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    chosen = scaled(
        dataset,
        scale,
        preset=preset,
        seeds=None if seeds is None else numbers("seeds", seeds),
        limit=limit,
        methods=None if methods is None else [method.strip() for method in methods.split(",")],
        values=None if values is None else decimals("values", values),
    )
    check_out_folder(out)
    device, run_by = _launcher(launcher, address, workers, device)
    with display() as task, interrupt_message(kept="Finished runs are kept: the same command continues."):
        found = repeat(
            EXPERIMENTS[name],
            chosen,
            out,
            launcher=run_by,
            weights=weights,
            warmed=warmed,
            network=model,
            source=source,
            device=device,
            report=task(name, "{:.0f} runs done"),
        )
    show(found.table.rich())
    if found.runs > found.ran:
        typer.echo(f"{found.runs - found.ran} of {counted(found.runs, 'run')} were finished before.")
    typer.echo(f"Page: {found.folder / 'outcome.md'}")


def _launcher(name: str, address: str | None, workers: int | None, device: str | None) -> tuple[str, Launcher]:
    """Return the device and the launcher."""
    from vcotta._util.errors import unknown_name
    from vcotta.experiments.launch import LocalLauncher
    from vcotta.experiments.launch_ray import RayLauncher

    if name == "ray":
        if workers is not None:
            raise ValueError(
                f"Expected `workers` only with the local launcher, but got {workers}: a Ray cluster runs as many runs "
                "at once as it has resources for."
            )
        # A given device is not checked: the cluster may have a GPU though this machine has none.
        return device or runtime_for(None, None).device, RayLauncher(address)
    if name != "local":
        raise unknown_name("launcher", name, ("local", "ray"))
    if address is not None:
        raise ValueError(f"Expected `address` only with --launcher ray, but got {address!r}.")
    device = runtime_for(device, None).device
    return device, LocalLauncher(workers or (1 if device.startswith("cuda") else 2))
