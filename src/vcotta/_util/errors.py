"""Error messages that say what was expected, what was found and what to do; warnings printed as notes."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["counted", "differences", "file_trouble", "nearest", "notes", "unknown_name"]

_USUAL = {
    "learningrate": "lr",
    "stepsize": "lr",
    "batchnorm": "bn",
    "batchnormalization": "bn",
    "norm": "bn",
    "entropyminimization": "tent",
    "noadaptation": "source",
    "none": "source",
    "baseline": "source",
    "optim": "optimizer",
    "nviews": "views",
    "numviews": "views",
    "augmentations": "views",
    "naugmentations": "views",
    "mirror": "flip",
    "hflip": "flip",
    "horizontalflip": "flip",
    "ema": "beta",
    "restoration": "restore",
    "loader": "source",
    "dataloader": "source",
    "trainloader": "source",
    "sourceloader": "source",
    "sourcedata": "source",
    "traindata": "source",
    "randomseed": "seed",
    "nepochs": "epochs",
    "numepochs": "epochs",
    "warmupepochs": "epochs",
}
"""Names of others, without spaces, hyphens and underscores, and ours."""

_LONG = 12
"""A list of more names than this follows the suggestion, which it would hide."""


def notes() -> Callable[..., None]:
    """Return a `warnings.showwarning` that prints each warning once, as a note without its source line."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            print(f"Note: {message}", file=sys.stderr)
        shown.add(str(message))

    return show


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun in the singular or plural.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(3, "batch", "batches")
        ('1 run', '2 runs', '3 batches')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def file_trouble(error: OSError) -> str:
    """Explain an error of the operating system about a file or folder.

    Example:
        >>> file_trouble(FileNotFoundError(2, "No such file or directory", "net.pt"))
        'No such file: net.pt. Check the path.'
    """
    name = error.filename
    if error.errno is None or name is None:
        return error.strerror or str(error)
    match error:
        case FileNotFoundError():
            return f"No such file: {name}. Check the path."
        case FileExistsError() | NotADirectoryError():
            return f"Expected {name} to be a folder, but it is a file. Give another path."
        case IsADirectoryError():
            return f"Expected {name} to be a file, but it is a folder. Give another path."
        case PermissionError():
            return f"No permission to read or write {name}. Check its permissions."
    return f"Could not use {name}: {error.strerror}."


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is not on a list, which suggests the most similar one.

    ``kind`` is an argument such as ``"method"``, or words such as ``"option of tent"``.

    Example:
        >>> str(unknown_name("method", "cota", ["cotta", "tent"]))
        "Expected `method` to be one of cotta, tent, but got 'cota'. Did you mean 'cotta'?"
        >>> str(unknown_name("option of tent", "speed", ["lr", "optimizer"]))
        "Expected the option of tent to be one of lr, optimizer, but got 'speed'."
    """
    names = list(known)
    what = f"`{kind}`" if kind.isidentifier() else f"the {kind}"
    if not names:
        return ValueError(f"There is no {kind}, but got {name!r}.")
    hint, parts = "", str(name).split()
    if len(parts) > 1 and set(parts) <= set(names):
        hint = f" Several names are separated by commas: {','.join(parts)}."
    elif near := nearest(str(name).lower(), names):
        hint = f" Did you mean {near!r}?"
    if hint and len(names) > _LONG:
        return ValueError(
            f"Expected {what} to be one of {len(names)} names, but got {name!r}.{hint} All names: {', '.join(names)}."
        )
    return ValueError(f"Expected {what} to be one of {', '.join(names)}, but got {name!r}.{hint}")


def nearest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """Return the name that others use ``name`` for, else the most similar one, else one that begins with it.

    Example:
        >>> nearest("learning_rate", ["lr", "optimizer"]), nearest("optimiser", ["lr", "optimizer"])
        ('lr', 'optimizer')
    """
    if (usual := _USUAL.get(re.sub(r"[ _-]", "", name))) in names:
        return usual
    originals = {other.lower(): other for other in reversed(names)}
    near = difflib.get_close_matches(name, originals, 1, cutoff)
    if not near and len(name) > 1:
        near = [other for other in originals if other.startswith(name)]
    return originals[near[0]] if near else None


def differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> list[str]:
    """Describe each difference between two nested dictionaries, such as manifests or settings.

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
