"""What is refused of settings: values of another type than the one they are declared with."""

from __future__ import annotations

import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vcotta._messages import unknown_name

__all__ = ["check_fields"]


def check_fields(config: Any) -> None:
    """Raise unless every field of a config has the type it is declared with; floats must be finite.

    Example:
        >>> from vcotta.methods.tent import TENTConfig
        >>> TENTConfig(lr="fast")
        Traceback (most recent call last):
        TypeError: Expected `lr` to be float, but got 'fast'.
    """
    hints = get_type_hints(type(config))
    for field in fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if _fits(value, hint):
            continue
        parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for part in parts if get_origin(part) is Literal for choice in get_args(part)]
        if choices and isinstance(value, str):
            others = [_name(part) for part in parts if get_origin(part) is not Literal]
            raise unknown_name(field.name, value, [*choices, *others])
        if isinstance(value, int | float):
            raise ValueError(f"Expected `{field.name}` to be {' or '.join(map(_name, parts))}, but got {value!r}.")
        raise TypeError(f"Expected `{field.name}` to be {' or '.join(map(_name, parts))}, but got {value!r}.")


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return {NoneType: "None", float: "float", int: "a whole number", bool: "True or False"}.get(hint, str(hint))
