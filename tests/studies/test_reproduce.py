"""Outcomes of experiments are kept as result files and shown on the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from studies.files import results_of
from studies.reproduce.run import keep_outcomes
from studies.reproduce.table import cifar10_text, experiment_text

DIGITS = results_of("reproduce") / "digits"


def leave_outcome(folder: Path, **asked: object) -> Path:
    """Let a folder hold an outcome, as `vcotta reproduce` would have left it."""
    folder.mkdir(parents=True)
    outcome = json.loads((DIGITS / "reset.json").read_text())
    outcome["asked"] |= asked
    (folder / "outcome.json").write_text(json.dumps(outcome))
    shutil.copy(DIGITS / "reset.png", folder / "picture.png")
    return folder


def test_an_outcome_of_part_of_a_data_set_is_kept_and_says_so(tmp_path) -> None:
    leave_outcome(tmp_path / "out" / "reset-cifar10-full-limit=2000", dataset="cifar10", quick=False, limit=2000)
    leave_outcome(tmp_path / "out" / "reset-digits", methods=["cotta", "vcotta"])
    results = tmp_path / "results"
    keep_outcomes([tmp_path / "out"], results)
    assert (results / "cifar10" / "reset.png").exists()
    text = cifar10_text(results)
    assert "$ vcotta reproduce reset --dataset cifar10 --scale full --preset best --seeds 0,1,2 --limit 2000" in text
    assert "(results/cifar10/reset.png)" in text
    assert "seeds 0, 1, 2, only the methods cotta, vcotta, ±" in experiment_text("reset", results=results)


def test_of_two_outcomes_of_one_experiment_the_user_says_which_is_kept(tmp_path) -> None:
    leave_outcome(tmp_path / "out" / "reset-digits")
    fewer = leave_outcome(tmp_path / "out" / "reset-digits-limit=5", limit=5)
    with pytest.raises(ValueError, match=r"one outcome of reset on digits, but got .*reset-digits and .*limit=5\."):
        keep_outcomes([tmp_path / "out"], tmp_path / "results")
    assert not (tmp_path / "results").exists()
    keep_outcomes([fewer], tmp_path / "results")
    assert json.loads((tmp_path / "results/digits/reset.json").read_text())["asked"]["limit"] == 5


def test_a_folder_without_outcomes_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="folders with outcomes of `vcotta reproduce`, but got"):
        keep_outcomes([tmp_path], tmp_path / "results")
