"""Networks without BatchNorm: the plan, what follows from the held-out rows, the rows, and the tables."""

from __future__ import annotations

import json
import shlex

import pytest

from studies.transformers import run as study
from studies.transformers import table
from vcotta.bayes import save_warmed, to_variational
from vcotta.models import ViT, save_weights


def row(method: str, error: float, **more) -> dict:
    facts = {"network": "vit", "stream": "held-out", "variant": "default", "start": "plain", "step": 1.0, "seed": 0}
    facts |= {"images": 200, "nll": 1.0, "hardware": "a processor", "torch": "2", "precision": "fp32"}
    return facts | {"method": method, "error": error} | more


def test_start_and_step_of_the_fifteen_are_those_that_did_best_on_the_held_out_corruptions() -> None:
    rows = [row("tent", 50.0), row("tent", 40.0, step=0.1), row("tent", 45.0, step=0.1, start="warmed")]
    rows += [row("tent", 1.0, stream="standard", step=0.01), row("tent", 2.0, images=100), row("sar", 3.0)]
    assert study.chosen(rows, "vit", "tent", 200) == ("plain", 0.1)
    rows += [row("tent", 60.0, step=0.1, seed=1)]
    assert study.chosen(rows, "vit", "tent", 200) == ("warmed", 0.1)
    assert study.chosen(rows, "vit", "cotta", 200) == ("plain", 1.0)


def test_a_step_multiplies_the_methods_own_and_a_variant_changes_one_thing() -> None:
    options = study.parser().parse_args(["digits", "--images", "8"])
    specs = {
        name: study._cell(options, "vit-4-64-32px", 0, "held-out", "vcotta", name, "warmed", 1.0).spec
        for name in study.VARIANTS
    }
    assert specs["ten times the step"].config.lr == pytest.approx(10 * specs["default"].config.lr)
    assert specs["before"].config.statistics == "batch"
    assert specs["no views"].config.views == 0
    tent = study._cell(options, "vit-4-64-32px", 0, "standard", "tent", "default", "plain", 0.1).spec
    assert tent.config.lr == pytest.approx(0.001)
    assert (tent.table, specs["default"].table, len(tent.corruptions)) == (None, 224, 15)
    there = study._cell(options, "vit-4-64-32px", 0, "correlated", "tent", "default", "plain", 1.0).spec
    assert (there.protocol, len(there.corruptions)) == ("correlated", 4)


def test_rows_are_written_one_by_one_kept_and_continued(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    net = ViT(depth=1, width=8, heads=2)
    save_weights(net, tmp_path / "plain.safetensors")
    save_warmed(to_variational(net), tmp_path / "warm.safetensors")
    words = "digits --networks vit-1-8-32px --weights plain.safetensors --warmed warm.safetensors --methods source"
    words = shlex.split(f"{words} --images 4 --corruptions saturate --out out.json")
    study.main([*words, "--minutes", "0"])
    assert "0 minutes are over; the same command continues." in capsys.readouterr().out
    study.main([*words, "--plan"])
    assert "4 rows are missing" in capsys.readouterr().out
    study.main(words)
    rows = json.loads((tmp_path / "out.json").read_text())
    assert [one["stream"] for one in rows] == ["held-out", "held-out", "correlated", "standard"]
    assert [one["start"] for one in rows[:2]] == ["plain", "warmed"]
    study.main([*words, "--plan"])
    assert "0 rows are missing" in capsys.readouterr().out
    assert str(tmp_path) not in (tmp_path / "out-manifests.json").read_text()


def test_without_networks_cifar_is_refused() -> None:
    with pytest.raises(SystemExit, match="Expected one network with --weights and --warmed for cifar10c"):
        study.main(["cifar10c"])


def test_tables_say_what_was_measured(tmp_path) -> None:
    said = "CIFAR10-C is not measured yet: `python -m studies.transformers.run cifar10c`."
    assert table.methods_text("cifar10c", tmp_path) == table.variants_text("cifar10c", tmp_path) == said
    assert table.summary_text(tmp_path) == "Digits is not measured yet. CIFAR10-C is not measured yet."
    ours = {"start": "warmed", "nll": 0.5}
    rows = [row("source", 40.0), row("tent", 70.0), row("tent", 39.0, step=0.1), row("vcotta", 25.0, **ours)]
    rows += [row("source", 41.0, stream="correlated"), row("vcotta", 20.0, stream="correlated", **ours)]
    rows += [row("vcotta", 60.0, variant="before", **ours)]
    rows += [
        row(**(one | {"stream": "standard", "error": one["error"] - 10})) for one in rows[:4] if one["error"] != 70
    ]
    (tmp_path / "digits.json").write_text(json.dumps(rows))
    methods = table.methods_text("digits", tmp_path).splitlines()
    assert methods[2:] == [
        "| Method | Network | Step | Held-out, plain, its own step | Held-out | Fifteen | NLL |",
        "|:--|:--|--:|--:|--:|--:|--:|",
        "| vcotta | warmed | 1 | - | 25.00 | 15.00 | 0.500 |",
        "| tent | plain | 0.1 | 70.00 | 39.00 | 29.00 | 1.000 |",
        "| source | plain | 1 | 40.00 | 40.00 | 30.00 | 1.000 |",
        "",
        "Seed 0, severity 5, error in per cent (/ NLL). a processor, torch 2, fp32 (`studies/transformers/run.py`).",
    ]
    variants = table.variants_text("digits", tmp_path)
    assert "| default | 25.00 / 0.500 | 20.00 / 0.500 |\n| before | 60.00 / 0.500 | - |" in variants
    assert "| source, plain | 40.00 / 1.000 | 41.00 / 1.000 |" in variants
    assert table.summary_text(tmp_path) == (
        "Digits, vit: VCoTTA 15.00 %, source 30.00 %, the best other method, tent, 29.00 %. "
        "CIFAR10-C is not measured yet."
    )
