"""Outcomes of experiments find their way into the pages of docs."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def tables(monkeypatch, tmp_path) -> ModuleType:
    """The script, which keeps what it takes in a folder of the test."""
    spec = importlib.util.spec_from_file_location("reproduce_tables", DOCS / "reproduce_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(module, "PICTURES", tmp_path / "pictures")
    return module


def left(folder: Path, **asked: object) -> str:
    """Let a folder hold an outcome, as `vcotta reproduce` would have left it."""
    folder.mkdir(parents=True)
    told = json.loads((DOCS / "results" / "reproduce" / "digits" / "reset.json").read_text())
    told["asked"] |= asked
    (folder / "outcome.json").write_text(json.dumps(told))
    shutil.copy(DOCS / "pictures" / "reproduce" / "digits" / "reset.png", folder / "picture.png")
    return str(folder)


def test_an_outcome_of_part_of_a_data_set_is_kept_and_says_so(tables, tmp_path) -> None:
    left(tmp_path / "out" / "reset-cifar10-full-limit=2000", dataset="cifar10", quick=False, limit=2000)
    left(tmp_path / "out" / "reset-digits", methods=["cotta", "vcotta"])
    tables.keep_reproduced([str(tmp_path / "out")])
    assert (tmp_path / "pictures" / "cifar10" / "reset.png").exists()
    text = tables.cifar10_text()
    assert "$ vcotta reproduce reset --dataset cifar10 --scale full --preset best --seeds 0,1,2 --limit 2000" in text
    assert "(pictures/reproduce/cifar10/reset.png)" in text
    assert "seeds 0, 1, 2, only the methods cotta, vcotta, ±" in tables.reproduced_text("reset")


def test_of_two_outcomes_of_one_experiment_the_user_says_which_is_kept(tables, tmp_path) -> None:
    left(tmp_path / "out" / "reset-digits")
    fewer = left(tmp_path / "out" / "reset-digits-limit=5", limit=5)
    with pytest.raises(ValueError, match=r"one outcome of reset on digits, but got .*reset-digits and .*limit=5\."):
        tables.keep_reproduced([str(tmp_path / "out")])
    assert not (tmp_path / "results").exists()
    tables.keep_reproduced([fewer])
    assert json.loads((tmp_path / "results/reproduce/digits/reset.json").read_text())["asked"]["limit"] == 5


def test_a_folder_without_outcomes_is_refused(tables, tmp_path) -> None:
    with pytest.raises(ValueError, match="folders with outcomes of `vcotta reproduce`, but got"):
        tables.keep_reproduced([str(tmp_path)])
