"""Runs on a disk that becomes full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from vcotta._util import tensorfile

from .small_run import checkpoints, is_whole, resume, resumed_from, run


def test_a_full_disk_stops_only_the_saving_and_gives_one_warning(tmp_path, whole, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tensorfile, "save_file", full)
    with pytest.warns(UserWarning, match="No checkpoint could be saved") as warned:
        run(tmp_path / "run")
    assert len(warned) == 1
    assert is_whole(tmp_path / "run", whole)


@contextmanager
def room() -> Iterator[Callable[[int | None], None]]:
    """Give a function that has the system refuse, within the block, what would make a file larger; None for no bound.

    As on a full disk, the part of a line that still fits is written.
    """
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    try:
        yield allow
    finally:
        allow(None)


WARNINGS = r"Records wait in memory|No checkpoint could be saved"


def test_records_that_do_not_fit_on_the_disk_are_written_when_there_is_space(tmp_path, whole) -> None:
    records, left = tmp_path / "run" / "records.jsonl", []

    def fill(done: int, *_: object) -> None:
        if done == 5:
            allow(records.stat().st_size + 100)
        if done == 7:
            left.append(records.read_bytes())
            allow(None)

    with room() as allow, pytest.warns(UserWarning, match=WARNINGS) as warned:
        assert len(run(tmp_path / "run", progress=fill).records) == 8
    assert [str(one.message)[:10] for one in warned] == ["Records wa", "No checkpo"]  # each of them once
    assert left[0].count(b"\n") == 5
    assert not left[0].endswith(b"\n")
    assert is_whole(tmp_path / "run", whole)


def test_a_run_that_ends_on_a_full_disk_says_so_and_can_be_resumed(tmp_path, whole) -> None:
    def fill(done: int, *_: object) -> None:
        if done == 5:
            allow((tmp_path / "run" / "records.jsonl").stat().st_size)

    refused = pytest.raises(OSError, match=r"reached its end, .* from batch 4")
    with room() as allow, pytest.warns(UserWarning, match=WARNINGS) as warned, refused:
        run(tmp_path / "run", progress=fill)
    assert len(warned) == 2
    assert not (tmp_path / "run" / "summary.json").exists()
    resume(tmp_path / "run")
    assert is_whole(tmp_path / "run", whole)
    assert resumed_from(tmp_path / "run") == [4]


def test_after_a_full_disk_the_last_good_checkpoint_is_used(tmp_path, whole, monkeypatch) -> None:
    save = tensorfile.save_file

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(done: int, *_: object) -> None:
        monkeypatch.setattr(tensorfile, "save_file", full if done >= 4 else save)
        if done == 7:
            raise RuntimeError("stop")

    with pytest.warns(UserWarning, match="it will resume from batch 4"), pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", progress=fill)
    assert checkpoints(tmp_path / "run") == ["2.safetensors", "4.safetensors"]
    monkeypatch.setattr(tensorfile, "save_file", save)
    resume(tmp_path / "run")
    assert is_whole(tmp_path / "run", whole)
    assert resumed_from(tmp_path / "run") == [4]
