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

from vcotta._messages import unknown_name

__all__ = ["imported"]


@contextmanager
def imported(name: str, what: str, kind: str, fits: Callable[[Any], bool] = callable) -> Iterator[Any]:
    """Yield what a name stands for, while more can be imported from where it was found.

    The module is imported, which runs it: give only what you would run yourself. Modules are looked for in the current
    folder too, after everything installed.

    Args:
        name: ``package.module:name`` or ``path/to/file.py:name``.
        what: What the user asked for by it, for the error.
        kind: What the part after the colon is, for the error.
        fits: What may be suggested for it where there is none of that name.

    Raises:
        ValueError: The module or the name in it is not there, or importing it fails.

    Example:
        >>> with imported("math:sqrt", "root", "function") as function:
        ...     function(9.0)
        3.0
    """
    place, _, attribute = name.rpartition(":")
    if not (place and attribute.isidentifier()):
        raise ValueError(f"Expected a {what} as package.module:{kind} or file.py:{kind}, but got {name!r}.")
    is_file = place.endswith(".py")
    with _also_importing_from(Path(place).resolve().parent if is_file else Path.cwd()):
        module = _import_file(Path(place)) if is_file else _import_module(place)
        if not hasattr(module, attribute):
            known = [key for key, value in vars(module).items() if fits(value) and not key.startswith("_")]
            raise unknown_name(f"{kind} in {place}", attribute, known)
        yield getattr(module, attribute)


@contextmanager
def _also_importing_from(folder: Path) -> Iterator[None]:
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import_module(place: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ValueError(
                f"Expected {place!r} to be a module that can be imported, but there is none. Install it, run from its "
                "folder, or give its file: path/to/file.py:name."
            ) from error
        raise ValueError(f"Expected to import {place}, but that fails: {error}.") from error
    except Exception as error:
        raise ValueError(f"Expected to import {place}, but that fails: {type(error).__name__}: {error}.") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"Expected a Python file, but {path} does not exist.")
    path = path.resolve()
    # A name of its own, the same each time: a file called resnet.py hides nobody's module, and networks whose class
    # it defines can be found again.
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
        raise ValueError(f"Expected to import {path}, but that fails: {type(error).__name__}: {error}.") from error
    return module
