"""One display for whatever takes long: a line a task, with what it measures and how long it still needs."""

from __future__ import annotations

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

__all__ = ["Report", "display"]

Report = Callable[[int, int, float], None]
"""What long work calls as it goes: (done, total, a value to show)."""


@contextmanager
def display(console: Console | None = None) -> Iterator[Callable[[str, str], Report]]:
    """Show progress bars while the block lasts.

    Yields:
        A function that starts a line: ``task(label, value_format)`` returns the `Report` of a piece of work, whose
        value is shown by the format, for example ``task("VCoTTA", "error {:.1%}")``.

    Example:
        >>> import io
        >>> with display(Console(file=io.StringIO())) as task:
        ...     report = task("Training", "loss {:.2f}")
        ...     report(1, 2, 0.7)
    """
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[value]:<13}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    progress = Progress(*columns, console=console or Console(stderr=True))

    def task(label: str, value_format: str) -> Report:
        line: list[TaskID] = []

        def report(done: int, total: int, value: float) -> None:
            if not line:  # a line appears, and its clock starts, with its first report
                progress.start()
                line.append(progress.add_task(label, value=""))
            progress.update(line[0], completed=done, total=total or None, value=value_format.format(value))

        return report

    try:
        yield task
    finally:
        if progress.tasks:
            progress.stop()
