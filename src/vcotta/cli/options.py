"""What the commands share: their common options, and how values on the command line are read."""

from __future__ import annotations

import ast
from typing import Annotated, Any

import typer

__all__ = [
    "Dataset",
    "Device",
    "Limit",
    "Model",
    "Precision",
    "Seed",
    "Settings",
    "numbers",
    "pair",
    "parse_settings",
    "runtime_for",
    "set_threads",
    "show",
    "values",
]

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
Dataset = Annotated[str, typer.Option(help="digits, cifar10, cifar100, imagenet, or folder:DIR for class folders.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="Network: wrn-28-10, torchvision:NAME, package.module:factory ...; by default the data set's own."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default the GPU where there is one.")]
Precision = Annotated[str | None, typer.Option(help="fp32 or bf16; by default bf16 on a GPU.")]
Limit = Annotated[int | None, typer.Option(help="Use only this many images of each corruption.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="OPTION=VALUE", help="An option of the method; may be repeated.")
]


def runtime_for(device: str | None, precision: str | None) -> Any:
    """The device and precision asked for, or the best there are."""
    import torch

    from vcotta.runtime import Runtime

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    fast = device.startswith("cuda")
    return Runtime(device, precision or ("bf16" if fast else "fp32"), channels_last=fast)  # type: ignore[arg-type]


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


def pair(text: str, option: str) -> tuple[str, str]:
    """Split OPTION=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals and value):
        raise ValueError(f"Expected `{option}` to be OPTION=VALUE, but got {text!r}.")
    return key.strip().replace("-", "_"), value.strip()


def values(text: str) -> list[Any]:
    """Read values separated by commas: numbers, True, False and None as such, anything else as text."""
    return [_value(part.strip()) for part in text.split(",")]


def numbers(name: str, text: str) -> list[int]:
    """Read whole numbers separated by commas."""
    read = values(text)
    if not all(type(value) is int for value in read):
        raise ValueError(f"Expected `{name}` to be whole numbers separated by commas, but got {text!r}.")
    return read


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """Read every OPTION=VALUE into a dictionary."""
    return {key: _value(text) for key, text in (pair(entry, "--set") for entry in settings or [])}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
