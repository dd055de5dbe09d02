"""How the command line shows errors: one line for the user's mistakes, a traceback where the user's own code failed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import fields
from types import FrameType
from typing import Any

from vcotta._util.errors import file_trouble

__all__ = ["describe", "fail", "is_from_users_code", "usage_message"]

_LIBRARIES = sys.stdlib_module_names | {
    *("vcotta", "torch", "numpy", "PIL", "safetensors", "sklearn", "scipy", "typer", "click", "rich", "matplotlib"),
    *("jinja2", "filelock", "fastapi", "starlette", "uvicorn", "ray", "torchvision", "timm", "tensorboard"),
}


def fail(message: str) -> None:
    """Print an error as one line and stop with exit code 2."""
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def describe(error: Exception) -> str:
    """Return an error in one line; one that vcotta did not raise itself comes with advice to see where it did."""
    if isinstance(error, OSError):
        return file_trouble(error)
    *_, last = _frames(error)
    return str(error) if _package(last) == "vcotta" else f"{error} Add --debug to see where this happened."


def is_from_users_code(error: BaseException) -> bool:
    """Whether an error, or one that caused it, passed through code that belongs neither to vcotta nor to a library."""
    seen: BaseException | None = error
    while seen is not None:
        if any(_package(frame) not in _LIBRARIES for frame in _frames(seen)):
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


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
