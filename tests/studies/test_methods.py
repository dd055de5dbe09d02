"""Every method runs from one network, once, and a finished run of other settings is refused."""

from __future__ import annotations

import json

import pytest

from studies.files import STUDIES, read_result
from studies.methods import run as script
from studies.methods.table import RECIPE, nearest_text
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.run import SUMMARY


@pytest.fixture
def asked(tmp_path):
    save_weights(digits_network(0), tmp_path / "net.safetensors")
    weights = ["--weights", str(tmp_path / "net.safetensors")]
    small = ["--corruptions", "fog,contrast", "--limit", "50"]
    return ["--dataset", "digits", *weights, "--out", str(tmp_path / "runs"), *small]


def test_methods_are_run_once_in_the_order_asked_for(asked, tmp_path, capsys) -> None:
    script.main([*asked, "--methods", "eata,bn"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["eata", "bn"]
    script.main([*asked, "--methods", "bn,eata"])
    assert not capsys.readouterr().out  # finished already
    found = json.loads((tmp_path / "runs" / "eata" / SUMMARY).read_text())
    assert [part["domain"] for part in found["domains"]] == ["fog", "contrast"]


def test_a_run_from_another_network_is_refused(asked, tmp_path) -> None:
    script.main([*asked, "--methods", "bn"])
    save_weights(digits_network(1), tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match="weights_file_sha256"):
        script.main([*asked, "--methods", "bn"])


def test_no_method_starts_after_the_time_is_over(asked, tmp_path, capsys) -> None:
    script.main([*asked, "--minutes", "-1"])
    assert "source and the methods after it are left for the next time" in capsys.readouterr().out
    assert not list(tmp_path.rglob(SUMMARY))


def test_the_nearest_method_is_named_with_its_network_where_that_network_is_shown() -> None:
    text = nearest_text()
    assert text.startswith("On the WRN-28-10 of 30 epochs")
    assert "has VCoTTA beside all others on that one" in text
    beside, alone = (
        read_result(*path)
        for path in (("equal-terms", "cifar10c-manifests.json"), ("methods", f"{RECIPE}/bn/manifest.json"))
    )
    assert beside["wrn-28-10/bn/plain/None/0/2000/None"]["weights_sha256"] == alone["weights_sha256"]
    page = (STUDIES / "headline" / "page.md").read_text()
    assert page.index("<!-- headline:end -->") < page.index("<!-- nearest:begin -->") < page.index("### What each")
