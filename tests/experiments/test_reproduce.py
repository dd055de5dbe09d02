from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from vcotta.experiments.cells import Cell
from vcotta.experiments.entries import ENTRIES
from vcotta.experiments.entry import Asked
from vcotta.experiments.grid import run_cells
from vcotta.experiments.networks import Weights
from vcotta.experiments.outcome import rows_as_json
from vcotta.experiments.reproduce import _QUICK, outcome_name, reproduce, scaled
from vcotta.models import save_weights
from vcotta.runs import RECORDS, SUMMARY

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs", "ignore:The paper")
ASKED = Asked("digits", seeds=(0, 1), limit=6, quick=True, methods=("source", "bn"))


@pytest.fixture
def one_corruption(monkeypatch) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog",))


def test_an_outcome_is_a_page_a_picture_a_report_and_files_that_tell_the_same(quick, one_corruption) -> None:
    found = reproduce(ENTRIES["selective"], ASKED, quick / "out", workers=1)
    told = json.loads((found.folder / "outcome.json").read_text())
    assert told["rows"] == rows_as_json(found.rows)
    assert [row.runs for row in found.rows] == [2, 2]
    page = (found.folder / "outcome.md").read_text()
    asked = "--dataset digits --scale quick --preset best --seeds 0,1 --methods source,bn --limit 6"
    assert f"vcotta reproduce selective {asked}" in page
    assert found.table.markdown() in page
    assert "(picture.png)" in page
    assert "<!DOCTYPE html>" in (found.folder / "report.html").read_text()
    assert str(quick) not in page + (found.folder / "outcome.json").read_text()


def test_what_is_there_is_drawn_anew_and_its_cost_kept(quick, one_corruption, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    first = reproduce(ENTRIES["calibration"], ASKED, quick / "out", workers=1)
    before = json.loads((first.folder / "outcome.json").read_text())
    assert (before["cost"]["ran"], before["cost"]["cells"]) == (4, 4)
    (first.folder / "picture.png").unlink()
    again = reproduce(ENTRIES["calibration"], ASKED, quick / "out", workers=1)
    assert json.loads((again.folder / "outcome.json").read_text()) == before
    assert (again.folder / "picture.png").exists()
    more = reproduce(ENTRIES["calibration"], replace(ASKED, seeds=(0, 1, 2)), quick / "out", workers=1)
    assert _cost(more.folder)["ran"] == 2


def test_runs_from_other_networks_are_not_mixed(quick, one_corruption) -> None:
    from vcotta.experiments.benchmark import find_benchmark

    asked = replace(ASKED, seeds=(0,), methods=("source",))
    path = quick / "other.safetensors"
    save_weights(find_benchmark("digits").build(None, seed=5), path)
    reproduce(ENTRIES["calibration"], asked, quick / "out", workers=1, weights=Weights(path))
    with pytest.raises(ValueError, match="networks of the runs that are in"):
        reproduce(ENTRIES["calibration"], asked, quick / "out", workers=1)


def test_data_sets_in_one_folder_have_networks_of_their_own(quick, one_corruption, monkeypatch) -> None:
    from vcotta.experiments.benchmark import find_benchmark

    digits, path = find_benchmark("digits"), quick / "other.safetensors"
    save_weights(digits.build(None, seed=5), path)
    for module in ("grid", "reproduce"):  # digits under another name
        monkeypatch.setattr(f"vcotta.experiments.{module}.find_benchmark", lambda name: digits)
    asked = replace(ASKED, seeds=(0,), methods=("source",))
    other = replace(asked, dataset="cifar10")
    reproduce(ENTRIES["calibration"], asked, quick / "out", workers=1)
    reproduce(ENTRIES["calibration"], other, quick / "out", workers=1, weights=Weights(path))
    with pytest.raises(ValueError, match="networks of the runs that are in"):
        reproduce(ENTRIES["calibration"], other, quick / "out", workers=1)


def test_the_cost_of_another_question_is_not_taken_over(quick, one_corruption, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    reproduce(ENTRIES["calibration"], ASKED, quick / "out", workers=1)
    part = reproduce(ENTRIES["calibration"], replace(ASKED, seeds=(0,)), quick / "out", workers=1)
    assert (_cost(part.folder)["ran"], _cost(part.folder)["cells"]) == (0, 2)


def test_whoever_asks_for_less_overwrites_nothing_and_repeats_nothing(quick, one_corruption, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    monkeypatch.setitem(_QUICK, "digits", (ASKED.limit, ASKED.seeds))
    asked = scaled("digits", methods=ASKED.methods)
    whole = reproduce(ENTRIES["calibration"], asked, quick / "out", workers=1)
    before = {path: path.read_bytes() for path in whole.folder.iterdir()}
    fewer = reproduce(ENTRIES["calibration"], replace(asked, limit=3), quick / "out", workers=1)
    part = reproduce(ENTRIES["calibration"], replace(asked, methods=("bn",)), quick / "out", workers=1)
    assert {path: path.read_bytes() for path in whole.folder.iterdir()} == before
    assert [folder.name for folder in (whole.folder, fewer.folder, part.folder)] == [
        "calibration-digits-methods=source,bn",
        "calibration-digits-methods=source,bn-limit=3",
        "calibration-digits-methods=bn",
    ]
    assert (_cost(fewer.folder)["ran"], _cost(part.folder)["ran"]) == (4, 0)
    assert rows_as_json(part.rows) == rows_as_json(whole.rows[1:])
    assert (
        "6 images of each corruption, at most 4 views, seeds 0, 1, only the methods bn, ±"
        in (part.folder / "outcome.md").read_text()
    )


def test_everything_that_can_be_asked_for_is_in_the_name_of_the_folder() -> None:
    usual = scaled("cifar10", "full")
    changes: dict[str, Any] = {"preset": "paper", "seeds": (0,), "limit": 2000, "views": 8, "quick": True}
    changes |= {"methods": ("bn",), "values": (0, 8.0, 0.5), "dataset": "cifar100"}
    assert changes.keys() == {field.name for field in fields(Asked)}
    names = [outcome_name("margin", replace(usual, **{key: value})) for key, value in changes.items()]
    assert len({outcome_name("margin", usual), *names}) == len(names) + 1
    assert outcome_name("margin", replace(usual, values=(0, 8.0, 0.5))) == "margin-cifar10-full-values=0,8,0.5"
    assert outcome_name("margin", replace(usual, seeds=[0, 1, 2])) == outcome_name("margin", usual)
    long = [outcome_name("margin", replace(usual, seeds=tuple(range(200, last)))) for last in (500, 501)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 200


def test_a_seed_that_is_given_twice_is_one_run() -> None:
    assert scaled("digits", seeds=(1, 0, 1)).seeds == (1, 0)


def test_a_failure_before_the_first_run_does_not_decide_which_networks_the_folder_has(quick, one_corruption) -> None:
    asked = Asked("cifar10", seeds=(0,), limit=6, methods=("source",))
    with pytest.raises(ValueError, match="`weights` of a trained network for cifar10, but got none"):
        reproduce(ENTRIES["calibration"], asked, quick / "out", workers=1)
    assert not list((quick / "out").glob("networks-*"))


def test_the_cpu_seconds_of_other_machines_are_not_told(quick, one_corruption) -> None:
    def elsewhere(jobs, board, *, device="cpu") -> None:
        for job in jobs.values():
            job()

    asked = replace(ASKED, seeds=(0,), methods=("source",))
    found = reproduce(ENTRIES["calibration"], asked, quick / "out", launcher=elsewhere)
    assert "cpu_seconds" not in _cost(found.folder)
    assert "s of CPU" not in (found.folder / "outcome.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform cannot kill")
def test_a_killed_grid_leaves_no_process_behind_and_resumed_equals_one_that_was_not(quick) -> None:
    cells = [Cell(f"tent {seed}", "digits", "tent", limit=30, batch_size=1, seed=seed) for seed in range(2)]
    run_cells([replace(cell, limit=1) for cell in cells], quick / "fill", workers=1)  # the networks, for the workers
    whole, out = quick / "whole", quick / "out"
    run_cells(cells, whole, workers=2)
    script = (
        "from pathlib import Path\nfrom vcotta.experiments import grid\nfrom vcotta.experiments.cells import Cell\n"
        "grid.CHECKPOINT_SECONDS = 0.0\n"
        f"if __name__ == '__main__':\n    grid.run_cells({cells!r}, Path({str(out)!r}), workers=2)\n"
    )
    (quick / "grid.py").write_text(script)
    process = subprocess.Popen([sys.executable, "-W", "ignore", str(quick / "grid.py")], start_new_session=True)
    records = [out / cell.key / RECORDS for cell in cells]
    _wait(lambda: all(path.exists() and len(path.read_bytes().splitlines()) > 100 for path in records))
    process.kill()  # the parent alone
    process.wait()
    _wait(lambda: not _alive(process.pid))
    assert not any((out / cell.key / SUMMARY).exists() for cell in cells)
    assert all(any((out / cell.key / "checkpoints").iterdir()) for cell in cells)
    run_cells(cells, out, workers=2)
    for cell in cells:
        assert (out / cell.key / RECORDS).read_bytes() == (whole / cell.key / RECORDS).read_bytes()


def _cost(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "outcome.json").read_text())["cost"]


def _wait(until, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


def _alive(group: int) -> bool:
    """Whether any process of a group lives."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
