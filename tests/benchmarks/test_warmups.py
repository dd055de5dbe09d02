"""Warm-ups are compared from one network on the same pixels, each once."""

from __future__ import annotations

import json

import pytest

from vcotta.data.digits import digits_network
from vcotta.models import save_weights


@pytest.fixture
def given(tmp_path) -> list[str]:
    save_weights(digits_network(0), tmp_path / "plain.safetensors")
    weights = str(tmp_path / "plain.safetensors")
    return ["--dataset", "digits", "--weights", weights, "--limit", "50", "--out", str(tmp_path / "warmups")]


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
    assert len(plain["vcotta"]["errors"]) == 4 * 3
    assert plain["vcotta"]["error"] == pytest.approx(sum(plain["vcotta"]["errors"].values()) / 12)
    assert (tmp_path / "warmups" / "epochs=1.safetensors").exists()


def test_settings_that_cannot_be_are_told_before_anything_is_made(script, given, tmp_path) -> None:
    with pytest.raises(ValueError, match="`epochs` to be at least 1"):
        script.main(["none", "epochs=0", *given])
    assert not (tmp_path / "warmups").exists()
