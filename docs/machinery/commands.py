"""The command line's reference, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.main import get_command

from studies.markdown import table
from vcotta.cli import app


def commands() -> Iterator[tuple[str, Any]]:
    """Yield each command with its full name, ``vcotta run``."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner, nested in getattr(command, "commands", {"": command}).items():
            yield f"vcotta {name} {inner}".rstrip(), nested


def commands_text() -> str:
    """Return a table of all commands, then a section for each: what it does, and its arguments and options."""
    rows = [(f"[`{name}`](#{_anchor(name)})", _first_line(command.help)) for name, command in commands()]
    return "\n\n".join(
        [table(["Command", "What it does"], rows, left=2), *map(_section, *zip(*commands(), strict=True))]
    )


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    usage = command.get_usage(context).removeprefix("Usage: ")
    records = [record for part in command.params if (record := part.get_help_record(context))]
    rows = [(_code(words), _plain(text)) for words, text in records if not words.startswith("--help")]
    shown = table(["Argument or option", "Meaning"], rows, left=2)
    options = f'<div class="meanings" markdown>\n\n{shown}\n\n</div>' if rows else "It has no options."
    return "\n\n".join([f"## {name}", _paragraphs(command.help), f"```text\n{usage}\n```", options])


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _first_line(help_text: str) -> str:
    return _plain(help_text.strip().split("\n\n")[0])


def _paragraphs(help_text: str) -> str:
    return "\n\n".join(_plain(part) for part in help_text.strip().split("\n\n"))


def _plain(text: str) -> str:
    """Return text on one line in which nothing is taken for markup but `code`; options are shown as code."""
    joined = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"(?<![`\w-])(--?[a-z][\w-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", joined)


def _code(words: str) -> str:
    return f"`{words}`".replace("|", "\\|")
