"""Warm-ups are compared from one network on the same pixels, each once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vcotta.corruptions import EXTRA
from vcotta.data.digits import digits_network
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import adapter_for, stream_for
from vcotta.models import save_weights


@pytest.fixture(autouse=True)
def small(script, monkeypatch) -> None:
    few = replace(BENCHMARKS["digits"], source_share=0.1)
    monkeypatch.setattr(script, "find_benchmark", lambda name: few)
    monkeypatch.setattr(script, "SEVERITIES", (4, 5))
    monkeypatch.setattr(script, "METHODS", {"bn": {}, "vcotta": {"views": 1}})


@pytest.fixture
def given(tmp_path) -> list[str]:
    save_weights(digits_network(0), tmp_path / "plain.safetensors")
    weights = str(tmp_path / "plain.safetensors")
    return ["--dataset", "digits", "--weights", weights, "--limit", "20", "--out", str(tmp_path / "warmups")]


def test_each_way_is_made_once_and_scored_on_the_held_out_corruptions(script, given, tmp_path, capsys) -> None:
    script.main(["none", "epochs=1,augmix=true", *given])
    script.main(["none", "epochs=1", *given])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "none",
        "epochs=1,augmix=true",
        "epochs=1",
    ]
    none, mixed, plain = json.loads((tmp_path / "warmups" / "warmups.json").read_text())
    assert none["config"] is None
    assert (mixed["config"]["augmix"], plain["config"]["augmix"]) == (True, False)
    assert mixed["config"] | {"augmix": False} == plain["config"]
    assert mixed["bn"]["nll"] != plain["bn"]["nll"]
    assert list(plain["vcotta"]["errors"]) == [f"{name}-{severity}" for name in EXTRA for severity in (4, 5)]
    assert plain["vcotta"]["error"] == pytest.approx(sum(plain["vcotta"]["errors"].values()) / 8)
    digits = BENCHMARKS["digits"]
    stream = stream_for(digits, corruptions=EXTRA, severity=(4, 5), limit=20)
    same = run_stream(adapter_for(digits, "bn", digits_network(0)), stream).summary()["mean"]
    assert none["bn"]["nll"] == pytest.approx(same["nll"])  # variational, and otherwise the network that was given
    assert (tmp_path / "warmups" / "epochs=1.safetensors").exists()


def test_settings_that_cannot_be_are_told_before_anything_is_made(script, given, tmp_path) -> None:
    for wrong in ("epochs=0", "sigma_ratio=-1", "epoch=2", "augmix=True", "foo"):
        with pytest.raises(ValueError, match=f"Expected none, default or OPTION=VALUE.* but got '{wrong}'"):
            script.main(["none", wrong, *given])
    assert not (tmp_path / "warmups").exists()


def test_a_way_that_was_scored_with_other_images_is_refused(script, given) -> None:
    script.main(["none", *given])
    with pytest.raises(ValueError, match=r"but images differs\. Give another --out"):
        script.main(["none", *given, "--limit", "30"])
