"""Delays Ctrl-C until a step is complete, so that its result can be saved."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupt_held_back"]


@contextmanager
def interrupt_held_back(wanted: bool = True, message: str = "") -> Iterator[Callable[[], bool]]:
    """Hold back a `KeyboardInterrupt` until the end of the block; a second one is raised at once.

    Only in the main thread, and only where Ctrl-C has Python's own handler: other handlers are kept, and where Ctrl-C
    is ignored, as under ``nohup``, it stays ignored.

    Args:
        wanted: False to run the block as it is.
        message: Printed on standard error when an interrupt is held back.

    Yields:
        A function that returns whether an interrupt is waiting.

    Example:
        >>> with interrupt_held_back() as interrupted:
        ...     interrupted()
        False
    """
    usual = signal.default_int_handler
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not wanted or not in_main_thread or signal.getsignal(signal.SIGINT) is not usual:
        yield lambda: False
        return
    waiting = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            usual(number, frame)
        waiting = True
        if message:
            print(message, file=sys.stderr)

    signal.signal(signal.SIGINT, hold)
    try:
        yield lambda: waiting
    finally:
        signal.signal(signal.SIGINT, usual)
    if waiting:
        raise KeyboardInterrupt
