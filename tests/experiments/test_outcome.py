from __future__ import annotations

import math
from dataclasses import replace

import pytest

from vcotta.experiments.outcome import FORMS, Row, by_corruption, outcome, read_rows, rows_as_json, table
from vcotta.experiments.paper.experiments import EXPERIMENTS
from vcotta.report.stats import half_width
from vcotta.runs.spec import RunSpec

ROW = Row("vcotta", "vcotta", None, 3, dict.fromkeys(FORMS, 0.25), {"error": 0.5}, {"fog": 12.0}, {}, {})


def test_rows_survive_json_even_if_a_score_is_infinite() -> None:
    rows = [replace(ROW, scores={"nll": math.inf, "error": 3.0}, value=0.5)]
    written = rows_as_json(rows)
    assert written[0]["scores"] == {"nll": "inf", "error": 3.0}
    assert read_rows(written) == rows


def test_the_table_has_the_papers_scores_beside_ours_and_marks_the_best() -> None:
    experiment = EXPERIMENTS["uncertainty"]
    better = replace(ROW, label="bn", scores=ROW.scores | {"nll": 0.1}, paper={"nll": 0.9988, "brier": 0.3354})
    better = replace(better, difference={"nll": -0.8988, "brier": -0.0854}, runs=1, interval={})
    drawn = table(experiment, [ROW, better])
    assert drawn.header[:7] == ("", "NLL", "paper", "difference", "Brier", "paper", "difference")
    assert drawn.cells[0][:4] == ("vcotta", "0.250", "-", "-")
    assert drawn.cells[1][:7] == ("bn", "0.100", "0.999", "-0.899", "0.250", "0.335", "-0.085")
    assert (1, 1) in drawn.best
    assert (0, 1) not in drawn.best


def test_several_runs_are_shown_with_their_interval_and_one_without() -> None:
    assert table(EXPERIMENTS["margin"], [ROW]).cells[0][1] == "0.25 ± 0.50"
    alone = table(EXPERIMENTS["margin"], [replace(ROW, runs=1, interval={})])
    assert alone.cells[0][1] == "0.25"
    assert "runs" not in alone.header


def test_the_papers_row_is_below_ours_where_it_prints_one() -> None:
    names = [f"c{place}" for place in range(15)]
    row = replace(ROW, corruptions=dict.fromkeys(names, 9.0), paper={"error": 13.1})
    drawn = by_corruption(EXPERIMENTS["main"], "cifar10", [row])
    assert [line[0] for line in drawn.cells] == ["vcotta", "vcotta, paper"]
    assert drawn.cells[1][1:3] == ("18.1", "14.9")
    assert drawn.header == ("", *(f"C{place}" for place in range(1, 16)), "mean")
    assert len(by_corruption(EXPERIMENTS["main"], "digits", [row]).cells) == 1


def test_the_first_batch_counts_with_the_seconds_of_the_others(make_run) -> None:
    run = make_run("cotta", {("fog", 5): 0, ("snow", 5): 0}, seconds=0.5)
    run.timing[0]["seconds"] = 40.0
    (row,) = outcome(EXPERIMENTS["cost"], "cifar10", [RunSpec("cotta", "cifar10", label="cotta")], [run])
    assert row.scores["seconds"] == pytest.approx(2 * 0.5)


def test_the_papers_seconds_are_shown_only_for_as_many_images_and_views(make_run) -> None:
    run = make_run("cotta", {("fog", 5): 0})
    whole = RunSpec("cotta", "cifar10", label="cotta")
    fewer = replace(whole, options={"views": 4})

    def printed(cell: RunSpec, images: int) -> dict[str, float]:
        return outcome(EXPERIMENTS["cost"], "cifar10", [cell], [run], paper_images=images)[0].paper

    assert printed(whole, 10_000) == {"peak_gib": 10.3}
    assert printed(whole, 40) == {"seconds": 272.0, "peak_gib": 10.3}  # as many as the run has
    assert printed(fewer, 40) == {"peak_gib": 10.3}


def test_orders_are_averaged_within_a_seed_before_the_interval_over_seeds(make_run) -> None:
    errors = {0: (2, 4), 1: (6, 12)}  # wrong of 20, by seed and order
    cells = [
        RunSpec("cotta", protocol="orders", protocol_options={"order": order}, seed=seed, label="cotta")
        for seed in errors
        for order in range(2)
    ]
    runs = [make_run("cotta", {("fog", 5): errors[cell.seed][cell.protocol_options["order"]]}) for cell in cells]
    (row,) = outcome(EXPERIMENTS["orders"], "cifar10", cells, runs)
    assert row.runs == 4
    assert row.scores["error"] == pytest.approx(30.0)
    assert row.interval["error"] == pytest.approx(half_width([15.0, 45.0]))
    assert row.scores["spread"] == pytest.approx((10 + 30) / 2 / 2**0.5)
    assert row.paper == {"error": 17.3, "spread": 0.3}
