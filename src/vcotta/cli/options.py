"""What the commands share: their common options, and how values on the command line are read."""

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
    "Subset",
    "decimals",
    "interruptions_told",
    "numbers",
    "parse_grid",
    "parse_settings",
    "runtime_for",
    "set_threads",
    "show",
]

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
Dataset = Annotated[
    str, typer.Option(help="digits, cifar10, cifar100, imagenet, or folder:DIR[@SIZE] for class folders.")
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Network: wrn-28-10, torchvision:NAME, package.module:factory ...; by default the data set's own."
    ),
]
Method = Annotated[
    str,
    typer.Option(help="Method; `vcotta methods` lists them; one of your own as module:Class or file.py:Class."),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU where there is one.")]
Precision = Annotated[str | None, typer.Option(help="fp32, bf16 or fp64; by default bf16 on a GPU.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is already there.")]
Limit = Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")]
Subset = Annotated[int | None, typer.Option(help="ImageNet: use only this many images, the same number of each class.")]
ListFile = Annotated[
    Path | None, typer.Option("--list", help="ImageNet: use the images this text file lists, one path a line.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="An option of the method; may be repeated.")
]


_PLAIN = {"true": True, "false": False, "none": None}


def runtime_for(device: str | None, precision: str | None) -> Any:
    """The device and precision asked for, or the best there are."""
    import torch

    from vcotta.runtime import Runtime

    return Runtime(device or ("cuda" if torch.cuda.is_available() else "cpu"), precision)  # type: ignore[arg-type]


def set_threads(dataset: str) -> None:
    """One torch thread for the small network of the digits, which is no faster with more."""
    import torch

    if dataset == "digits":
        torch.set_num_threads(1)


def show(table: Any) -> None:
    """Print a table; a pipe has no width, so there it gets all it needs rather than being cut at 80 columns."""
    from rich.console import Console

    console = Console()
    Console(width=None if console.is_terminal else max(200, console.width)).print(table)


def _pair(text: str, option: str) -> tuple[str, str]:
    """Split OPTION=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        form = "OPTION=A,B,..." if option == "--grid" else "OPTION=VALUE"
        raise ValueError(f"Expected `{option}` to be {form}, but got {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def _values(text: str, words: tuple[Any, ...] = ()) -> list[Any]:
    """Read values separated by commas: numbers, true, false and none as such, ``words`` and all else as text."""
    return [_value(part.strip(), words) for part in text.split(",")]


def numbers(name: str, text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    read = _values(text)
    if not all(type(value) is int for value in read):
        raise ValueError(f"Expected `{name}` to be whole numbers separated by commas, but got {text!r}.")
    return read


def decimals(name: str, text: str) -> list[float]:
    """Read numbers separated by commas; a part may be written as 1/10."""
    try:
        return [float(Fraction(part.strip())) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"Expected `{name}` to be numbers separated by commas, but got {text!r}.") from error


@contextmanager
def interruptions_told(advice: str = "", kept: str = "") -> Iterator[None]:
    """Print what a `KeyboardInterrupt` tells of work that was kept; on its own way out it would be lost.

    Args:
        advice: To be added to it.
        kept: To be printed in its place where it tells nothing.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if told := f"{stop} {advice}".strip() if stop.args else kept:
            typer.echo(told, err=True)
        raise


def parse_settings(settings: list[str] | None, method: str) -> dict[str, Any]:
    """Read every OPTION=VALUE of a method into a dictionary."""
    pairs = [_pair(entry, "--set") for entry in settings or []]
    return {key: _value(text, _words(method, key)) for key, text in pairs}


def parse_grid(grid: list[str] | None, method: str) -> dict[str, list[Any]]:
    """Read every OPTION=A,B,... of a method into a dictionary."""
    pairs = [_pair(entry, "--grid") for entry in grid or []]
    return {key: _values(text, _words(method, key)) for key, text in pairs}


def _words(method: str, option: str) -> tuple[Any, ...]:
    """The words a method's option may be, such as "none" of VCoTTA's sampling, which is then no None."""
    from vcotta.methods import METHODS

    hints = get_type_hints(METHODS[method].Config) if method in METHODS else {}
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
