"""Every method runs from one network, once, and what was made otherwise is refused."""

from __future__ import annotations

import json
from functools import partial

import pytest

from vcotta.data.digits import digits_network
from vcotta.models import save_weights
from vcotta.runs import SUMMARY

pytestmark = pytest.mark.filterwarnings("ignore:The frost photographs")


@pytest.fixture
def methods(script, monkeypatch):
    monkeypatch.setattr(script, "stream_for", partial(script.stream_for, corruptions=("fog", "contrast")))
    return script


@pytest.fixture
def asked(tmp_path):
    save_weights(digits_network(0), tmp_path / "net.safetensors")
    weights = ["--weights", str(tmp_path / "net.safetensors")]
    return ["--dataset", "digits", *weights, "--out", str(tmp_path / "runs"), "--limit", "50"]


def test_methods_are_run_once_in_the_order_asked_for(methods, asked, tmp_path, capsys) -> None:
    methods.main([*asked, "--methods", "eata,bn"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["eata", "bn"]
    methods.main([*asked, "--methods", "bn,eata"])
    assert not capsys.readouterr().out  # finished already
    found = json.loads((tmp_path / "runs" / "eata" / SUMMARY).read_text())
    assert [part["domain"] for part in found["domains"]] == ["fog", "contrast"]


def test_a_run_from_another_network_is_refused(methods, asked, tmp_path) -> None:
    methods.main([*asked, "--methods", "bn"])
    save_weights(digits_network(1), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="weights_file_sha256"):
        methods.main([*asked, "--methods", "bn"])


def test_no_method_starts_after_the_time_is_over(methods, asked, tmp_path, capsys) -> None:
    methods.main([*asked, "--minutes", "-1"])
    assert "source and what follows is left for the next time" in capsys.readouterr().out
    assert not list(tmp_path.rglob(SUMMARY))
