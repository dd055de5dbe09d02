"""Two processes that want to write one run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from . import small_run
from .small_run import is_whole, resume, run


def test_two_processes_cannot_write_one_run(tmp_path, whole) -> None:
    def second(done: int, *_: object) -> None:
        with pytest.raises(BlockingIOError, match="another process is writing a run there"):
            resume(tmp_path / "run")
        with pytest.raises(BlockingIOError, match="another process is writing a run there"):
            run(tmp_path / "run", overwrite=True)

    run(tmp_path / "run", progress=second)
    assert is_whole(tmp_path / "run", whole)


def test_a_second_process_is_refused_while_the_first_runs(tmp_path, whole) -> None:
    ended: list[subprocess.CompletedProcess[str]] = []

    def second(done: int, *_: object) -> None:
        if done == 3:
            script = [sys.executable, small_run.__file__, str(tmp_path / "run"), "resume"]
            ended.append(subprocess.run(script, capture_output=True, text=True, check=False))

    run(tmp_path / "run", progress=second)
    assert ended[0].returncode == 1
    assert "BlockingIOError" in ended[0].stderr
    assert "another process is writing a run there" in ended[0].stderr
    assert is_whole(tmp_path / "run", whole)
