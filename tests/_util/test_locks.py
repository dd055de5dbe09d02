from __future__ import annotations

import errno
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from vcotta._util.locks import locked

fcntl = pytest.importorskip("fcntl")


def test_a_lock_is_held_for_the_block_and_leaves_nothing_behind(tmp_path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path, "busy"):
        assert path.exists()
        with pytest.raises(BlockingIOError, match="busy"), locked(path, "busy"):
            pass
        assert path.exists()
    assert not path.exists()
    with locked(path, "busy"):
        pass


def test_a_file_left_by_a_dead_process_is_no_lock(tmp_path) -> None:
    (tmp_path / ".lock").write_text("")
    with locked(tmp_path / ".lock", "busy"):
        pass


def test_a_lock_file_that_its_holder_removed_while_we_took_it_is_taken_again(tmp_path, monkeypatch) -> None:
    path, flock, taken = tmp_path / ".lock", fcntl.flock, []

    def removed_first(file, how) -> None:
        flock(file, how)
        if not taken:
            path.unlink()  # by its former holder, between our opening and our locking
        taken.append(file)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with locked(path, "busy"):
        assert len(taken) == 2
        assert path.exists()


@pytest.mark.parametrize(("code", "warning"), [(errno.ENOLCK, "cannot be locked"), (errno.ENOSYS, "not supported")])
def test_a_file_system_without_locks_gives_a_warning_and_the_work_continues(
    tmp_path, monkeypatch, code, warning
) -> None:
    done = []

    def unsupported(*_: object) -> None:
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match=warning), locked(tmp_path / ".lock", "busy"):
        done.append("work")
    assert done == ["work"]
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_is_refused_and_what_it_points_to_is_left_alone(tmp_path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to("../victim")
    refused = pytest.raises(ValueError, match=r"\.lock to be a lock file, but it is a symbolic link\. Remove it")
    with refused, locked(tmp_path / "run" / ".lock", "busy"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_lock_dies_with_a_killed_process_and_its_file_remains(tmp_path) -> None:
    path = tmp_path / ".lock"
    program = f"""
import os, signal
from vcotta._util.locks import locked
with locked({str(path)!r}, "busy"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    assert path.exists()
    with locked(path, "busy"):
        pass
    assert not path.exists()


def test_without_words_for_it_the_second_waits_for_the_first(tmp_path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / ".lock"):
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / ".lock"):
            waiting = pool.submit(second)
            assert not wait([waiting], timeout=0.2).done
            order.append("first")
        waiting.result(timeout=10)
    assert order == ["first", "second"]
