"""The command that repeats the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcotta.cli.options import Device, decimals, interruptions_told, numbers, show
from vcotta.cli.places import check_out_folder

if TYPE_CHECKING:
    from vcotta.experiments.launch import Launcher

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; --list tells their names.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    dataset: Annotated[str, typer.Option(help="digits, cifar10, cifar100 or imagenet.")] = "digits",
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
        Path | None,
        typer.Option(help="The same network from `vcotta warmup`, to be taken as it is, whatever the preset."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs and results; call again to go on.")] = Path("reproduced"),
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
    """Repeat an experiment of the paper and set the result beside it.

    Finished runs are kept in the folder and never repeated; a stopped one goes on from its last checkpoint. The outcome
    is written as a page with its picture, as JSON and as CSV, into a folder named after all that was asked for.

    With --launcher ray every machine must see the folder and the cache folder under the same names.
    """
    from rich.table import Table

    from vcotta._messages import counted, unknown_name
    from vcotta.experiments.entries import ENTRIES
    from vcotta.experiments.networks import Weights
    from vcotta.experiments.reproduce import reproduce as repeat
    from vcotta.experiments.reproduce import scaled
    from vcotta.report.progress import display

    if listed or name is None:
        table = Table()
        for heading in ("Experiment", "What it shows", "In the paper"):
            table.add_column(heading, overflow="fold")
        for entry in ENTRIES.values():
            table.add_row(entry.name, entry.title, entry.where)
        show(table)
        return
    if name not in ENTRIES:
        raise unknown_name("experiment", name, ENTRIES)
    asked = scaled(
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
    with display() as task, interruptions_told(kept="Finished runs are kept: the same command goes on."):
        found = repeat(
            ENTRIES[name],
            asked,
            out,
            launcher=run_by,
            weights=Weights(weights, warmed),
            device=device,
            report=task(name, "{:.0f} cells done"),
        )
    show(found.table.rich())
    if found.cells > found.ran:
        typer.echo(f"{found.cells - found.ran} of {counted(found.cells, 'run')} were there.")
    typer.echo(f"Page: {found.folder / 'outcome.md'}")


def _launcher(name: str, address: str | None, workers: int | None, device: str | None) -> tuple[str, Launcher]:
    """The device and the launcher asked for."""
    from vcotta._messages import unknown_name
    from vcotta.cli.options import runtime_for
    from vcotta.experiments.launch import LocalLauncher
    from vcotta.experiments.ray_launcher import RayLauncher

    if name == "ray":
        if workers is not None:
            raise ValueError(
                f"Expected `workers` only with the local launcher, but got {workers}: a Ray cluster runs as many cells "
                "at once as it has resources for."
            )
        return device or runtime_for(None, None).device, RayLauncher(address)  # the cluster may have what we have not
    if name != "local":
        raise unknown_name("launcher", name, ("local", "ray"))
    if address is not None:
        raise ValueError(f"Expected `address` only with --launcher ray, but got {address!r}.")
    device = runtime_for(device, None).device
    return device, LocalLauncher(workers or (1 if device.startswith("cuda") else 2))
