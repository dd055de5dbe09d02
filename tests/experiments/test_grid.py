from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from vcotta.experiments.benchmarks import BENCHMARKS
from vcotta.experiments.grid import _as_tables_round, run_spec, run_specs
from vcotta.experiments.launch import LocalLauncher
from vcotta.experiments.outcome import outcome, rows_as_csv, table
from vcotta.experiments.paper.experiments import EXPERIMENTS, ExperimentOptions
from vcotta.experiments.reproduce import reproduce
from vcotta.report.stats import Score
from vcotta.report.tables import comparison
from vcotta.runs.run import RECORDS, SUMMARY
from vcotta.runs.spec import RunSpec

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs", "ignore:The paper")
DIGITS = BENCHMARKS["digits"]


HERE = LocalLauncher(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_at_a_tiny_size(name, quick, on, monkeypatch) -> None:
    experiment = on(EXPERIMENTS[name], *("fog", "contrast", "frost")[: 3 if name == "orders" else 1])
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "tried on its own below")
    few = {"orders": ("cotta",), "augmentations": ("cotta", "vcotta"), "batch-size": ("bn", "vcotta")}
    few["main"] = ("bn", "vcotta")  # every method is tried on its own elsewhere
    asked = ExperimentOptions("digits", seeds=(0,), limit=4, views=1, quick=True, methods=few.get(name))
    found = reproduce(experiment, asked, quick / "out", launcher=HERE)
    assert [row.label for row in found.rows] == list(dict.fromkeys(spec.label for spec in experiment.all_specs(asked)))
    for file in ("outcome.md", "table.csv", "outcome.json"):
        assert (found.folder / file).read_text()
    with Image.open(found.folder / "picture.png") as picture:
        assert picture.width > 400
    assert (found.folder / "picture.pdf").read_bytes().startswith(b"%PDF")


def test_finished_runs_are_not_repeated_and_stopped_ones_resume(quick) -> None:
    corruptions = ("fog", "contrast", "frost")
    specs = [RunSpec(method, limit=40, batch_size=20, corruptions=corruptions) for method in ("bn", "tent")]
    saving = {"checkpoint_every": 1, "checkpoint_seconds": 0.0, "launcher": HERE}
    whole = quick / "whole"
    run_specs(specs, whole, launcher=HERE)

    out, calls = quick / "out", []

    def stop_in_the_middle(done: int, total: int, finished: float) -> None:
        calls.append(done)
        if done == 9:  # the first run's six batches, and three of the second's
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_specs(specs, out, report=stop_in_the_middle, **saving)
    assert (out / specs[0].key / SUMMARY).exists()
    assert not (out / specs[1].key / SUMMARY).exists()
    untouched = (out / specs[0].key / RECORDS).stat().st_mtime_ns
    run_specs(specs, out, **saving)
    assert (out / specs[0].key / RECORDS).stat().st_mtime_ns == untouched
    for spec in specs:
        assert (out / spec.key / RECORDS).read_bytes() == (whole / spec.key / RECORDS).read_bytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 7}, "stream.batch_size is 50 there and 7 here"),
        ({"warm_up": replace(DIGITS.warm_up, epochs=3)}, "warm_up.epochs is 10 there and 3 here"),
        ({"training": replace(DIGITS.training, epochs=3)}, "training.epochs is 20 there and 3 here"),
    ],
)
def test_a_finished_run_that_was_made_with_other_defaults_is_refused(quick, monkeypatch, change, text) -> None:
    specs = [RunSpec("vcotta", options={"views": 1}, corruptions=("fog",), limit=4)]
    (made,) = run_specs(specs, quick / "out", launcher=HERE)
    assert run_specs(specs, quick / "out", launcher=HERE) == [made]
    monkeypatch.setitem(BENCHMARKS, "digits", replace(DIGITS, **change))
    with pytest.raises(ValueError, match=rf"{text}.*another folder, or overwrite or delete .*{specs[0].key}"):
        run_specs(specs, quick / "out", launcher=HERE)


def test_a_finished_run_is_returned_before_any_network_is_made(quick, monkeypatch) -> None:
    spec = RunSpec("bn", corruptions=("fog",), limit=4)
    made = run_spec(spec, quick / "run")
    monkeypatch.setattr("vcotta.experiments.build.start_network", None)
    assert run_spec(spec, quick / "run", resume=True) == made


@pytest.mark.slow
def test_parallel_processes_give_the_same_records(quick) -> None:
    specs = [RunSpec("source", limit=5, batch_size=5, seed=seed) for seed in range(2)]
    run_specs(specs, quick / "one", launcher=HERE)  # also fills the cache the others read
    seen: list[tuple[int, int, float]] = []
    run_specs(specs, quick / "two", report=lambda *line: seen.append(line))
    for spec in specs:
        assert (quick / "one" / spec.key / RECORDS).read_bytes() == (quick / "two" / spec.key / RECORDS).read_bytes()
    assert seen


def test_a_failing_run_stops_the_grid_with_its_reason(quick) -> None:
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        run_specs([RunSpec("tent", "digit", limit=5)], quick / "out")


def test_rows_average_the_runs_of_a_label_and_stand_beside_the_paper(quick) -> None:
    experiment = EXPERIMENTS["gradual"]
    specs = [RunSpec("bn", corruptions=("fog",), limit=10, seed=seed, label="bn") for seed in range(2)]
    runs = run_specs(specs, quick / "out", launcher=HERE)
    (row,) = outcome(experiment, "cifar10", specs, runs)
    errors = [100 * run.summary()["mean"]["error"] for run in runs]
    assert row.runs == 2
    assert row.scores["error"] == pytest.approx(sum(errors) / 2)
    assert row.paper == {"error": 13.5}
    assert row.difference["error"] == pytest.approx(row.scores["error"] - 13.5)
    drawn = table(experiment, [row]).markdown()
    assert "13.50" in drawn
    assert "±" in drawn
    assert rows_as_csv(experiment, [row]).splitlines()[0].startswith("label,error,nll")
    assert row.interval["error"] == pytest.approx(12.706 * abs(errors[0] - errors[1]) / 2, rel=1e-4)
    assert json.loads(Path(quick / "out" / specs[0].key / "manifest.json").read_text())["spec"]["method"] == "bn"


def test_the_progress_line_ends_with_the_error_of_the_table(make_run, monkeypatch) -> None:
    lines: list[str] = []

    def task(label, value_format):
        return lambda done, total, value: lines.append(value_format.format(value))

    for errors in ((3, 5), (5, 2), (1, 3), (11, 6)):
        run = make_run("bn", {("fog", 5): errors[0], ("frost", 5): errors[1]})
        overall = sum(record["errors"] for record in run.records) / sum(record["n"] for record in run.records)
        _as_tables_round(task("bn", "error {:.1f} %"))(4, 4, overall)
        assert comparison([run]).cells[0][1] == lines[-1].split()[1]


def test_last_bits_do_not_decide_a_tie() -> None:
    assert Score.of([29.05]).text(".1f") == Score.of([100 * 0.2905]).text(".1f")
