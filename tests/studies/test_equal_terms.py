"""Methods on equal terms: the plan, the rows, the tables, and that the study continues where it was stopped."""

from __future__ import annotations

import importlib
import json
import shlex

import pytest

from vcotta.bayes import save_warmed, to_variational
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network

study = importlib.import_module("studies.equal-terms.run")
table = importlib.import_module("studies.equal-terms.table")
picture = importlib.import_module("studies.equal-terms.picture")


def row(method: str, error: float, **more) -> dict:
    facts = {"network": "wrn-28-10", "start": "plain", "preset": None, "seed": 0, "images": 2000, "views": None}
    facts |= {"nll": 1.0, "brier": 0.5, "ece": 0.1, "domains": ["fog", "snow"], "errors": [error - 1, error + 1]}
    facts |= {"seconds_per_corruption": 2.0, "peak_gib": 1.5, "batch_size": 200, "weights_file_sha256": "0"}
    facts |= {"hardware": "a GPU", "torch": "2", "precision": "bf16", "forwards": 3.0, "backwards": 1.0}
    return facts | {"method": method, "error": error} | more


def test_without_files_the_tables_say_that_nothing_was_measured(tmp_path) -> None:
    said = "CIFAR10-C is not measured yet: `python -m studies.equal-terms.run cifar10c`."
    assert table.part_text("cifar10c", tmp_path) == said
    assert table.summary_text(tmp_path) == (
        "CIFAR10-C is not measured yet. CIFAR100-C is not measured yet. The digits stream is not measured yet."
    )
    picture.draw_starts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_have_a_row_for_each_start_the_lowest_error_first(tmp_path) -> None:
    rows = [row("bn", 18.0), row("bn", 16.0, start="warmed"), row("bn", 15.0, start="warmed", seed=1)]
    rows += [row("vcotta", 12.0, preset="best", start="warmed")]
    (tmp_path / "cifar10c.json").write_text(json.dumps(rows))
    text = table.part_text("cifar10c", tmp_path)
    lines = [line for line in text.splitlines() if line.endswith("| 3.0 | 1.0 |")]
    assert lines[0].startswith("| vcotta (best) | warmed | 12.00 |")
    assert lines[1].startswith("| bn | warmed | 15.50 ± 0.71 |")
    assert lines[2].startswith("| bn | plain | 18.00 |")
    assert "| bn, warmed | 14.5 | 16.5 |" in text
    assert (
        "CIFAR10-C: vcotta (best) has 12.00 % from the warmed network, the best of the others measured, bn, 15.50 %"
        in (table.summary_text(tmp_path))
    )
    picture.draw_starts(tmp_path)
    assert (tmp_path / "cifar10c.png").stat().st_size > 1000


def test_the_best_others_are_run_in_full_from_the_network_they_did_better_from() -> None:
    rows = [row(name, error) for error, name in enumerate(("source", "bn", "a", "b", "c", "d", "e", "f", "g"), 10)]
    rows += [row("g", 5.0, start="warmed"), row("a", 30.0, start="warmed"), row("h", 1.0, images=None)]
    rows += [row("vcotta", 20.0, preset="best"), row("vcotta", 9.0, preset="paper")]
    found = [("vcotta", "plain"), ("g", "warmed"), *((name, "plain") for name in "abcde")]
    assert study.chosen(rows, 2000) == found


def test_rows_are_written_one_by_one_kept_and_continued(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    save_weights(digits_network(0), tmp_path / "plain.safetensors")
    save_warmed(to_variational(digits_network(0)), tmp_path / "warm.safetensors")
    words = "digits --weights plain.safetensors --warmed warm.safetensors --methods bn tent --images 8"
    words = shlex.split(f"{words} --corruptions fog contrast --out out.json")
    study.main([*words, "--minutes", "0"])
    assert "0 minutes are over; the same command continues." in capsys.readouterr().out
    study.main([*words, "--methods", "bn"])
    first = json.loads((tmp_path / "out.json").read_text())
    assert [(one["method"], one["start"]) for one in first] == [("bn", "plain"), ("bn", "warmed")]
    study.main([*words, "--plan"])
    assert "2 rows are missing" in capsys.readouterr().out
    study.main(words)
    rows = json.loads((tmp_path / "out.json").read_text())
    assert rows[:2] == first
    assert [(one["method"], one["start"]) for one in rows[2:]] == [("tent", "plain"), ("tent", "warmed")]
    assert rows[0].keys() == row("", 0.0).keys()
    assert [(one["forwards"], one["backwards"], len(one["errors"])) for one in rows] == [
        (1.0, 0.0, 2),
        (1.0, 0.0, 2),
        (1.0, 1.0, 2),
        (1.0, 1.0, 2),
    ]
    assert rows[0]["weights_file_sha256"] != rows[1]["weights_file_sha256"]
    assert str(tmp_path) not in (tmp_path / "out-manifests.json").read_text()


def test_without_networks_cifar_is_refused() -> None:
    with pytest.raises(SystemExit, match="Expected --weights and --warmed for cifar10c"):
        study.main(["cifar10c"])
