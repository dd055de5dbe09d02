"""What the whole package tells its user: errors by what was expected, what came and what to do, warnings as notes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["counted", "differences", "file_trouble", "notes", "unknown_name"]


def notes() -> Callable[..., None]:
    """Return what takes the place of `warnings.showwarning`: each warning once, as a note without its source line.

    Example:
        >>> import contextlib
        >>> show = notes()
        >>> with contextlib.redirect_stderr(sys.stdout):
        ...     show("It is cold."), show("It is cold.")
        Note: It is cold.
        (None, None)
    """
    told: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in told:
            print(f"Note: {message}", file=sys.stderr)
        told.add(str(message))

    return show


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number of things in words.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(3, "batch", "batches")
        ('1 run', '2 runs', '3 batches')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def file_trouble(error: OSError) -> str:
    """Say what is wrong with a file or folder, where Python says no more than a number and a name.

    Example:
        >>> file_trouble(FileNotFoundError(2, "No such file or directory", "net.pt"))
        'Expected net.pt to be there, but there is no such file or folder. Look at its name.'
        >>> file_trouble(FileExistsError("Expected something else."))
        'Expected something else.'
    """
    name = error.filename
    if error.errno is None or name is None:
        return error.strerror or str(error)
    match error:
        case FileNotFoundError():
            return f"Expected {name} to be there, but there is no such file or folder. Look at its name."
        case FileExistsError() | NotADirectoryError():
            return f"Expected {name} to be a folder, but it is a file. Choose another name."
        case IsADirectoryError():
            return f"Expected {name} to be a file, but it is a folder. Choose another name."
        case PermissionError():
            return f"Expected to be allowed to use {name}, but it may not be read or written. Look at its permissions."
    return f"Expected {name} to be usable, but the system says: {error.strerror}."


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """Build the error for a name that is not on a list, suggesting the nearest one.

    Args:
        kind: What the name stands for, for example ``"method"``, or in words ``"option of tent"``.
        name: The name that was given.
        known: The names that would have been right.

    Returns:
        A ``ValueError`` for the caller to raise.

    Example:
        >>> str(unknown_name("method", "cota", ["cotta", "tent"]))
        "Expected `method` to be one of cotta, tent, but got 'cota'. Did you mean 'cotta'?"
        >>> str(unknown_name("option of tent", "speed", ["lr", "optimizer"]))
        "Expected the option of tent to be one of lr, optimizer, but got 'speed'."
    """
    names = list(known)
    what = f"`{kind}`" if kind.isidentifier() else f"the {kind}"
    text = f"Expected {what} to be one of {', '.join(names)}, but got {name!r}."
    near = _nearest(str(name).lower(), names)
    return ValueError(f"{text} Did you mean {near!r}?" if near else text)


def _nearest(name: str, names: list[str]) -> str | None:
    """The name that was meant: a slip away, or a slip for every four letters, or the first that begins so."""
    near = min(names, key=lambda other: _slips(name, other.lower()), default="")
    if _slips(name, near.lower()) <= min(max(1, len(name) // 4), len(name) - 1):
        return near
    return next((other for other in names if len(name) > 1 and other.lower().startswith(name)), None)


def _slips(one: str, other: str) -> int:
    """How many letters were missed, added, mistaken or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one):
        before, last, row = row, before, [i + 1]
        for j, b in enumerate(other):
            row.append(min(before[j + 1] + 1, row[j] + 1, before[j] + (a != b)))
            if i and j and a == other[j - 1] and b == one[i - 1]:
                row[-1] = min(row[-1], last[j - 1] + 1)
    return row[-1]


def differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> list[str]:
    """Return what differs between two manifests, settings or parts of them, in words.

    Example:
        >>> differences({"method": "bn", "config": {"lr": 0.1}}, {"method": "bn", "config": {"lr": 0.2}})
        ['config.lr is 0.2 there and 0.1 here']
    """
    found = []
    for key in dict.fromkeys((*ours, *theirs)):
        here, there = ours.get(key), theirs.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            found += differences(here, there, f"{prefix}{key}.")
        elif here != there:
            found.append(f"{prefix}{key} is {_short(there)} there and {_short(here)} here")
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
