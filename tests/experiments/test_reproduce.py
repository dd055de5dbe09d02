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

from vcotta.bayes import save_warmed, to_variational
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.grid import run_specs
from vcotta.experiments.launch import LocalLauncher
from vcotta.experiments.outcome import rows_as_json
from vcotta.experiments.paper.experiment import ExperimentOptions
from vcotta.experiments.paper.experiments import EXPERIMENTS
from vcotta.experiments.reproduce import outcome_name, reproduce, scaled
from vcotta.models import save_weights
from vcotta.runs.run import RECORDS, SUMMARY
from vcotta.runs.spec import RunSpec

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs", "ignore:The paper")
ASKED = ExperimentOptions("digits", seeds=(0, 1), limit=6, quick=True, methods=("source", "bn"))


HERE = LocalLauncher(1)
DIGITS = find_benchmark("digits")


@pytest.fixture
def calibration(on):
    return on(EXPERIMENTS["calibration"], "fog")


def test_an_outcome_has_a_page_a_picture_a_report_and_files_with_the_same_content(quick, on) -> None:
    found = reproduce(on(EXPERIMENTS["selective"], "fog"), ASKED, quick / "out", launcher=HERE)
    written = json.loads((found.folder / "outcome.json").read_text())
    assert written["rows"] == rows_as_json(found.rows)
    assert [row.runs for row in found.rows] == [2, 2]
    page = (found.folder / "outcome.md").read_text()
    asked = "--dataset digits --scale quick --preset best --seeds 0,1 --methods source,bn --limit 6"
    assert f"vcotta reproduce selective {asked}" in page
    assert found.table.markdown() in page
    assert "(picture.png)" in page
    assert "<!DOCTYPE html>" in (found.folder / "report.html").read_text()
    assert str(quick) not in page + (found.folder / "outcome.json").read_text()


def test_finished_runs_are_drawn_again_and_their_cost_is_kept(quick, calibration, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    first = reproduce(calibration, ASKED, quick / "out", launcher=HERE)
    before = json.loads((first.folder / "outcome.json").read_text())
    assert (before["cost"]["ran"], before["cost"]["cells"]) == (4, 4)
    (first.folder / "picture.png").unlink()
    again = reproduce(calibration, ASKED, quick / "out", launcher=HERE)
    assert json.loads((again.folder / "outcome.json").read_text()) == before
    assert (again.folder / "picture.png").exists()
    more = reproduce(calibration, replace(ASKED, seeds=(0, 1, 2)), quick / "out", launcher=HERE)
    assert _cost(more.folder)["ran"] == 2


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """A source network of seed 7 and a warmed one of seed 8."""
    save_weights(DIGITS.build(None, seed=7), tmp_path / "source.safetensors")
    save_warmed(to_variational(DIGITS.build(None, seed=8)), tmp_path / "warmed.safetensors")
    return tmp_path / "source.safetensors", tmp_path / "warmed.safetensors"


def test_runs_from_another_network_are_runs_of_their_own(quick, calibration, files) -> None:
    asked = replace(ASKED, seeds=(0,), methods=("source",))
    given = reproduce(calibration, asked, quick / "out", launcher=HERE, weights=files[0])
    trained = reproduce(calibration, asked, quick / "out", launcher=HERE)
    again = reproduce(calibration, asked, quick / "out", launcher=HERE, weights=files[0])
    assert (given.ran, trained.ran, again.ran) == (1, 1, 0)
    assert given.rows[0].scores["nll"] != trained.rows[0].scores["nll"]
    assert rows_as_json(given.rows) == rows_as_json(again.rows)


def test_each_run_starts_from_the_file_that_fits_it(quick, files, on) -> None:
    source, warmed = files
    found = {}
    for name in ("warmup-vs-bnn", "warmup-epochs"):
        asked = ExperimentOptions("digits", limit=4, views=1, values=(1.0,) if name == "warmup-epochs" else None)
        reproduce(on(EXPERIMENTS[name], "fog"), asked, quick / "out", launcher=HERE, weights=source, warmed=warmed)
    for path in (quick / "out" / "runs").glob("*/manifest.json"):
        spec = json.loads(path.read_text())["spec"]
        found[spec["label"]] = spec["weights"] and Path(spec["weights"]).name
    assert found == {
        "warm-up": "warmed.safetensors",
        "no warm-up": "source.safetensors",
        "BNN from scratch": None,
        "1 epochs": "source.safetensors",
    }


def test_swapped_and_missing_files_are_reported(files, calibration, tmp_path) -> None:
    source, warmed = files
    with pytest.raises(ValueError, match=r"is warmed up\. Give it as `warmed`"):
        reproduce(calibration, ASKED, tmp_path / "out", weights=warmed)
    with pytest.raises(ValueError, match="`warmed` to be a file of `vcotta warmup`"):
        reproduce(calibration, ASKED, tmp_path / "out", weights=source, warmed=source)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        reproduce(calibration, ASKED, tmp_path / "out", weights=tmp_path / "none")
    assert not (tmp_path / "out").exists()


def test_the_cost_of_other_options_is_not_kept(quick, calibration, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    reproduce(calibration, ASKED, quick / "out", launcher=HERE)
    part = reproduce(calibration, replace(ASKED, seeds=(0,)), quick / "out", launcher=HERE)
    assert (_cost(part.folder)["ran"], _cost(part.folder)["cells"]) == (0, 2)


def test_other_options_overwrite_nothing_and_repeat_no_run(quick, calibration, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "")
    asked = scaled("digits", methods=ASKED.methods, limit=ASKED.limit, seeds=ASKED.seeds)
    whole = reproduce(calibration, asked, quick / "out", launcher=HERE)
    before = {path: path.read_bytes() for path in whole.folder.iterdir()}
    fewer = reproduce(calibration, replace(asked, limit=3), quick / "out", launcher=HERE)
    part = reproduce(calibration, replace(asked, methods=("bn",)), quick / "out", launcher=HERE)
    assert {path: path.read_bytes() for path in whole.folder.iterdir()} == before
    assert [folder.name for folder in (whole.folder, fewer.folder, part.folder)] == [
        "calibration-digits-seeds=0,1-methods=source,bn-limit=6",
        "calibration-digits-seeds=0,1-methods=source,bn-limit=3",
        "calibration-digits-seeds=0,1-methods=bn-limit=6",
    ]
    assert (_cost(fewer.folder)["ran"], _cost(part.folder)["ran"]) == (4, 0)
    assert rows_as_json(part.rows) == rows_as_json(whole.rows[1:])
    assert (
        "6 images of each corruption, at most 4 views, seeds 0, 1, only the methods bn, ±"
        in (part.folder / "outcome.md").read_text()
    )


def test_every_option_is_in_the_name_of_the_folder() -> None:
    usual = scaled("cifar10", "full")
    changes: dict[str, Any] = {"preset": "paper", "seeds": (0,), "limit": 2000, "views": 8, "quick": True}
    changes |= {"methods": ("bn",), "values": (0, 8.0, 0.5), "dataset": "cifar100"}
    assert changes.keys() == {field.name for field in fields(ExperimentOptions)}
    names = [outcome_name("margin", replace(usual, **{key: value})) for key, value in changes.items()]
    assert len({outcome_name("margin", usual), *names}) == len(names) + 1
    assert outcome_name("margin", replace(usual, values=(0, 8.0, 0.5))) == "margin-cifar10-full-values=0,8,0.5"
    assert outcome_name("margin", replace(usual, seeds=[0, 1, 2])) == outcome_name("margin", usual)
    long = [outcome_name("margin", replace(usual, seeds=tuple(range(200, last)))) for last in (500, 501)]
    assert long[0] != long[1]
    assert max(map(len, long)) < 200


def test_a_seed_that_is_given_twice_is_one_run() -> None:
    assert scaled("digits", seeds=(1, 0, 1)).seeds == (1, 0)


def test_the_cpu_seconds_of_other_machines_are_left_out(quick, calibration) -> None:
    def elsewhere(jobs, board, *, device="cpu") -> None:
        for job in jobs.values():
            job()

    asked = replace(ASKED, seeds=(0,), methods=("source",))
    found = reproduce(calibration, asked, quick / "out", launcher=elsewhere)
    assert "cpu_seconds" not in _cost(found.folder)
    assert "s of CPU" not in (found.folder / "outcome.md").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform cannot kill")
def test_a_killed_grid_leaves_no_process_behind_and_resumed_equals_one_that_was_not(quick) -> None:
    specs = [RunSpec("tent", limit=30, batch_size=1, seed=seed) for seed in range(2)]
    run_specs(
        [replace(spec, limit=1) for spec in specs], quick / "fill", launcher=HERE
    )  # the networks, for the workers
    whole, out = quick / "whole", quick / "out"
    run_specs(specs, whole)
    script = (
        "from pathlib import Path\nfrom vcotta.experiments.grid import run_specs\n"
        "from vcotta.runs.spec import RunSpec\n"
        f"specs = [RunSpec.from_json(one) for one in {[spec.to_json() for spec in specs]!r}]\n"
        f"if __name__ == '__main__':\n    run_specs(specs, Path({str(out)!r}), checkpoint_seconds=0.0)\n"
    )
    (quick / "grid.py").write_text(script)
    process = subprocess.Popen([sys.executable, "-W", "ignore", str(quick / "grid.py")], start_new_session=True)
    records = [out / spec.key / RECORDS for spec in specs]
    _wait(lambda: all(path.exists() and len(path.read_bytes().splitlines()) > 100 for path in records))
    process.kill()  # the parent alone
    process.wait()
    _wait(lambda: not _alive(process.pid))
    assert not any((out / spec.key / SUMMARY).exists() for spec in specs)
    assert all(any((out / spec.key / "checkpoints").iterdir()) for spec in specs)
    run_specs(specs, out)
    for spec in specs:
        assert (out / spec.key / RECORDS).read_bytes() == (whole / spec.key / RECORDS).read_bytes()


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


def test_another_network_and_source_images_are_those_of_every_run(quick, calibration) -> None:
    asked = replace(ASKED, seeds=(0,), methods=("source",), limit=2)
    found = reproduce(calibration, asked, quick / "out", launcher=HERE, network="wrn-10-1", source="digits")
    (path,) = (quick / "out" / "runs").glob("*/manifest.json")
    spec = json.loads(path.read_text())["spec"]
    assert (spec["network"], spec["source"]) == ("wrn-10-1", "digits")
    assert "--model wrn-10-1 --source digits" in (found.folder / "outcome.md").read_text()
