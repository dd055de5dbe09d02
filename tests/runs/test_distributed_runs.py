"""Runs written by several processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vcotta.methods import distribute
from vcotta.nn.distributed import World
from vcotta.runs.checkpoints import CHECKPOINTS
from vcotta.runs.run import Run
from vcotta.runs.runner import run_stream
from vcotta.streams.stream import Batch

from ..distributed import adapter, images, together


class Small:
    """Eight batches, the last one short."""

    name = "small"

    def __len__(self) -> int:
        return 8

    def batches(self, start: int = 0):
        for index in range(start, len(self)):
            n = 6 if index < 7 else 1
            yield Batch(index, "fog", 5, images(index, n), torch.arange(n) % 4, reset=index == 5)

    def describe(self):
        return {"protocol": self.name}


def run(out: Path | None, world: World | None = None, **options: Any) -> Run:
    one = adapter("cotta", **options.pop("adapter", {}))
    if world is not None:
        distribute(one, world)
    return run_stream(one, Small(), out, **options)


def check_records(found: list[dict[str, Any]]) -> None:
    expected = run(None).records
    assert [record["batch"] for record in found] == list(range(8))
    for ours, theirs in zip(expected, found, strict=True):
        assert ours["predictions"] == theirs["predictions"]
        assert ours["nll"] == pytest.approx(theirs["nll"], abs=1e-9)
        assert ours["last"] == pytest.approx(theirs["last"], abs=1e-9)


def test_two_processes_write_one_run_and_both_return_it(tmp_path) -> None:
    out = tmp_path / "run"
    found = together(lambda world: run(out, world).records, tmp_path)
    assert sorted(path.name for path in out.iterdir()) == [
        "manifest.json",
        "records.jsonl",
        "summary.json",
        "timing.jsonl",
    ]
    check_records(Run.load(out).records)
    assert found[0] == found[1] == Run.load(out).records
    manifest = Run.load(out).manifest
    assert manifest["hardware"].startswith("2 processes, each ")
    assert manifest["distributed"] == {"processes": 2, "backend": "gloo"}
    again = together(lambda world: run(out, world, resume=True).records, tmp_path)  # finished: as it is
    assert again == found


def stop_after(count: int) -> Callable[..., None]:
    def stop(done: int, *_: object) -> None:
        if done == count:
            os._exit(9)

    return stop


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_a_run_resumes_with_another_number_of_processes(before, after, tmp_path) -> None:
    out = tmp_path / "run"
    ends = together(lambda world: run(out, world, checkpoint_every=2, progress=stop_after(4)), tmp_path, before)
    assert ends == [9] * before
    assert list((out / CHECKPOINTS).iterdir())
    found = together(lambda world: run(out, world, resume=True).records, tmp_path, after)
    check_records(Run.load(out).records)
    assert all(records == Run.load(out).records for records in found)
    manifest = Run.load(out).manifest
    assert manifest["distributed"]["processes"] == before
    again = manifest["resumed"][0]
    assert again["batch"] == 4
    assert again.get("distributed", {"processes": before})["processes"] == after


def test_when_a_process_ends_the_others_stop_with_a_message_and_the_run_can_be_resumed(tmp_path) -> None:
    out = tmp_path / "run"

    def act(world: World) -> Any:
        return run(out, world, checkpoint_every=1, progress=None if world.leads else stop_after(3)).records

    warned, ended = together(act, tmp_path)
    assert ended == 9
    assert "Process 0 of 2 has lost another one" in warned
    assert "--resume" in warned
    together(lambda world: run(out, world, resume=True).records, tmp_path)
    check_records(Run.load(out).records)


@pytest.mark.slow
def test_a_process_that_does_not_answer_is_given_up_after_the_timeout(tmp_path) -> None:
    def act(world: World) -> Any:
        if not world.leads:
            time.sleep(6)  # longer than the others wait
            return None
        return run(None, world).records

    warned, _ = together(act, tmp_path, timeout=2)
    assert "did not answer in time" in warned


def test_if_the_first_process_fails_all_fail(tmp_path) -> None:
    out = tmp_path / "run"
    run(out)
    first, second = together(lambda world: run(out, world).records, tmp_path)
    assert first.startswith("FileExistsError: Expected")
    assert second.startswith("RuntimeError: Process 0 of 2 stopped: Expected")


def test_processes_with_different_runs_are_refused(tmp_path) -> None:
    found = together(lambda world: run(None, world, manifest={"about": world.rank}).records, tmp_path)
    assert "Process 1 of 2 stopped: Expected the same run" in found[0]
    assert "about is 0 there and 1 here" in found[1]


def test_all_processes_start_from_the_first_ones_network(tmp_path) -> None:
    found = together(lambda world: run(None, world, adapter={"seed": world.rank}).records, tmp_path)
    check_records(found[0])
    assert found[0] == found[1]
