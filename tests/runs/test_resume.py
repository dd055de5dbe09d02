"""Runs that are killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import pytest

from vcotta import build_adapter
from vcotta.data import load_digits
from vcotta.models.wide_resnet import digits_network
from vcotta.runs import runner
from vcotta.runs.run import Run
from vcotta.runs.runner import run_stream
from vcotta.streams.stream import ProtocolStream, make_stream

from . import small_run
from .small_run import Small, adapter, checkpoints, content, is_whole, resume, resumed_from, run


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes by signals")
@pytest.mark.filterwarnings("ignore:There is no good checkpoint", "ignore:The run in .* was stopped before")
def test_a_run_killed_at_any_moment_and_resumed_has_the_records_of_an_undisturbed_one(tmp_path, whole) -> None:
    script = [sys.executable, small_run.__file__, str(tmp_path)]
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


def test_a_resumed_run_equals_the_loaded_one_and_records_where_it_was_resumed(stopped, whole, monkeypatch) -> None:
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


def test_resuming_a_run_that_does_not_exist_starts_it(tmp_path, whole) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = resume(tmp_path / "new" / "run")
    assert done.manifest["resumed"] == []
    assert is_whole(tmp_path / "new" / "run", whole)


def test_a_finished_run_is_returned_as_it_is(tmp_path, monkeypatch) -> None:
    done = run(tmp_path / "run")
    monkeypatch.setattr(runner, "locked", None)  # not even that is written
    before = content(tmp_path / "run")
    untouched = adapter()
    assert run_stream(untouched, Small(), tmp_path / "run", resume=True) == done
    assert untouched.steps == 0
    assert content(tmp_path / "run") == before


def test_a_run_with_other_textures_of_frost_is_not_resumed(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    test = load_digits()[1]

    def stream() -> ProtocolStream:
        return make_stream("continual", test, ("fog", "frost"), batch_size=5, limit=10)

    model = digits_network(0).eval()
    done = run_stream(build_adapter("bn", model), stream(), tmp_path / "run")
    assert done.manifest["stream"]["frost"] == "procedural"
    monkeypatch.setattr("vcotta.streams.stream.frost_source", lambda: "photographs")
    with pytest.raises(ValueError, match=r"stream\.frost is 'procedural' there and 'photographs' here"):
        run_stream(build_adapter("bn", model), stream(), tmp_path / "run", resume=True)


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
