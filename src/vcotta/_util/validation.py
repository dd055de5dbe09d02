"""Types and bounds of settings, declared with each field and checked in one place."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from vcotta._util.errors import unknown_name

__all__ = [
    "Bound",
    "Count",
    "NonNegative",
    "NonNegativeInt",
    "Positive",
    "Settings",
    "UnitInterval",
    "above",
    "at_least",
    "below",
    "between",
    "check_fields",
    "check_kind",
]


@dataclass(frozen=True)
class Bound:
    """A bound of a number, written inside ``Annotated``.

    Attributes:
        words: What the number must be, to follow "Expected `x` ".
        holds: Whether a number keeps the bound.
    """

    words: str
    holds: Callable[[float], bool]


def at_least(limit: float) -> Bound:
    """The number is ``limit`` or more."""
    return Bound(f"to be at least {limit}", lambda value: value >= limit)


def above(limit: float) -> Bound:
    """The number is more than ``limit``."""
    return Bound(f"to be more than {limit}", lambda value: value > limit)


def below(limit: float) -> Bound:
    """The number is less than ``limit``."""
    return Bound(f"to be less than {limit}", lambda value: value < limit)


def between(low: float, high: float) -> Bound:
    """The number is at least ``low`` and at most ``high``."""
    return Bound(f"to lie in [{low}, {high}]", lambda value: low <= value <= high)


NonNegative = Annotated[float, at_least(0)]
Positive = Annotated[float, above(0)]
UnitInterval = Annotated[float, between(0, 1)]
NonNegativeInt = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1)]


class Settings:
    """Base class of dataclasses whose fields are checked when one is made, see `check_fields`.

    A rule that concerns several fields goes into a ``__post_init__`` that first calls ``super().__post_init__()``.

    Example:
        >>> @dataclass(frozen=True)
        ... class Config(Settings):
        ...     lr: Positive = 1e-3
        ...     views: Annotated[int, between(1, 64)] | None = None
        >>> Config(lr=-1)
        Traceback (most recent call last):
        ValueError: Expected `lr` to be more than 0, but got -1.
        >>> Config(view=2)
        Traceback (most recent call last):
        ValueError: Expected the setting of Config to be one of lr, views, but got 'view'. Did you mean 'views'?
    """

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse an unknown name, before the dataclass does it without a suggestion."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # a dataclass, once it is decorated
        if odd := next((name for name in settings if name not in known), None):
            raise unknown_name(f"setting of {cls.__name__}", odd, known)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(config: Any) -> None:
    """Raise unless every field of a dataclass has its declared type and keeps its bounds; floats must be finite.

    Example:
        >>> from vcotta.methods.tent import TENTConfig
        >>> TENTConfig(lr="fast")
        Traceback (most recent call last):
        TypeError: Expected `lr` to be float, but got 'fast'.
    """
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        _check(field.name, getattr(config, field.name), _alternatives(hints[field.name]))


def check_kind(name: str, value: object, kind: type, advice: str = "") -> None:
    """Raise TypeError unless an argument is None or of a class.

    Example:
        >>> check_kind("size", "x", float, "Try 3.0.")
        Traceback (most recent call last):
        TypeError: Expected `size` to be a float, but got 'x'. Try 3.0.
    """
    if value is not None and not isinstance(value, kind):
        got = repr(value) if isinstance(value, str | int | float) else type(value).__name__
        raise TypeError(f"Expected `{name}` to be a {kind.__name__}, but got {got}. {advice}".rstrip())


def _check(name: str, value: Any, alternatives: list[tuple[Any, list[Bound]]]) -> None:
    broken = [
        [bound for bound in bounds if not bound.holds(value)] for hint, bounds in alternatives if _fits(value, hint)
    ]
    if [] in broken:
        return
    if broken:
        raise ValueError(f"Expected `{name}` {broken[0][0].words}, but got {value!r}.")
    hints = [hint for hint, _ in alternatives]
    choices = [choice for hint in hints if get_origin(hint) is Literal for choice in get_args(hint)]
    if choices and isinstance(value, str):
        raise unknown_name(name, value, [*choices, *(_name(hint) for hint in hints if get_origin(hint) is not Literal)])
    error = ValueError if isinstance(value, int | float) else TypeError
    raise error(f"Expected `{name}` to be {' or '.join(map(_name, hints))}, but got {value!r}.")


def _alternatives(hint: Any) -> list[tuple[Any, list[Bound]]]:
    """The types that a hint allows, each with its bounds."""
    if get_origin(hint) in (Union, UnionType):
        return [each for part in get_args(hint) for each in _alternatives(part)]
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        bounds = [extra for extra in extras if isinstance(extra, Bound)]
        return [(kind, [*own, *bounds]) for kind, own in _alternatives(inner)]
    return [(hint, [])]


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, get_origin(hint) or hint)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    return {NoneType: "None", float: "float", int: "a whole number", bool: "True or False"}.get(hint, str(hint))
