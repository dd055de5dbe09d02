"""Worker processes that do not outlive the process they work for."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing import connection

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """End this worker process when its parent is gone, however that came about; elsewhere, do nothing.

    A worker of a process pool waits for work for ever if its parent was killed, and keeps the locks of the run it was
    at, so that nobody could go on with it. What it wrote so far is whole: runs are made to be cut off anywhere.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="end-with-parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)  # nothing is to be tidied up: the queues lead nowhere, and locks go with the process
