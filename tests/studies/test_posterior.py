"""The study of the posterior: networks, warm-ups, cuts, and steps in units of sigma."""

from __future__ import annotations

import json

import pytest
import torch

from studies.posterior import run as script
from vcotta import to_variational
from vcotta.bayes import variational_parameters
from vcotta.bayes.gaussian import inverse_softplus
from vcotta.methods import VCoTTA, VCoTTAConfig


@pytest.fixture
def net(tiny):
    return to_variational(tiny())


def test_cutting_by_mean_over_sigma_takes_small_and_unsure_weights_first(net) -> None:
    ((_, mean, rho), *_) = variational_parameters(net)
    mean.data.fill_(1.0)
    sigma = torch.linspace(0.1, 1.0, mean.numel()).reshape(mean.shape)
    rho.data.copy_(inverse_softplus(sigma))
    ((_, left, _), *_) = variational_parameters(script.cut(net, 0.5, "|mean| / sigma"))
    gone = left == 0
    assert gone.any()
    assert sigma[gone].min() > sigma[~gone].max()


@pytest.mark.parametrize("rule", ["|mean| / sigma", "|mean|", "sigma", "random"])
def test_the_share_asked_for_is_cut_whatever_the_rule(net, rule) -> None:
    for _, _, rho in variational_parameters(net):
        rho.data += torch.rand(rho.shape)
    weights = [layer.weight for _, layer in script.variational_layers(script.cut(net, 0.3, rule))]
    gone = sum((weight == 0).sum().item() for weight in weights) / sum(weight.numel() for weight in weights)
    assert gone == pytest.approx(0.3, abs=0.01)


def test_in_units_of_sigma_sure_weights_move_less_and_the_package_is_left_as_it_was(net, images) -> None:
    ((_, mean, rho), *_) = variational_parameters(net)
    sigma = torch.where(torch.rand(mean.shape) < 0.5, 1e-4, 1e-2)
    rho.data.copy_(inverse_softplus(sigma))
    minimise = VCoTTA.minimise
    with script.units_of_sigma():
        adapter = VCoTTA(net, VCoTTAConfig(views=1))
        adapter(images())
    assert VCoTTA.minimise is minimise
    ((_, moved, _), *_) = variational_parameters(adapter.networks["student"])
    step = (moved - mean).abs()
    assert step[sigma == 1e-4].max() < step[sigma == 1e-2].mean()


@pytest.mark.slow
def test_the_posterior_of_a_small_network_means_something(tmp_path) -> None:
    """What a posterior must do to be worth its name, on a network that nothing was tuned on."""
    out = tmp_path / "rows.json"
    script.main(["--parts", "cuts", "--networks", "small", "--seeds", "0", "--out", str(out)])
    cuts = {row["name"]: row["error"] for row in json.loads(out.read_text())["cuts"]}
    assert cuts["|mean| / sigma, 0.7"] < cuts["|mean|, 0.7"] < cuts["random, 0.7"]
    study = script.Study(script.parser().parse_args(["--out", str(out), "--limit", "50"]))
    means, none = (study.meaning().of(study.warm("small", 0, name)) for name in ("default", "none"))
    assert means["spread"]["least"] > 0.5
    assert means["clean_draws"]["error"] <= means["clean"]["error"] + 0.3
    assert means["clean_draws"]["nll"] <= 1.1 * means["clean"]["nll"]
    assert means["clean"]["error"] <= none["clean"]["error"] + 0.3
    assert means["corrupted"]["nll"] < none["corrupted"]["nll"]


@pytest.mark.slow
def test_rows_are_added_once_and_an_interrupted_study_continues(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(script, "WARM_UPS", {"none": None, "default": {}})
    monkeypatch.setattr(script, "STREAMS", {"continual": {}})
    monkeypatch.setattr(script, "VARIANTS", {"default": {}, "weights drawn": {"sampling": "weight"}})
    out = tmp_path / "rows.json"
    words = ["--networks", "small", "--seeds", "0", "--limit", "20", "--clean", "50", "--out", str(out)]
    script.main([*words, "--parts", "warmups"])
    script.main(words)
    rows = json.loads(out.read_text())
    assert {part: len(found) for part, found in rows.items()} == {"warmups": 2, "cuts": 12, "streams": 2}
    assert all(0 <= row["error"] <= 100 for row in rows["cuts"] + rows["streams"])
