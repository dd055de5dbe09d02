"""Locks that say which process uses which stream of a shared folder, and notes that ask for a stream."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from filelock import FileLock

from vcotta.serve import claims
from vcotta.serve.claims import Claims

HOLD = """
import sys, time
from pathlib import Path
from vcotta.serve.claims import Claims
held = Claims(Path(sys.argv[1]))
print(held.take("a"), flush=True)
time.sleep(60)
"""


def test_a_stream_is_held_by_one_process_and_the_lock_ends_with_it_when_it_is_killed(tmp_path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as holder:
        assert holder.stdout.readline() == "True\n"
        mine = Claims(tmp_path)
        assert not mine.take("a")
        assert not mine.ask("a")
        assert mine.take("b")
        holder.kill()
    assert mine.ask("a")
    assert mine.take("a")
    assert mine.asked() == []  # the note for the process that was killed is gone
    mine.close()
    assert list(tmp_path.iterdir()) == []


def test_a_note_reaches_the_holder_and_ends_with_the_hand_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(claims, "LOOK_SECONDS", 0.0)
    one, other = Claims(tmp_path), Claims(tmp_path)
    assert one.take("a")
    assert one.take("a")  # again by the one that has it
    assert one.asked() == []
    assert not other.ask("a")
    assert other.asked() == []
    assert one.asked() == ["a"]
    one.release("a")
    assert other.ask("a")
    assert other.take("a")
    assert (one.asked(), other.asked()) == ([], [])
    assert not one.take("a")


def test_it_looks_for_notes_at_most_five_times_a_second(tmp_path, monkeypatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(claims.time, "monotonic", lambda: now[0])
    one, other = Claims(tmp_path), Claims(tmp_path)
    one.take("a")
    assert one.asked() == []
    other.ask("a")
    assert one.asked() == []
    now[0] += 0.3
    assert one.asked() == ["a"]


def test_asking_for_a_free_stream_leaves_no_file(tmp_path) -> None:
    one = Claims(tmp_path)
    assert one.ask("a")
    (tmp_path / "b").touch()  # of a process that was killed
    assert one.ask("b")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch) -> None:
    def fail(self: FileLock, *_: object, **__: object) -> None:
        raise NotImplementedError("no flock here")

    monkeypatch.setattr(FileLock, "acquire", fail)
    with pytest.raises(OSError, match=r"file system with locks.*no flock here.*--state"):
        Claims(tmp_path)
