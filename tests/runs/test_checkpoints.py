"""Checkpoints of a run: which are used, and which are refused."""

from __future__ import annotations

import errno
import shutil

import pytest
import torch

from vcotta._util.errors import differences
from vcotta._util.tensorfile import write_state
from vcotta.runs import checkpoints as run_checkpoints
from vcotta.runs import writer
from vcotta.runs.checkpoints import CHECKPOINTS, restore
from vcotta.runs.run import read_manifest
from vcotta.runs.runner import run_stream

from .small_run import Small, adapter, checkpoints, content, flip, is_whole, resume, resumed_from, run

DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a flipped bit": flip,
    "of another kind": lambda path: write_state(path, "other", {}),
    "without content": lambda path: write_state(path, "vcotta-run-1", {"run": 1}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_gives_a_warning_and_the_previous_one_is_used(stopped, whole, damage) -> None:
    DAMAGE[damage](stopped / CHECKPOINTS / "6.safetensors")
    with pytest.warns(UserWarning, match=r"6\.safetensors is not used.*cannot be read"):
        resume(stopped, every=None)
    assert is_whole(stopped, whole)
    assert resumed_from(stopped) == [4]


def test_without_a_good_checkpoint_the_run_starts_over_and_says_so(stopped, whole) -> None:
    for path in (stopped / CHECKPOINTS).iterdir():
        flip(path)
    with pytest.warns(UserWarning, match="is not used|starts over") as warned:
        resume(stopped)
    messages = [str(warning.message) for warning in warned]
    assert ["6.safetensors" in messages[0], "4.safetensors" in messages[1]] == [True, True]
    assert messages[2] == f"There is no good checkpoint in {stopped}: the run starts over."
    assert is_whole(stopped, whole)
    assert resumed_from(stopped) == []


def test_a_run_stopped_before_its_first_checkpoint_starts_over_and_is_not_called_damaged(stopped, whole) -> None:
    run_checkpoints.remove_checkpoints(stopped)
    with pytest.warns(UserWarning, match="was stopped before its first checkpoint: the run starts over") as warned:
        resume(stopped)
    assert not any("good checkpoint" in str(warning.message) for warning in warned)
    assert is_whole(stopped, whole)


def test_records_that_are_not_those_before_the_checkpoint_are_noticed(stopped, whole) -> None:
    lines = (stopped / "records.jsonl").read_bytes().splitlines(keepends=True)
    (stopped / "records.jsonl").write_bytes(b"".join(lines[:5]))
    with pytest.warns(UserWarning, match=r"6\.safetensors is not used.*records\.jsonl to begin with"):
        resume(stopped, every=None)
    assert is_whole(stopped, whole)
    assert resumed_from(stopped) == [4]


def test_a_refused_checkpoint_is_set_aside_and_not_removed(stopped) -> None:
    flip(stopped / CHECKPOINTS / "6.safetensors")
    with pytest.warns(UserWarning, match="is not used"):
        restore(stopped, read_manifest(stopped), adapter())
    assert checkpoints(stopped) == ["4.safetensors", "6.refused"]


FAULTS = {
    "unreadable": ("read_state", OSError(errno.EIO, "Input/output error")),
    "no room on the device": ("load_state_dict", torch.OutOfMemoryError("out of memory")),
}


def raised(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_that_are_no_fault_of_a_checkpoint_are_raised(stopped, monkeypatch, fault) -> None:
    name, error = FAULTS[fault]
    going_on, errors = adapter(), [error]
    place = run_checkpoints if name == "read_state" else going_on
    real = getattr(place, name)
    monkeypatch.setattr(place, name, lambda *a: real(*a) if not errors else raised(errors.pop()))  # at first only
    with pytest.raises(type(error)):
        restore(stopped, read_manifest(stopped), going_on)
    assert checkpoints(stopped) == ["4.safetensors", "6.safetensors"]


class Other(Small):
    name = "other"


FOREIGN = {
    "method is 'cotta' there and 'tent' here": (lambda: adapter("tent"), Small),
    "config.lr is 0.01 there and 0.02 here": (lambda: adapter(lr=0.02), Small),
    "seed is 0 there and 1 here": (lambda: adapter(seed=1), Small),
    "weights_sha256 is ": (lambda: adapter(weights=1), Small),
    "stream.protocol is 'small' there and 'other' here": (adapter, Other),
}


@pytest.mark.parametrize("reason", FOREIGN)
def test_a_checkpoint_of_another_run_is_not_used_and_the_warning_gives_the_reason(stopped, tmp_path, reason) -> None:
    make, stream = FOREIGN[reason]
    run_stream(make(), stream(), tmp_path / "expected")
    out = tmp_path / "foreign"
    stop = {"progress": lambda done, *_: 1 // (3 - done)}
    with pytest.raises(ZeroDivisionError):
        run_stream(make(), stream(), out, checkpoint_every=2, **stop)
    shutil.copy(stopped / CHECKPOINTS / "6.safetensors", out / CHECKPOINTS)
    with pytest.warns(UserWarning, match=rf"6\.safetensors is not used.*another run.*{reason}"):
        done = run_stream(make(), stream(), out, resume=True)
    assert [place["batch"] for place in done.manifest["resumed"]] == [2]
    assert (out / "records.jsonl").read_bytes() == (tmp_path / "expected" / "records.jsonl").read_bytes()


@pytest.mark.parametrize("reason", FOREIGN)
@pytest.mark.parametrize("finished", [False, True])
def test_another_run_in_the_folder_is_neither_resumed_nor_replaced(stopped, reason, finished) -> None:
    make, stream = FOREIGN[reason]
    if finished:
        resume(stopped)
    before = content(stopped) if finished else checkpoints(stopped)
    with pytest.raises(ValueError, match=f"holds another: .*{reason}"):
        run_stream(make(), stream(), stopped, resume=True)
    assert (content(stopped) if finished else checkpoints(stopped)) == before


def test_checkpoints_are_no_more_frequent_than_asked(tmp_path, monkeypatch) -> None:
    now, saved = [0.0], []
    monkeypatch.setattr(writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(writer, "save_checkpoint", lambda *arguments: saved.append(arguments[3]))

    def tick(*_: object) -> None:
        now[0] += 10

    run(tmp_path / "run", every=1, checkpoint_seconds=25, progress=tick)
    assert saved == [3, 6]  # progress is called before the first batch, too


def test_differences_are_found_at_any_depth() -> None:
    assert differences({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [1]}}) == []
    assert differences({"b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}}) == [
        "b.c is [2] there and [1] here",
        "a is 1 there and None here",
    ]
