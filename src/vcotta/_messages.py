"""What the whole package tells its user: errors by what was expected, what came and what to do, warnings as notes."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["show_note", "unknown_name"]


def show_note(message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning as a note, without the source line that raised it; takes the place of `warnings.showwarning`."""
    print(f"Note: {message}", file=sys.stderr)


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """Build the error for a name that is not on a list, suggesting the nearest one.

    Args:
        kind: What the name stands for, for example ``"method"``.
        name: The name that was given.
        known: The names that would have been right.

    Returns:
        A ``ValueError`` for the caller to raise.

    Example:
        >>> str(unknown_name("method", "cota", ["cotta", "tent"]))
        "Expected `method` to be one of cotta, tent, but got 'cota'. Did you mean 'cotta'?"
    """
    names = list(known)
    text = f"Expected `{kind}` to be one of {', '.join(names)}, but got {name!r}."
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return ValueError(f"{text} Did you mean {near[0]!r}?" if near else text)
