"""Methods from the user's own code, by name."""

from __future__ import annotations

from typing import Any

from vcotta.imports import imported
from vcotta.methods import METHODS, Adapter

__all__ = ["known_method"]


def known_method(name: str) -> str:
    """Return the name by which `build_adapter` knows a method; one of the user's own is imported and made known first.

    Args:
        name: One of `list_methods`, or ``package.module:Class`` or ``path/to/file.py:Class`` of an `Adapter`.

    Raises:
        ValueError: There is no such module or class, it cannot be imported, or its name is another method's.
        TypeError: It is no `Adapter`.

    Example:
        >>> known_method("tent"), known_method("vcotta.methods:TENT")
        ('tent', 'tent')
    """
    if name.endswith(".py"):
        raise ValueError(f"Expected the name of a method, but got the file {name}. Name its class, too: {name}:Class.")
    if ":" not in name:
        return name
    with imported(name, "method", "Class", _is_method) as method:
        if not _is_method(method):
            raise TypeError(f"Expected {name} to be a class derived from vcotta.Adapter, but got {method!r}.")
    other = METHODS.setdefault(method.name, method)
    if (other.__module__, other.__qualname__) != (method.__module__, method.__qualname__):
        raise ValueError(f"Expected a method with a name of its own in {name}, but {method.name!r} is taken.")
    METHODS[method.name] = method
    known: str = method.name
    return known


def _is_method(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Adapter) and value is not Adapter
