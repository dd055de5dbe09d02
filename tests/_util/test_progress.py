from __future__ import annotations

import io

import pytest
from rich.console import Console

from vcotta._util import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_at_the_start_one_a_minute_and_one_at_the_end(clock) -> None:
    file = io.StringIO()
    with progress.display(Console(file=file)) as task:
        report = task("[Training]", "loss {:.2f}")
        assert file.getvalue() == ""
        report(0, 9, 0.0)
        assert file.getvalue() == "[Training] begins\n"
        for done in range(1, 9):
            clock[0] += 25.0
            report(done, 9, 1 / done)
        report(9, 9, 0.1)
        report(9, 9, 0.1)
    assert file.getvalue().splitlines()[1:] == [
        "[Training]: 3 of 9, loss 0.33",
        "[Training]: 6 of 9, loss 0.17",
        "[Training]: 9 of 9, loss 0.10",
    ]


def test_a_log_shows_work_whose_end_is_unknown(clock) -> None:
    file = io.StringIO()
    with progress.display(Console(file=file)) as task:
        task("Fetching", "{:.0f} bytes")(512, 0, 512)
    assert file.getvalue() == "Fetching: 512, 512 bytes\n"


def test_a_terminal_gets_bars() -> None:
    file = io.StringIO()
    with progress.display(Console(file=file, force_terminal=True, width=120)) as task:
        report = task("Training", "loss {:.2f}")
        report(0, 2, 0.0)
        report(2, 2, 0.5)
    assert "2/2" in file.getvalue()
    assert "loss 0.50" in file.getvalue()
    assert "loss 0.00" not in file.getvalue()
    assert "begins" not in file.getvalue()


def test_a_quiet_console_stays_quiet(capsys) -> None:
    with progress.display(Console(quiet=True)) as task:
        task("Training", "loss {:.2f}")(1, 1, 0.5)
    assert capsys.readouterr() == ("", "")


def test_the_rest_is_estimated_once_from_the_first_batches_without_the_very_first(clock, capsys) -> None:
    heard = []
    report = progress.with_estimate("Warm-up", lambda *numbers: heard.append(numbers))
    for step in range(1, 101):
        clock[0] += 60.0 if step == 1 else 1.5  # the first batch compiles
        report(step, 100, 0.5)
    assert len(heard) == 100
    assert capsys.readouterr().err == "Warm-up: about 2 min left, at 1.5 s a batch.\n"


def test_lines_of_epochs_are_at_most_one_a_second(clock, capsys) -> None:
    report = progress.epoch_lines("Warm-up")
    for epoch in range(1, 31):
        clock[0] += 0.1
        report(epoch, 30, 1.0)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert lines[-1] == "Warm-up: epoch 30 of 30, loss 1.000, 3 s"
