"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

__all__ = [
    "Dataset",
    "Device",
    "Limit",
    "ListFile",
    "Method",
    "Model",
    "Overwrite",
    "Precision",
    "Seed",
    "Settings",
    "SourceLimit",
    "Subset",
    "Unsupported",
    "decimals",
    "interrupt_message",
    "numbers",
    "parse_grid",
    "parse_protocol",
    "parse_settings",
    "runtime_for",
    "show",
    "table_console",
]

Seed = Annotated[int, typer.Option(help="Seed of network, warm-up and adapter.", min=0)]
Dataset = Annotated[
    str,
    typer.Option(help="digits, cifar10, cifar100, imagenet, tiny-imagenet, or folder:DIR[@SIZE] for class folders."),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Network: wrn-28-10, torchvision:NAME, package.module:factory ...; by default the data set's own."
    ),
]
Method = Annotated[str, typer.Option(help="Method of `vcotta methods`, or your own as module:Class or file.py:Class.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32, bf16 or fp64; by default bf16 on a GPU.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
Limit = Annotated[int | None, typer.Option(help="Number of images of each corruption.")]
SourceLimit = Annotated[
    int | None,
    typer.Option(
        "--source-limit", help="Learn from this many source images only, the first ones; the warm-up is shorter."
    ),
]
Unsupported = Annotated[
    str | None,
    typer.Option(help="Layers that cannot be variational, such as attention of your own: error (default) or keep."),
]
Subset = Annotated[int | None, typer.Option(help="ImageNet: number of images, the same of each class.")]
ListFile = Annotated[
    Path | None, typer.Option("--list", help="ImageNet: text file that lists the images to use, one path a line.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="An option of the method; may be repeated.")
]

_PLAIN = {"true": True, "false": False, "none": None}


def runtime_for(device: str | None, precision: str | None) -> Any:
    """Return the runtime of the given device and precision; by default a GPU if there is one."""
    import torch

    from vcotta.nn.runtime import Runtime

    if device is not None and device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"Expected `--device` to be one this machine has, but got {device} and torch sees no GPU. "
            "Use --device cpu or install a CUDA build of torch."
        )
    return Runtime(device or ("cuda" if torch.cuda.is_available() else "cpu"), precision)  # type: ignore[arg-type]


def table_console() -> Any:
    """Return the console for tables; where there is no terminal, it is at least 200 columns wide instead of 80."""
    from rich.console import Console

    console = Console()
    return Console(width=None if console.is_terminal else max(200, console.width))


def show(table: Any) -> None:
    """Print a table on `table_console`."""
    table_console().print(table)


def _pair(text: str, option: str) -> tuple[str, str]:
    """Split OPTION=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        form = "OPTION=A,B,..." if option == "--grid" else "OPTION=VALUE"
        raise ValueError(f"Expected `{option}` to be {form}, but got {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def _values(text: str, words: tuple[Any, ...] = ()) -> list[Any]:
    """Parse comma-separated values: numbers, true, false and none; ``words`` and everything else as text."""
    return [_value(part.strip(), words) for part in text.split(",")]


def numbers(name: str, text: str) -> list[int]:
    """Parse comma-separated whole numbers."""
    read = _values(text)
    if not all(type(value) is int for value in read):
        raise ValueError(f"Expected `{name}` to be whole numbers separated by commas, but got {text!r}.")
    return read


def decimals(name: str, text: str) -> list[float]:
    """Parse comma-separated numbers, which may be fractions such as 1/10."""
    try:
        return [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"Expected `{name}` to be numbers separated by commas, but got {text!r}.") from error


@contextmanager
def interrupt_message(advice: str = "", kept: str = "") -> Iterator[None]:
    """Print what a `KeyboardInterrupt` says was saved, with ``advice``, or ``kept`` if it says nothing."""
    try:
        yield
    except KeyboardInterrupt as stop:
        said = str(stop)
        if message := (said if "the same command" in said else f"{said} {advice}".strip()) if stop.args else kept:
            typer.echo(message, err=True)
        raise


def parse_settings(settings: list[str] | None, method: str) -> dict[str, Any]:
    """Parse every OPTION=VALUE of a method."""
    pairs = [_pair(entry, "--set") for entry in settings or []]
    return {key: _value(text, _words(method, key)) for key, text in pairs}


def parse_protocol(settings: list[str] | None) -> dict[str, Any]:
    """Read every OPTION=VALUE of a protocol into a dictionary."""
    pairs = [_pair(entry, "--protocol-set") for entry in settings or []]
    return {key: _value(text, ()) for key, text in pairs}


def parse_grid(grid: list[str] | None, method: str) -> dict[str, list[Any]]:
    """Parse every OPTION=A,B,... of a method."""
    pairs = [_pair(entry, "--grid") for entry in grid or []]
    return {key: _values(text, _words(method, key)) for key, text in pairs}


def _words(method: str, option: str) -> tuple[Any, ...]:
    """The text values of a method's option, such as "none" of VCoTTA's sampling, which does not mean None."""
    from vcotta.methods import find_method, list_methods

    hints = get_type_hints(find_method(method).Config) if method in list_methods() else {}
    return get_args(hints.get(option))


def _value(text: str, words: tuple[Any, ...]) -> Any:
    if text in words:
        return text
    if text.lower() in _PLAIN:
        return _PLAIN[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
