"""The commands demo, methods and info."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcotta._version import __version__
from vcotta.cli.options import Seed, show, table_console
from vcotta.cli.output_paths import check_out_file, check_out_folder

if TYPE_CHECKING:
    from vcotta.methods import Adapter

__all__ = ["demo", "info", "methods"]

_ALL_COLUMNS = 160
"""Width from which the table of methods has all columns; below, words would be broken."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for results and figures.")] = Path("demo"),
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="Write the table as JSON to this file too.")] = None,
) -> None:
    """Watch five methods adapt to fifteen corruptions.

    Trains a small network on digits (about 10 s), warms it up, runs every method, prints one table and draws figures.
    """
    from vcotta._util.files import write_json
    from vcotta._util.progress import display
    from vcotta.experiments.demo import demo_rows, run_demo
    from vcotta.report.tables import comparison

    check_out_folder(out)
    if json is not None:
        check_out_file(json)
    with display() as task:
        runs = run_demo(out, seed, task)
    if json is not None:
        write_json(json, demo_rows(runs))
    show(comparison(runs).rich())
    frost = runs[0].manifest["stream"]["frost"]
    typer.echo(
        "VCoTTA started from the warmed network, the others from the plain one; `bn (warmed)` shows what the warm-up "
        "alone earns."
    )
    typer.echo(
        f"Fifteen corruptions of 797 digits at severity 5, one after another, frost from {frost} textures. "
        f"Results and figures: {out}"
    )


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, or file.py:Class, to read what each of its options means.")
    ] = None,
) -> None:
    """List the methods: what each trains, needs and costs.

    With a name, what the method does, what each of its options means, its value, and where a data set has another.
    Options are set with `vcotta run --set OPTION=VALUE`; vcotta also has presets, `--set preset=paper`.
    """
    from dataclasses import asdict
    from inspect import getdoc

    from rich.table import Table

    from vcotta._util.plain_math import plain_docstring
    from vcotta.methods import (
        DATASETS,
        RECONSTRUCTION_NOTE,
        configure,
        find_method,
        import_method,
        list_methods,
        marked,
    )
    from vcotta.methods.class_mix import StreamSettings

    if name is not None:
        name = import_method(name)
        defaults = configure(name)
        typer.echo(f"{plain_docstring(getdoc(find_method(name)) or '')}\n")
        for heading, value in _about(find_method(name)).items():
            typer.echo(f"{heading}: {value}")
        common = [StreamSettings] if isinstance(defaults, StreamSettings) else []
        for settings in (type(defaults), *common):
            typer.echo(f"\n{plain_docstring(getdoc(settings) or '')}")
        typer.echo(f"\nDefaults: {defaults}")
        usual = asdict(defaults).items()
        for dataset in DATASETS:
            own = asdict(configure(name, dataset=dataset)).items() - usual
            if own:
                typer.echo(f"On {dataset}: {', '.join(f'{option}={value!r}' for option, value in sorted(own))}")
        if presets := find_method(name).presets:
            typer.echo(f"Presets: {', '.join(presets)}; choose one with --set preset=NAME.")
        return
    rows = {marked(name): _about(find_method(name)) for name in list_methods()}
    headings, note = list(next(iter(rows.values()))), RECONSTRUCTION_NOTE
    if table_console().width < _ALL_COLUMNS:
        headings, note = ["What it does"], f"{note}\nMore about a method: vcotta methods NAME"
    table = Table(caption=note, caption_justify="left")
    table.add_column("Method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for name, about in rows.items():
        table.add_row(name, *(about[heading] for heading in headings))
    show(table)


def _about(method: type[Adapter]) -> dict[str, str]:
    """What the table of methods says of one, by heading."""
    card = method.card
    return {
        "Venue": card.venue,
        "What it does": method.summary,
        "Trains": card.trains,
        "Needs of the source": card.source,
        "Cost of a batch": card.passes,
        "Written from": card.provenance,
        "Distributed": "yes" if card.distributed else "no",
    }


def info() -> None:
    """Print versions, device and cache folder.

    The parts of the cache folder are listed with their sizes.
    """
    import platform

    import numpy
    import torch

    from vcotta._util.files import cache_dir
    from vcotta.corruptions import frost_source

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    rows = {
        "vcotta": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "device": device,
        "cache folder": str(cache_dir()),
        **{
            f"  {part}": _size(cache_dir() / part)
            for part in ("data", "trained", "warmed", "prepared", "frost", "downloads")
        },
        "frost textures": frost_source(),
    }
    for key, value in rows.items():
        typer.echo(f"{key:<15} {value}")


def _size(folder: Path) -> str:
    """What a folder holds, in words."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return f"{sum(sizes) / 2**20:.1f} MiB in {len(sizes)} file{'s' * (len(sizes) != 1)}" if sizes else "empty"
