from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from vcotta.experiments import grid
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.cells import Cell
from vcotta.experiments.entries import ENTRIES, Asked
from vcotta.experiments.grid import run_cells
from vcotta.experiments.outcome import outcome, rows_as_csv, table
from vcotta.experiments.reproduce import reproduce
from vcotta.methods import METHODS
from vcotta.runs import RECORDS, SUMMARY

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs", "ignore:The paper")
DIGITS = BENCHMARKS["digits"]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_experiment_runs_at_a_tiny_size(name, quick, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog", "contrast", "frost")[: 3 if name == "orders" else 1])
    entry = ENTRIES[name]
    monkeypatch.setattr("vcotta.experiments.reproduce.html_page", lambda runs: "tried on its own below")
    few = {"orders": ("cotta",), "augmentations": ("cotta", "vcotta"), "batch-size": ("bn", "vcotta")}
    asked = Asked("digits", seeds=(0,), limit=4, views=1, quick=True, methods=few.get(name))
    if name == "main":  # every method is tried on its own elsewhere
        monkeypatch.setattr("vcotta.experiments.entries.METHODS", {k: METHODS[k] for k in ("bn", "vcotta")})
    found = reproduce(entry, asked, quick / "out", workers=1)
    assert [row.label for row in found.rows] == list(dict.fromkeys(cell.label for cell in entry.all_cells(asked)))
    for file in ("outcome.md", "table.csv", "outcome.json"):
        assert (found.folder / file).read_text()
    with Image.open(found.folder / "picture.png") as picture:
        assert picture.width > 400
    assert (found.folder / "picture.pdf").read_bytes().startswith(b"%PDF")


def test_finished_cells_are_not_repeated_and_stopped_ones_go_on(quick, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog", "contrast", "frost"))
    monkeypatch.setattr(grid, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(grid, "CHECKPOINT_SECONDS", 0.0)
    cells = [Cell(method, "digits", method, limit=40, batch_size=20) for method in ("bn", "tent")]
    whole = quick / "whole"
    run_cells(cells, whole, workers=1)

    out, calls = quick / "out", []

    def stop_in_the_middle(done: int, total: int, finished: float) -> None:
        calls.append(done)
        if done == 9:  # the first cell's six batches, and three of the second's
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, out, workers=1, report=stop_in_the_middle)
    assert (out / cells[0].key / SUMMARY).exists()
    assert not (out / cells[1].key / SUMMARY).exists()
    untouched = (out / cells[0].key / RECORDS).stat().st_mtime_ns
    run_cells(cells, out, workers=1)
    assert (out / cells[0].key / RECORDS).stat().st_mtime_ns == untouched
    for cell in cells:
        assert (out / cell.key / RECORDS).read_bytes() == (whole / cell.key / RECORDS).read_bytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 7}, "stream.batch_size is 50 there and 7 here"),
        ({"warm_up": replace(DIGITS.warm_up, epochs=3)}, "warm_up.epochs is 10 there and 3 here"),
        ({"training": replace(DIGITS.training, epochs=3)}, "training.epochs is 20 there and 3 here"),
        ({"settings": "cifar10"}, "config.lr is .* here"),
    ],
)
def test_a_finished_cell_that_was_made_with_other_defaults_is_refused(quick, monkeypatch, change, text) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog",))
    cells = [Cell("vcotta", "digits", "vcotta", {"preset": "best", "views": 1}, "warmed", limit=4)]
    (made,) = run_cells(cells, quick / "out", workers=1)
    assert run_cells(cells, quick / "out", workers=1) == [made]
    monkeypatch.setitem(BENCHMARKS, "digits", replace(DIGITS, **change))
    with pytest.raises(ValueError, match=rf"{text}.*another --out, or delete .*{cells[0].key}"):
        run_cells(cells, quick / "out", workers=1)


def test_parallel_processes_give_the_same_records(quick) -> None:
    cells = [Cell(f"source {seed}", "digits", "source", limit=5, batch_size=5, seed=seed) for seed in range(2)]
    run_cells(cells, quick / "one", workers=1)  # also fills the cache the others read
    seen: list[tuple[int, int, float]] = []
    run_cells(cells, quick / "two", workers=2, report=lambda *line: seen.append(line))
    for cell in cells:
        assert (quick / "one" / cell.key / RECORDS).read_bytes() == (quick / "two" / cell.key / RECORDS).read_bytes()
    assert seen


def test_a_failing_cell_stops_the_grid_with_its_reason(quick) -> None:
    bad = Cell("bad", "digit", "tent", limit=5)
    with pytest.raises(ValueError, match="Did you mean 'digits'"):
        run_cells([bad], quick / "out", workers=2)


def test_rows_average_the_runs_of_a_label_and_stand_beside_the_paper(quick, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.streams.STANDARD", ("fog",))
    entry = ENTRIES["gradual"]
    cells = [Cell("bn", "digits", "bn", limit=10, seed=seed) for seed in range(2)]
    runs = run_cells(cells, quick / "out", workers=1)
    (row,) = outcome(entry, "cifar10", cells, runs)
    errors = [100 * run.summary()["mean"]["error"] for run in runs]
    assert row.runs == 2
    assert row.scores["error"] == pytest.approx(sum(errors) / 2)
    assert row.paper == {"error": 13.5}
    assert row.difference["error"] == pytest.approx(row.scores["error"] - 13.5)
    drawn = table(entry, [row]).markdown()
    assert "13.50" in drawn
    assert "±" in drawn
    assert rows_as_csv(entry, [row]).splitlines()[0].startswith("label,error,nll")
    assert row.interval["error"] == pytest.approx(12.706 * abs(errors[0] - errors[1]) / 2)
    assert json.loads(Path(quick / "out" / cells[0].key / "manifest.json").read_text())["cell"]["method"] == "bn"
