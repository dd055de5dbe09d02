"""One display for whatever takes long: a line a task, with what it measures and how long it still needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["PLAIN_SECONDS", "Report", "display"]

Report = Callable[[int, int, float], None]
"""What long work calls as it goes: (done, total, a value to show).

Not-a-number is not shown, nor any value with nothing done yet."""

PLAIN_SECONDS = 60.0
"""Where there is no terminal, a task writes a line at its start and its end, between them one in so many seconds."""


@contextmanager
def display(console: Console | None = None) -> Iterator[Callable[[str, str], Report]]:
    """Show progress bars while the block lasts, or where there is no terminal a plain line now and then.

    Yields:
        A function that starts a line: ``task(label, value_format)`` returns the `Report` of a piece of work, whose
        value is shown by the format, for example ``task("VCoTTA", "error {:.1%}")``.

    Example:
        >>> import sys
        >>> with display(Console(file=sys.stdout)) as task:
        ...     report = task("Training", "loss {:.2f}")
        ...     for epoch in range(1, 6):
        ...         report(epoch, 5, 1 / epoch)
        Training: 1 of 5, loss 1.00
        Training: 5 of 5, loss 0.20
    """
    console = console or Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda label, value_format: _plain(console, label, value_format)
        return
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[value]:<13}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    progress = Progress(*columns, console=console)

    def task(label: str, value_format: str) -> Report:
        line: list[TaskID] = []

        def report(done: int, total: int, value: float) -> None:
            if not line:  # a line appears, and its clock starts, with its first report
                progress.start()
                line.append(progress.add_task(label, value=""))
            shown = value_format.format(value) if done and not math.isnan(value) else ""
            progress.update(line[0], completed=done, total=total or None, value=shown)

        return report

    try:
        yield task
    finally:
        if progress.tasks:
            progress.stop()


def _plain(console: Console, label: str, value_format: str) -> Report:
    """The report of a task in plain lines, for a log."""
    due, ended = 0.0, False

    def report(done: int, total: int, value: float) -> None:
        nonlocal due, ended
        now, end = time.monotonic(), 0 < total <= done
        if ended or (now < due and not end):
            return
        due, ended = now + PLAIN_SECONDS, end
        far = f"{done} of {total}" if total else f"{done}"
        text = f"{label}: {far}" if done else f"{label} begins"
        if done and not math.isnan(value):
            text += f", {value_format.format(value)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return report
