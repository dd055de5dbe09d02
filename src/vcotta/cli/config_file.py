"""`--config FILE.toml`: the words of a command in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from vcotta._util.errors import unknown_name

__all__ = ["ConfigFile", "ConfiguredCommand", "words_of"]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        help="Options from a TOML file, such as limit = 100 or [set] lr = 0.01; those on the command line win.",
    ),
]


class ConfiguredCommand(TyperCommand):
    """A command whose words from ``--config`` come before those of the command line, so that the latter win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the file, then those given."""
        found: list[str] = []
        for place, word in enumerate(args):
            if word == "--config" and place + 1 < len(args):
                found += words_of(Path(args[place + 1]), self.params)
            elif word.startswith("--config="):
                found += words_of(Path(word.partition("=")[2]), self.params)
        return super().parse_args(ctx, found + args)


def words_of(path: Path, params: list[Any]) -> list[str]:
    """Return a TOML file as words of a command with these parameters.

    A key is an option without its dashes. ``true`` and ``false`` are for flags, a list stands for values separated by
    commas, and the tables ``[set]`` and ``[protocol-set]`` for repeated ``--set`` and ``--protocol-set``.

    Raises:
        ValueError: The file is not TOML, or a key is no option.
    """
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Expected {path} to be a TOML file, but it cannot be read: {error}.") from error
    options = {name.removeprefix("--"): param for param in params for name in param.opts if name.startswith("--")}
    known = [name for name in options if name not in ("config", "help")]
    words = []
    for key, value in content.items():
        name = key.replace("_", "-")
        if name not in known:
            hint = "" if "set" not in known else " Settings of the method go below a line [set]."
            raise ValueError(f"{unknown_name(f'option in {path}', key, known)}{hint}")
        words += _words(name, value, options[name])
    return words


def _words(name: str, value: Any, param: Any) -> list[str]:
    if param.is_flag:
        if not isinstance(value, bool):
            raise ValueError(f"Expected `{name}` to be true or false, but got {value!r}.")
        return [f"--{name}"] if value else list(param.secondary_opts)
    if isinstance(value, Mapping):
        if not param.multiple:
            raise ValueError(f"Expected `{name}` to be one value, but got a table of {', '.join(value) or 'nothing'}.")
        return [f"--{name}={key}={_text(one)}" for key, one in value.items()]
    if isinstance(value, list):
        return [f"--{name}={_text(one)}" for one in value] if param.multiple else [f"--{name}={_text(value)}"]
    return [f"--{name}={_text(value)}"]


def _text(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
