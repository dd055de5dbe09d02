"""The command line: each command is a few lines that call the library."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from vcotta._version import __version__

__all__ = ["app", "main"]

_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="vcotta",
    help="Continual test-time adaptation: a classifier that adjusts itself to fog, noise or another camera.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="See which data is there, and fetch more.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
Dataset = Annotated[str, typer.Option(help="Data set; digits comes with the package.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="An option of the method; may be repeated.")
]


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    warnings.showwarning = _note
    try:
        code = app(prog_name="vcotta", standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError) as error:
        if os.environ.get("VCOTTA_DEBUG"):
            raise
        _fail(str(error))
    sys.exit(code)


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning is a note to the user, without the source line that raised it."""
    print(f"Note: {message}", file=sys.stderr)


def _fail(message: str) -> None:
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vcotta {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for results and figures.")] = Path("demo"),
    seed: Seed = 0,
    json: Annotated[Path | None, typer.Option(help="Write the table as JSON to this file too.")] = None,
) -> None:
    """Watch five methods adapt to fifteen corruptions.

    Trains a small network on digits (about 10 s), warms it up, runs every method, prints one table and draws figures.
    """
    from vcotta.experiments.demo import run_demo
    from vcotta.files import write_json
    from vcotta.report.progress import display
    from vcotta.report.tables import comparison, rows

    _one_thread()
    with display() as task:
        runs = run_demo(out, seed, task)
    if json is not None:
        write_json(json, rows(runs))
    _print(comparison(runs).rich())
    typer.echo(f"Fifteen corruptions of 797 digits at severity 5, one after another. Results and figures: {out}")


@app.command()
def methods() -> None:
    """List the methods with their options."""
    from dataclasses import fields

    from rich.table import Table

    from vcotta.methods import METHODS

    table = Table()
    for heading in ("Method", "What it does", "Options"):
        table.add_column(heading, overflow="fold")
    for name, method in METHODS.items():
        options = ", ".join(f"{field.name}={field.default}" for field in fields(method.Config))
        table.add_row(name, method.summary, options or "none")
    _print(table)


@app.command()
def corrupt(
    source: Annotated[
        Path, typer.Argument(help="An image, a folder of images, or an .npy file (uint8, N x H x W x 3).")
    ],
    name: Annotated[str, typer.Option(help="Corruption, such as fog; see the list in the README.")],
    out: Annotated[Path, typer.Option(help="Image, folder or .npy file to write, like the input.")],
    severity: Annotated[int, typer.Option(help="1 (mild) to 5 (severe).")] = 5,
    seed: Seed = 0,
) -> None:
    """Corrupt images as CIFAR-10-C and ImageNet-C do."""
    from vcotta.data.folders import corrupt_files

    count = corrupt_files(source, out, name, severity, seed)
    typer.echo(f"Wrote {count} image{'s' * (count != 1)} to {out}")


@app.command()
def warmup(
    out: Annotated[Path, typer.Option(help="File for the warmed network (safetensors).")],
    dataset: Dataset = "digits",
    seed: Seed = 0,
) -> None:
    """Make a source network variational (Algorithm 1).

    Trains the data set's network, warms it up on the same data, and saves the result for `vcotta run --weights`.
    """
    from vcotta.bayes import save_warmed
    from vcotta.experiments.digits import WARM_UP, train_digits, warm_up_digits
    from vcotta.report.progress import display

    _check_dataset(dataset)
    _one_thread()
    with display() as task:
        model = train_digits(seed, task("Training", "loss {:.3f}"))
        warmed = warm_up_digits(model, seed, task("Warm-up", "loss {:.3f}"))
    save_warmed(warmed, out, dataset=dataset, seed=seed, epochs=WARM_UP.epochs)
    typer.echo(f"Wrote the warmed network to {out}")


@app.command()
def run(
    method: Annotated[str, typer.Option(help="Method; `vcotta methods` lists them.")],
    out: Annotated[Path, typer.Option(help="Folder for the files of the run.")],
    dataset: Dataset = "digits",
    seed: Seed = 0,
    severity: Annotated[int, typer.Option(help="1 (mild) to 5 (severe).")] = 5,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Warmed network from `vcotta warmup`, for vcotta.")] = None,
    settings: Settings = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is already in the folder.")
    ] = False,
) -> None:
    """Run one method through the fifteen corruptions.

    Every batch is recorded in the folder: manifest.json, records.jsonl, timing.jsonl, summary.json.
    """
    from vcotta.corruptions import STANDARD, frost_source
    from vcotta.data.digits import DIGITS_BATCH
    from vcotta.evaluate import check_folder, run_stream
    from vcotta.experiments.digits import OPTIONS, digits_adapter, digits_network_for, digits_stream
    from vcotta.methods import configure
    from vcotta.report.progress import display
    from vcotta.report.tables import by_corruption, comparison

    _check_dataset(dataset)
    options = _parse(settings)
    configure(method, **(OPTIONS.get(method, {}) | options))  # a mistake is told before any training
    check_folder(out, overwrite)
    stream = digits_stream(seed, STANDARD, severity, DIGITS_BATCH if batch_size is None else batch_size, limit)
    _one_thread()
    with display() as task:
        model = digits_network_for(method, seed, weights, task)
        adapter = digits_adapter(method, model, seed, **options)
        facts = {"dataset": dataset, "frost": frost_source()}
        done = run_stream(
            adapter, stream, out, progress=task(method, "error {:.1%}"), manifest=facts, overwrite=overwrite
        )
    _print(comparison([done]).rich())
    _print(by_corruption([done]).rich())
    typer.echo(f"{stream} Files: {out}")


@app.command()
def tune(
    method: Annotated[str, typer.Option(help="Method; `vcotta methods` lists them.")],
    out: Annotated[Path, typer.Option(help="JSON file for what was found.")],
    dataset: Dataset = "digits",
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="OPTION=A,B,...", help="Values to try of an option; may be repeated."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds to average over, separated by commas.")] = "0",
    severities: Annotated[str, typer.Option(help="Severities of the corruptions, separated by commas.")] = "5",
    trials: Annotated[int | None, typer.Option(help="Try only this many combinations, drawn at random.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")] = None,
    table: Annotated[int | None, typer.Option(help="Severity constants: 32, 64 or 224; by default by size.")] = None,
) -> None:
    """Search a method's options on held-out corruptions.

    These are the four extra ones: speckle_noise, gaussian_blur, spatter, saturate. The fifteen that are reported are
    never looked at.
    """
    from vcotta.corruptions import EXTRA
    from vcotta.experiments.tuning import SPACES, tune
    from vcotta.files import write_json
    from vcotta.methods import configure
    from vcotta.report.progress import display

    _check_dataset(dataset)
    configure(method)
    space = {key: _values(text) for key, text in (_pair(entry, "--grid") for entry in grid or [])} or SPACES.get(method)
    if not space:
        raise ValueError(f"Expected a method with options, but {method} has none to search.")
    numbers = {"seeds": _numbers("seeds", seeds), "severities": _numbers("severities", severities)}
    _one_thread()
    with display() as task:
        found = tune(
            method,
            space,
            **numbers,
            trials=trials,
            limit=limit,
            table=table,
            task=task,
        )
    about = {"method": method, "dataset": dataset, "corruptions": list(EXTRA), "table": table, **numbers}
    write_json(out, about | {"trials": found})
    best = found[0]
    chosen = " ".join(f"--set {key}={value}" for key, value in best["options"].items())
    typer.echo(f"Best of {len(found)}: error {best['error']:.2f} %, NLL {best['nll']:.3f} with {chosen}")
    typer.echo(f"All trials: {out}")


@app.command()
def info() -> None:
    """Print versions, device and cache folder."""
    import platform

    import numpy
    import torch

    from vcotta.corruptions import frost_source
    from vcotta.files import cache_dir

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    rows = {
        "vcotta": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "device": device,
        "cache folder": str(cache_dir()),
        "frost textures": frost_source(),
    }
    for key, value in rows.items():
        typer.echo(f"{key:<15} {value}")


@data_app.command("list")
def data_list() -> None:
    """Say which data is there."""
    from vcotta.corruptions import frost_source

    typer.echo("digits   1 000 + 797 images, 32x32, 10 classes; comes with scikit-learn")
    typer.echo(f"frost    {frost_source()} textures")


@data_app.command("fetch")
def data_fetch(name: Annotated[str, typer.Argument(help="What to fetch: frost.")]) -> None:
    """Fetch the frost photographs, checked by hash.

    They are the Apache-2.0 textures of the original benchmark; without them a procedural texture is used.
    """
    from vcotta._messages import unknown_name
    from vcotta.data.frost import fetch_frost

    if name != "frost":
        raise unknown_name("name", name, ("frost",))
    typer.echo(f"The frost textures are in {fetch_frost()}")


def _check_dataset(name: str) -> None:
    from vcotta._messages import unknown_name

    if name != "digits":
        raise unknown_name("dataset", name, ("digits",))


def _one_thread() -> None:
    """One torch thread: small networks run no faster with more, and results do not depend on the machine's cores."""
    import torch

    torch.set_num_threads(1)


def _print(table: Any) -> None:
    from rich.console import Console

    console = Console()
    # A pipe has no width: give the table all it needs rather than cut it at 80 columns.
    Console(width=None if console.is_terminal else max(200, console.width)).print(table)


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise ValueError(f"Expected `{option}` to be OPTION=VALUE, but got {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _values(text: str) -> list[Any]:
    return [_value(part.strip()) for part in text.split(",")]


def _numbers(name: str, text: str) -> list[int]:
    values = _values(text)
    if not all(type(value) is int for value in values):
        raise ValueError(f"Expected `{name}` to be whole numbers separated by commas, but got {text!r}.")
    return values


def _parse(settings: list[str] | None) -> dict[str, Any]:
    return {key: _value(value) for key, value in (_pair(entry, "--set") for entry in settings or [])}
