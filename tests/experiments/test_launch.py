from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from vcotta.experiments.board import Board
from vcotta.experiments.launch import LocalLauncher

WAIT = "import pathlib, time\nstarted = pathlib.Path({started!r})\n"
FAIL = WAIT + "while not started.exists(): time.sleep(0.05)\nraise ValueError('the reason')\n"
LONG = WAIT + "started.touch()\ntime.sleep(15)\npathlib.Path({ended!r}).touch()\n"


def test_a_failure_is_told_while_other_cells_would_still_run(tmp_path) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    code = [text.format(started=str(started), ended=str(ended)) for text in (FAIL, LONG)]
    jobs = {tmp_path / str(place): partial(exec, text, {}) for place, text in enumerate(code)}
    with pytest.raises(ValueError, match="the reason"):
        LocalLauncher(2)(jobs, Board(list(jobs)))
    assert started.exists()
    assert not ended.exists()


def test_what_several_workers_warn_of_is_told_once_and_here(tmp_path, capfd) -> None:
    warn = partial(exec, "import warnings\nwarnings.warn('mind the gap')", {})
    jobs = {tmp_path / str(place): warn for place in range(2)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        LocalLauncher(2)(jobs, Board(list(jobs)))
    assert [str(warning.message) for warning in told] == ["mind the gap"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cuda", 2)])
def test_a_single_worker_has_one_thread_on_a_cpu_and_gives_the_others_back(tmp_path, device, threads) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        job = {tmp_path: lambda progress: seen.append(torch.get_num_threads())}
        LocalLauncher(1)(job, Board([tmp_path]), device=device)
        assert seen == [threads]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
