"""Warm-ups are compared from one network on the same pixels, each once."""

from __future__ import annotations

import json

import pytest

from studies.headline import run_warmups as script
from vcotta.corruptions import EXTRA
from vcotta.experiments.grid import run_spec
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(script.OPTIONS, "vcotta", {"views": 1})


@pytest.fixture
def given(tmp_path) -> list[str]:
    save_weights(digits_network(0), tmp_path / "plain.safetensors")
    weights = str(tmp_path / "plain.safetensors")
    return ["--dataset", "digits", "--weights", weights, "--limit", "20", "--out", str(tmp_path / "warmups.json")]


@pytest.mark.slow
def test_each_way_is_made_once_and_scored_on_the_held_out_corruptions(given, tmp_path, capsys) -> None:
    script.main(["none", "epochs=1,augmix=false", *given])
    script.main(["none", "epochs=1", *given])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "none",
        "epochs=1,augmix=false",
        "epochs=1",
    ]
    none, plain, mixed = json.loads((tmp_path / "warmups.json").read_text())
    assert none["config"] is None
    assert (mixed["config"]["augmix"], plain["config"]["augmix"]) == (True, False)
    assert mixed["config"] | {"augmix": False} == plain["config"]
    assert mixed["bn"]["nll"] != plain["bn"]["nll"]
    assert list(plain["vcotta"]["errors"]) == [f"{name}-{severity}" for name in EXTRA for severity in (3, 4, 5)]
    assert plain["vcotta"]["error"] == pytest.approx(sum(plain["vcotta"]["errors"].values()) / 12)
    same = RunSpec("bn", corruptions=EXTRA, severity=(3, 4, 5), limit=20)
    mean = run_spec(same, model=digits_network(0)).summary()["mean"]
    assert none["bn"]["nll"] == pytest.approx(mean["nll"])  # variational, and otherwise the network that was given


def test_wrong_settings_are_reported_before_any_work(given, tmp_path) -> None:
    for wrong in ("epochs=0", "sigma_ratio=-1", "epoch=2", "augmix=True", "foo"):
        with pytest.raises(ValueError, match=f"Expected none, default or OPTION=VALUE.* but got '{wrong}'"):
            script.main(["none", wrong, *given])
    assert not (tmp_path / "warmups.json").exists()


def test_a_way_that_was_scored_with_other_images_is_refused(given) -> None:
    script.main(["none", *given])
    with pytest.raises(ValueError, match=r"but images differs\. Give another --out"):
        script.main(["none", *given, "--limit", "30"])
