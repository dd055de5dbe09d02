"""Ctrl-C between two steps: what was done can be saved before the program stops."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupt_held_back"]


@contextmanager
def interrupt_held_back(wanted: bool = True, told: str = "") -> Iterator[Callable[[], bool]]:
    """Hold a `KeyboardInterrupt` back until the block asks for it, or ends; a second one is raised where it comes.

    Only in the main thread, and only where Ctrl-C has its usual meaning: elsewhere the block runs as without.

    Args:
        wanted: Whether to do this at all.
        told: What to tell on standard error when an interrupt is held back, where that may take a while.

    Yields:
        A function that tells whether an interrupt came.

    Example:
        >>> with interrupt_held_back() as interrupted:
        ...     interrupted()
        False
    """
    usual = signal.default_int_handler
    here = threading.current_thread() is threading.main_thread()
    if not wanted or not here or signal.getsignal(signal.SIGINT) is not usual:
        yield lambda: False
        return
    came = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            usual(number, frame)
        came = True
        if told:
            print(told, file=sys.stderr)

    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        raise KeyboardInterrupt
