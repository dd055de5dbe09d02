"""Progress bars: one line a task, with a value and the time left."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console

__all__ = ["Progress", "display", "duration", "epoch_lines", "with_estimate"]

Progress = Callable[[int, int, float], None]
"""A function that long work calls as it proceeds: (done, total, value to show).

A value that is not-a-number is not shown, nor any value before something is done."""

_MEASURED_BATCHES = 5  # before the time of the rest is estimated
_MEASURED_SECONDS = 10.0  # or so much time, if batches are slow
_PLAIN_SECONDS = 60.0  # between two lines of a task where there is no terminal


@contextmanager
def display(console: Console | None = None) -> Iterator[Callable[[str, str], Progress]]:
    """Show progress bars while the block lasts, or plain lines where there is no terminal.

    Yields:
        A function ``task(label, value_format)`` that returns the `Progress` of one piece of work.

    Example:
        >>> import sys
        >>> with display(Console(file=sys.stdout)) as task:
        ...     progress = task("Training", "loss {:.2f}")
        ...     for epoch in range(1, 6):
        ...         progress(epoch, 5, 1 / epoch)
        Training: 1 of 5, loss 1.00
        Training: 5 of 5, loss 0.20
    """
    console = console or Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        yield lambda label, value_format: _plain(console, label, value_format)
        return
    columns = (
        bars.TextColumn("{task.description:<18}"),
        bars.BarColumn(bar_width=24),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[value]:<13}"),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(elapsed_when_finished=False),
    )
    shown = bars.Progress(*columns, console=console)

    def task(label: str, value_format: str) -> Progress:
        line: list[bars.TaskID] = []

        def progress(done: int, total: int, value: float) -> None:
            if not line:  # the line appears, and its clock starts, with the first call
                shown.start()
                line.append(shown.add_task(label, value=""))
            text = value_format.format(value) if done and not math.isnan(value) else ""
            shown.update(line[0], completed=done, total=total or None, value=text)

        return progress

    try:
        yield task
    finally:
        if shown.tasks:
            shown.stop()


def with_estimate(label: str, report: Progress) -> Progress:
    """Return ``report`` with one line added: how long the rest will take, measured on the first batches."""
    first: tuple[int, float] | None = None
    printed = False

    def progress(done: int, total: int, value: float) -> None:
        nonlocal first, printed
        report(done, total, value)
        now = time.monotonic()
        if first is None:
            first = done, now  # from here: the first batch takes longer than the others
            return
        batches, seconds = done - first[0], now - first[1]
        measured = batches >= _MEASURED_BATCHES or (batches and seconds >= _MEASURED_SECONDS)
        if measured and done < total and not printed:
            printed = True
            each = seconds / batches
            print(f"{label}: {duration(each * (total - done))} left, at {each:.2g} s a batch.", file=sys.stderr)

    return progress


def duration(seconds: float) -> str:
    """Return a length of time in words.

    Example:
        >>> duration(12), duration(100), duration(9000)
        ('about 12 s', 'about 2 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {max(1, seconds):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def epoch_lines(label: str) -> Progress:
    """Return a `Progress` for the end of each epoch that prints a line, at most one a second and always the last.

    Example:
        >>> from contextlib import redirect_stderr
        >>> with redirect_stderr(sys.stdout):
        ...     epoch_lines("Warm-up")(5, 5, 0.25)
        Warm-up: epoch 5 of 5, loss 0.250, 0 s
    """
    began, due = time.monotonic(), 0.0

    def progress(done: int, total: int, value: float) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due or done == total:
            due = now + 1
            print(f"{label}: epoch {done} of {total}, loss {value:.3f}, {now - began:.0f} s", file=sys.stderr)

    return progress


def _plain(console: Console, label: str, value_format: str) -> Progress:
    """Print the progress in plain lines, for a log."""
    due, ended = 0.0, False

    def progress(done: int, total: int, value: float) -> None:
        nonlocal due, ended
        now, end = time.monotonic(), 0 < total <= done
        if ended or (now < due and not end):
            return
        due, ended = now + _PLAIN_SECONDS, end
        text = f"{label}: {done}{f' of {total}' if total else ''}" if done else f"{label} begins"
        if done and not math.isnan(value):
            text += f", {value_format.format(value)}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return progress
