from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from vcotta._util.files import write_json
from vcotta.experiments.launch import GridProgress, LocalLauncher

WAIT = "import pathlib, time\nstarted = pathlib.Path({started!r})\n"
FAIL = WAIT + "while not started.exists(): time.sleep(0.05)\nraise ValueError('the reason')\n"
LONG = WAIT + "started.touch()\ntime.sleep(15)\npathlib.Path({ended!r}).touch()\n"


def test_a_failure_is_raised_while_other_runs_still_go(tmp_path) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    code = [text.format(started=str(started), ended=str(ended)) for text in (FAIL, LONG)]
    jobs = {tmp_path / str(place): partial(exec, text, {}) for place, text in enumerate(code)}
    with pytest.raises(ValueError, match="the reason"):
        LocalLauncher(2)(jobs, GridProgress(list(jobs)))
    assert started.exists()
    assert not ended.exists()


@pytest.mark.slow
def test_a_warning_of_several_workers_appears_once_in_the_main_process(tmp_path, capfd) -> None:
    warn = partial(exec, "import warnings\nwarnings.warn('mind the gap')", {})
    jobs = {tmp_path / str(place): warn for place in range(2)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        LocalLauncher(2)(jobs, GridProgress(list(jobs)))
    assert [str(warning.message) for warning in told] == ["mind the gap"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("device", "threads"), [("cpu", 1), ("cuda", 2)])
def test_a_single_worker_has_one_thread_on_a_cpu_and_gives_the_others_back(tmp_path, device, threads) -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        job = {tmp_path: lambda progress: seen.append(torch.get_num_threads())}
        LocalLauncher(1)(job, GridProgress([tmp_path]), device=device)
        assert seen == [threads]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def write(folder, text: str, batches: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "manifest.json", {"method": "bn", "batches": batches})
    (folder / "records.jsonl").write_text(text)


def test_progress_is_read_from_the_folders_of_the_runs(tmp_path) -> None:
    one, two, told = tmp_path / "one", tmp_path / "two", []
    board = GridProgress([one, two], lambda *line: told.append(line))
    board.read_folders()
    assert told == []
    board.begin()
    assert told.pop() == (0, 0, 0)
    write(one, "{}\n{}\n{")  # a line is counted when it is whole
    board.read_folders()
    assert told.pop() == (2, 8, 0)  # the one that has not begun is guessed to be as long
    write(one, "{}\n{}\n{}\n{}\n")
    (one / "summary.json").touch()
    write(two, "{}\n", batches=10)
    board.read_folders()
    assert told.pop() == (5, 14, 1)
    board.end()
    assert told.pop() == (14, 14, 2)


def test_a_run_that_resumed_from_a_checkpoint_is_counted_again(tmp_path) -> None:
    told = []
    board = GridProgress([tmp_path], lambda *line: told.append(line))
    for text, done in (("{}\n{}\n{}\n", 3), ("{}\n", 1), ("{}\n{}\n", 2)):
        write(tmp_path, text)
        board.read_folders()
        assert told.pop() == (done, 4, 0)
