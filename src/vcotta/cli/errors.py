"""How the command line shows errors: one line for the user's mistakes, a traceback where the user's own code failed."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from vcotta._util.errors import file_trouble
from vcotta.cli.config_file import words_of

__all__ = ["describe", "fail", "is_from_users_code", "usage_message"]

_OURS = Path(__file__).resolve().parents[1]


def fail(message: str) -> None:
    """Print an error as one line and stop with exit code 2."""
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def describe(error: Exception) -> str:
    """Return an error in one line; one that vcotta did not raise itself comes with advice to see where it did."""
    if isinstance(error, OSError):
        return file_trouble(error)
    *_, last = _frames(error)
    if _is_ours(last):
        return str(error)
    said = str(error).strip() or type(error).__name__
    return f"{said}{'' if said.endswith(('.', '!', '?')) else '.'} Add --debug to see where this happened."


def is_from_users_code(error: BaseException) -> bool:
    """Whether an error, or one that caused it, passed through code that belongs neither to vcotta nor to a library.

    Installed packages are libraries, except those that registered a method.
    """
    seen: BaseException | None = error
    while seen is not None:
        if any(_is_users(frame) for frame in _frames(seen)):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


def usage_message(error: Any, words: Sequence[str]) -> str:
    """Return the message of a usage error; an unknown option that is a setting of the method gets what to write.

    Args:
        error: A usage error of typer.
        words: The words on the command line.
    """
    said, option, context = str(error.format_message()), getattr(error, "option_name", None), error.ctx
    if option is None or context is None or not any("--set" in one.opts for one in context.command.params):
        return said
    from vcotta.methods import find_method, list_methods

    name = option.lstrip("-").replace("-", "_")
    chosen = _value_of("--method", words)
    if chosen is None and (config := _value_of("--config", words)):
        chosen = _value_of("--method", words_of(Path(config), context.command.params))
    methods = [chosen] if chosen in list_methods() else list_methods()
    owner = next((one for one in methods if name in {field.name for field in fields(find_method(one).Config)}), None)
    if owner is None:
        return said
    value = _value_of(option, words) or "VALUE"
    return f"No such option: {option}. It is a setting of {owner}: write --set {name}={value}."


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The value of an option among the words of a command line."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(words):
            return words[place + 1]
    return None


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of a traceback, without generated code such as the ``__init__`` of a dataclass."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not frame.f_code.co_filename.startswith("<"):
            yield frame


def _is_ours(frame: FrameType) -> bool:
    return _file(frame).is_relative_to(_OURS)


def _is_users(frame: FrameType) -> bool:
    if _is_ours(frame):
        return False
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _packages_of_methods() or not any(map(_file(frame).is_relative_to, _library_folders()))


def _file(frame: FrameType) -> Path:
    return Path(os.path.realpath(frame.f_code.co_filename))


@functools.cache
def _library_folders() -> list[Path]:
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(os.path.realpath(path)) for path in (*installed, *site.getsitepackages(), site.getusersitepackages())]


def _packages_of_methods() -> set[str]:
    """The packages whose methods are registered, other than vcotta; an error may come before any is."""
    registry = sys.modules.get("vcotta.methods.registry")
    methods = registry.REGISTERED.values() if registry else ()
    return {method.__module__.partition(".")[0] for method in methods} - {"vcotta"}
