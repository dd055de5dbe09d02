"""The user's own code by name: ``package.module:name`` or ``path/to/file.py:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from vcotta._util.errors import unknown_name

__all__ = ["imported"]


@contextmanager
def imported(name: str, what: str, kind: str, fits: Callable[[Any], bool] = callable) -> Iterator[Any]:
    """Import an object by name; while the block lasts, modules can be imported from its folder too.

    Importing runs the module's code: give only code that you trust. Modules are looked for among the installed ones,
    then in the current folder.

    Args:
        name: ``package.module:name`` or ``path/to/file.py:name``.
        what: What the object is for, such as ``"network"``, for the error.
        kind: What the part after the colon is, such as ``"factory"``, for the error.
        fits: Which objects of the module to suggest if the name is unknown.

    Raises:
        ValueError: The module or the name is missing, or the import fails.

    Example:
        >>> with imported("math:sqrt", "root", "function") as function:
        ...     function(9.0)
        3.0
    """
    place, _, attribute = name.rpartition(":")
    if not (place and attribute.isidentifier()):
        raise ValueError(f"Expected a {what} as package.module:{kind} or file.py:{kind}, but got {name!r}.")
    is_file = place.endswith(".py")
    folder = str(Path(place).resolve().parent if is_file else Path.cwd())
    sys.path.append(folder)
    try:
        module = _import_file(Path(place)) if is_file else _import_module(place)
        if not hasattr(module, attribute):
            known = [key for key, value in vars(module).items() if fits(value) and not key.startswith("_")]
            raise unknown_name(f"{kind} in {place}", attribute, known)
        yield getattr(module, attribute)
    finally:
        sys.path.remove(folder)


def _import_module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ValueError(
                f"Expected {place!r} to be a module, but there is none of that name. Install it, run from its "
                "folder, or give its file: path/to/file.py:name."
            ) from error
        raise ValueError(_failed(place, str(error))) from error
    except Exception as error:
        raise ValueError(_failed(place, f"{type(error).__name__}: {error}")) from error


def _failed(place: object, why: str) -> str:
    return f"Expected to import {place}, but that failed: {why.rstrip('. ')}."


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path} to be a Python file, but there is no such file. Check the path.")
    path = path.resolve()
    # A unique and stable name: a file called resnet.py hides no other module, and its classes can be found again.
    name = f"{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(_failed(path, f"{type(error).__name__}: {error}")) from error
    return module
