"""TensorBoard's log of a run."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from vcotta.runs.run import Run
from vcotta.runs.tensorboard import TensorBoardLog


@pytest.fixture
def written(monkeypatch):
    """Scalars given to a stand-in for TensorBoard's writer, as (name, value, step)."""
    scalars = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            scalars.append(("purge", folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars.append((name, value, step))

        def close(self) -> None:
            scalars.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    return scalars


def test_every_record_is_written_once_and_a_resumed_run_from_its_start(written, make_run) -> None:
    run = make_run("vcotta", {("fog", 5): 5, ("snow", 5): 10}, alphas=[0.1, 0.2, 0.3, 0.4])
    run.records[1]["nll"] = None  # it was infinite
    run.records[1]["last"]["guard"] = {"action": "pull"}
    with TensorBoardLog("tb") as log:
        for done in (2, 3, 4, 4):
            log(Run(run.manifest, run.records[:done], run.timing[:done]))
    assert written[0] == ("purge", "tb", 0)
    assert written[-1] == "closed"
    scalars = {(name, step): value for name, value, step in written[1:-1]}
    assert len(scalars) == len(written) - 2 == 4 * 6 - 1
    assert [scalars["error/batch", step] for step in range(4)] == [0.25, 0.25, 0.5, 0.5]
    assert scalars["error/so_far", 3] == 30 / 80
    assert scalars["adapter/alpha", 2] == 0.3
    assert ("score/nll", 1) not in scalars


def test_without_tensorboard_it_says_what_to_install_before_any_work(command, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = command("run", "--method", "bn", "--out", "x", "--tensorboard", "tb")
    assert code == 2
    assert err == ("Error: Expected TensorBoard to be installed, but it is not. Install it: pip install tensorboard.\n")
    assert not (tmp_path / "x" / "manifest.json").exists()


def test_the_command_writes_what_the_records_say_also_of_a_finished_run(command, written, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.build.train", lambda model, *_, **__: model.eval())
    words = ("run", "--method", "tent", "--limit", "20", "--batch-size", "10", "--corruptions", "fog", "--out", "x")
    assert command(*words, "--tensorboard", "tb")[0] == 0
    first = list(written)
    assert {name for name, *_ in first[1:-1]} >= {"error/batch", "error/so_far", "score/nll", "adapter/entropy"}
    assert first[-1] == "closed"
    written.clear()
    assert command(*words, "--tensorboard", "tb", "--resume")[0] == 0
    assert written == first


def test_tensorboard_reads_what_was_written(make_run, tmp_path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = make_run("tent", {("fog", 5): 5, ("snow", 5): 10})
    for _ in range(2):  # the second as a resumed run
        with TensorBoardLog(tmp_path) as log:
            log(run)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("error/batch")] == [0.25, 0.25, 0.5, 0.5]
