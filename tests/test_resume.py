"""Runs that are killed and resumed. Run as a script, this file kills runs and says how that went, or resumes one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from vcotta import build_adapter, evaluate, run_writer, state_files
from vcotta import resume as vcotta_resume
from vcotta._messages import differences
from vcotta.evaluate import run_stream
from vcotta.resume import CHECKPOINTS, restore
from vcotta.runs import Run, read_manifest
from vcotta.streams import Batch

FILES = ["manifest.json", "records.jsonl", "summary.json", "timing.jsonl"]


class Small:
    """Eight batches of two domains, with a reset in between."""

    name = "small"

    def __len__(self) -> int:
        return 8

    def batches(self, start: int = 0):
        for index in range(start, len(self)):
            generator = torch.Generator().manual_seed(index)
            images, labels = torch.rand(4, 3, 8, 8, generator=generator), torch.arange(4)
            yield Batch(index, ("fog", "snow")[index // 5], 5, images, labels, reset=index == 5)

    def describe(self):
        return {"protocol": self.name}


def adapter(method: str = "cotta", seed: int = 0, weights: int = 0, **options):
    """A small adapter with momentum, a teacher and randomness of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(weights)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    settings = {"views": 1, "lr": 0.01, "threshold": 1.0} if method == "cotta" else {}
    return build_adapter(method, net.eval(), seed=seed, **(settings | options))


def run(out: Path, every: int | None = 2, **options) -> Run:
    return run_stream(adapter(), Small(), out, checkpoint_every=every, **options)


def resume(out: Path, **options) -> Run:
    return run(out, resume=True, **options)


# The script: processes that are killed.


def started(act: Callable[[], object]) -> int:
    """Start ``act`` in a process of its own and return that."""
    child = os.fork()
    if child:
        return child
    try:
        act()
        os._exit(0)
    finally:
        os._exit(1)


def end_of(child: int) -> int:
    """Wait for a process and say how it ended: 0 for well, -9 for killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(count: int, folder: Path) -> None:
    """Kill this process just before it writes to, makes, renames or removes its ``count``-th path in the folder."""
    seen = 0
    changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event in changes) and str(folder) in str(arguments[0]):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def kill_at_every_operation(folder: Path) -> list[int]:
    """Kill a run before each of its operations on files, until one has no more of them, and return their ends."""
    ends: list[int] = []
    while 0 not in ends:
        count = len(ends) + 1
        out = folder / f"operation-{count}"
        ends.append(end_of(started(lambda out=out, count=count: (die_at(count, out), run(out)))))
    return ends


def kill_at_some_records(folder: Path, wanted: tuple[int, ...]) -> list[int]:
    """Kill one run again and again, each time when so many of its records are there."""
    records = folder / "records.jsonl"

    def kill(count: int) -> int:
        def wait(done: int, *_: object) -> None:
            if done == count:
                signal.pause()

        child = started(lambda: resume(folder, progress=wait))
        while not records.exists() or records.read_bytes().count(b"\n") < count:
            time.sleep(0.001)
        os.kill(child, signal.SIGKILL)
        return end_of(child)

    return [kill(count) for count in wanted]


def kill_all(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    adapter()  # what torch imports late is imported now, once for all the processes to come
    ends = {
        "operations": kill_at_every_operation(folder),
        "records": kill_at_some_records(folder / "records", (1, 3, 4, 5, 7)),
    }
    print(json.dumps(ends))


# The tests.


@pytest.fixture
def whole(tmp_path) -> bytes:
    """The records of a run that nothing disturbed."""
    run(tmp_path / "whole", every=None)
    return (tmp_path / "whole" / "records.jsonl").read_bytes()


@pytest.fixture
def stopped(tmp_path) -> Path:
    """The folder of a run that failed after seven of eight batches, with checkpoints after four and six."""

    def fail(done: int, *_: object) -> None:
        if done == 7:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", progress=fail)
    assert checkpoints(tmp_path / "run") == ["4.safetensors", "6.safetensors"]
    return tmp_path / "run"


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / CHECKPOINTS).iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def resumed_from(folder: Path) -> list[int]:
    return [place["batch"] for place in json.loads((folder / "manifest.json").read_text())["resumed"]]


def is_whole(folder: Path, whole: bytes) -> bool:
    """Whether a run has the expected records, all of its files and none besides."""
    Run.load(folder)
    return sorted(path.name for path in folder.iterdir()) == FILES and content(folder)["records.jsonl"] == whole


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes by signals")
@pytest.mark.filterwarnings("ignore:There is no good checkpoint", "ignore:The run in .* was stopped before")
def test_a_run_killed_at_any_moment_and_resumed_has_the_records_of_an_undisturbed_one(tmp_path, whole) -> None:
    script = [sys.executable, __file__, str(tmp_path)]
    output = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    ends = json.loads(output)
    assert ends["records"] == [-signal.SIGKILL] * 5
    *killed, last = ends["operations"]
    assert (set(killed), last) == ({-signal.SIGKILL}, 0)
    assert len(killed) > 30
    for count in range(1, len(killed) + 1):
        folder = tmp_path / f"operation-{count}"
        resume(folder)
        assert is_whole(folder, whole), count
        assert len(resumed_from(folder)) <= 1
    resume(tmp_path / "records")
    assert is_whole(tmp_path / "records", whole)
    assert resumed_from(tmp_path / "records")[-1] == 6
    assert resumed_from(tmp_path / "records") == sorted(resumed_from(tmp_path / "records"))


def test_a_resumed_run_equals_what_is_loaded_and_says_where_it_went_on(stopped, whole, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/vcotta", "again"])
    seen = []
    done = resume(stopped, progress=lambda *numbers: seen.append(numbers[:2]))
    assert seen == [(6, 8), (7, 8), (8, 8)]
    assert is_whole(stopped, whole)
    assert Run.load(stopped) == done
    assert done.manifest["resumed"] == [{"batch": 6, "command": ["vcotta", "again"]}]
    assert done.manifest["command"] != ["vcotta", "again"]


def test_lines_behind_the_checkpoint_are_cut_off(stopped, whole) -> None:
    for name in ("records.jsonl", "timing.jsonl"):
        with (stopped / name).open("ab") as file:
            file.write(b'{"batch": 7, "dom')
    resume(stopped)
    assert is_whole(stopped, whole)


def test_a_run_that_is_not_there_is_started(tmp_path, whole) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = resume(tmp_path / "new" / "run")
    assert done.manifest["resumed"] == []
    assert is_whole(tmp_path / "new" / "run", whole)


def test_a_finished_run_is_returned_as_it_is(tmp_path, monkeypatch) -> None:
    done = run(tmp_path / "run")
    monkeypatch.setattr(evaluate, "locked", None)  # not even that is written
    before = content(tmp_path / "run")
    untouched = adapter()
    assert run_stream(untouched, Small(), tmp_path / "run", resume=True) == done
    assert untouched.steps == 0
    assert content(tmp_path / "run") == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # a bit of a weight, which safetensors does not notice
    path.write_bytes(data)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "a flipped bit": flip,
    "of another kind": lambda path: state_files.write_state(path, "other", {}),
    "without content": lambda path: state_files.write_state(path, "vcotta-run-1", {"run": 1}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_told_and_the_previous_one_used(stopped, whole, damage) -> None:
    DAMAGE[damage](stopped / CHECKPOINTS / "6.safetensors")
    with pytest.warns(UserWarning, match=r"6\.safetensors is not used.*cannot be read"):
        resume(stopped, every=None)
    assert is_whole(stopped, whole)
    assert resumed_from(stopped) == [4]


def test_without_a_good_checkpoint_the_run_starts_over_and_says_so(stopped, whole) -> None:
    for path in (stopped / CHECKPOINTS).iterdir():
        flip(path)
    with pytest.warns(UserWarning, match="is not used|starts over") as told:
        resume(stopped)
    messages = [str(warning.message) for warning in told]
    assert ["6.safetensors" in messages[0], "4.safetensors" in messages[1]] == [True, True]
    assert messages[2] == f"There is no good checkpoint in {stopped}: the run starts over."
    assert is_whole(stopped, whole)
    assert resumed_from(stopped) == []


def test_a_run_stopped_before_its_first_checkpoint_starts_over_and_is_not_called_damaged(stopped, whole) -> None:
    vcotta_resume.remove_checkpoints(stopped)
    with pytest.warns(UserWarning, match="was stopped before it had saved a state: the run starts over") as told:
        resume(stopped)
    assert not any("good checkpoint" in str(warning.message) for warning in told)
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
def test_what_is_no_fault_of_a_checkpoint_is_raised_and_costs_none(stopped, monkeypatch, fault) -> None:
    name, error = FAULTS[fault]
    going_on, errors = adapter(), [error]
    place = vcotta_resume if name == "read_state" else going_on
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
def test_a_checkpoint_of_another_run_is_not_used_and_the_reason_told(stopped, tmp_path, reason) -> None:
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


def test_differences_are_found_at_any_depth() -> None:
    assert differences({"a": 1, "b": {"c": [1]}}, {"a": 1, "b": {"c": [1]}}) == []
    assert differences({"b": {"c": [1]}}, {"a": 1, "b": {"c": [2]}}) == [
        "b.c is [2] there and [1] here",
        "a is 1 there and None here",
    ]


def test_two_processes_cannot_write_one_run(tmp_path, whole) -> None:
    def second(done: int, *_: object) -> None:
        with pytest.raises(BlockingIOError, match="another process is writing a run there"):
            resume(tmp_path / "run")
        with pytest.raises(BlockingIOError, match="another process is writing a run there"):
            run(tmp_path / "run", overwrite=True)

    run(tmp_path / "run", progress=second)
    assert is_whole(tmp_path / "run", whole)


def test_a_second_process_is_refused_while_the_first_runs(tmp_path, whole) -> None:
    told: list[subprocess.CompletedProcess[str]] = []

    def second(done: int, *_: object) -> None:
        if done == 3:
            script = [sys.executable, __file__, str(tmp_path / "run"), "resume"]
            told.append(subprocess.run(script, capture_output=True, text=True, check=False))

    run(tmp_path / "run", progress=second)
    assert told[0].returncode == 1
    assert "BlockingIOError" in told[0].stderr
    assert "another process is writing a run there" in told[0].stderr
    assert is_whole(tmp_path / "run", whole)


def test_a_full_disk_stops_only_the_saving_and_is_told_once(tmp_path, whole, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_files, "save_file", full)
    with pytest.warns(UserWarning, match="No checkpoint could be saved") as told:
        run(tmp_path / "run")
    assert len(told) == 1
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


TOLD = r"Records wait in memory|No checkpoint could be saved"


def test_records_that_find_no_room_wait_until_there_is_some(tmp_path, whole) -> None:
    records, left = tmp_path / "run" / "records.jsonl", []

    def fill(done: int, *_: object) -> None:
        if done == 5:
            allow(records.stat().st_size + 100)
        if done == 7:
            left.append(records.read_bytes())
            allow(None)

    with room() as allow, pytest.warns(UserWarning, match=TOLD) as told:
        assert len(run(tmp_path / "run", progress=fill).records) == 8
    assert [str(one.message)[:10] for one in told] == ["Records wa", "No checkpo"]  # each of them once
    assert left[0].count(b"\n") == 5
    assert not left[0].endswith(b"\n")
    assert is_whole(tmp_path / "run", whole)


def test_a_run_that_ends_on_a_full_disk_says_so_and_can_be_resumed(tmp_path, whole) -> None:
    def fill(done: int, *_: object) -> None:
        if done == 5:
            allow((tmp_path / "run" / "records.jsonl").stat().st_size)

    refused = pytest.raises(OSError, match=r"came to its end, .* from batch 4")
    with room() as allow, pytest.warns(UserWarning, match=TOLD) as told, refused:
        run(tmp_path / "run", progress=fill)
    assert len(told) == 2
    assert not (tmp_path / "run" / "summary.json").exists()
    resume(tmp_path / "run")
    assert is_whole(tmp_path / "run", whole)
    assert resumed_from(tmp_path / "run") == [4]


def test_after_a_full_disk_the_last_good_checkpoint_is_used(tmp_path, whole, monkeypatch) -> None:
    save = state_files.save_file

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(done: int, *_: object) -> None:
        monkeypatch.setattr(state_files, "save_file", full if done >= 4 else save)
        if done == 7:
            raise RuntimeError("stop")

    with pytest.warns(UserWarning, match="it will resume from batch 4"), pytest.raises(RuntimeError, match="stop"):
        run(tmp_path / "run", progress=fill)
    assert checkpoints(tmp_path / "run") == ["2.safetensors", "4.safetensors"]
    monkeypatch.setattr(state_files, "save_file", save)
    resume(tmp_path / "run")
    assert is_whole(tmp_path / "run", whole)
    assert resumed_from(tmp_path / "run") == [4]


def test_checkpoints_are_no_more_frequent_than_asked(tmp_path, monkeypatch) -> None:
    now, saved = [0.0], []
    monkeypatch.setattr(run_writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(run_writer, "save_checkpoint", lambda *arguments: saved.append(arguments[3]))

    def tick(*_: object) -> None:
        now[0] += 10

    run(tmp_path / "run", every=1, checkpoint_seconds=25, progress=tick)
    assert saved == [4, 7]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"out": None, "resume": True}, "`out`"),
        ({"out": None, "checkpoint_every": 1}, "`out`"),
        ({"out": "x", "checkpoint_every": 0}, "`checkpoint_every` to be at least 1"),
        ({"out": "x", "resume": True, "overwrite": True}, "got both"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=text):
        run_stream(adapter(), Small(), **options)
    assert list(tmp_path.iterdir()) == []


def test_records_without_their_manifest_are_not_taken_for_a_run_to_start(stopped) -> None:
    (stopped / "manifest.json").unlink()
    with pytest.raises(FileExistsError, match="stopped before its end"):
        resume(stopped)
    assert checkpoints(stopped)


def test_overwriting_removes_the_checkpoints_of_the_old_run(stopped, whole) -> None:
    run(stopped, every=None, overwrite=True)
    assert is_whole(stopped, whole)


if __name__ == "__main__":
    (resume if sys.argv[2:] == ["resume"] else kill_all)(Path(sys.argv[1]))
