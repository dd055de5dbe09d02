from __future__ import annotations

import builtins
import errno
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from vcotta.locks import locked

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


def test_a_lock_file_that_was_removed_while_it_was_taken_is_taken_anew(tmp_path, monkeypatch) -> None:
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


def test_a_platform_or_file_system_without_locks_is_told_and_work_goes_on(tmp_path, monkeypatch) -> None:
    done = []

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="cannot be locked"), locked(tmp_path / ".lock", "busy"):
        done.append("file system")
    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "fcntl")
    monkeypatch.setattr(
        builtins, "__import__", lambda name, *rest: real(name if name != "fcntl" else "no_fcntl", *rest)
    )
    with pytest.warns(UserWarning, match="cannot be locked"), locked(tmp_path / ".lock", "busy"):
        done.append("platform")
    assert done == ["file system", "platform"]
    assert list(tmp_path.iterdir()) == []


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
