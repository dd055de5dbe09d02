"""Warnings that point at the line of the caller, however deep in the package they arise."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]

_INSIDE = {"vcotta", "torch", "contextlib"}
"""Packages whose frames are passed over: this one, and those whose decorators and contexts lie between its frames."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn as `warnings.warn` does, as if from the first frame outside the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
