from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vcotta.bayes import is_variational, save_warmed, to_variational
from vcotta.data import batches
from vcotta.experiments.benchmark import find_benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.entry import Asked
from vcotta.experiments.networks import Weights, network_for, recipe
from vcotta.models import save_weights

DIGITS = find_benchmark("digits")
WARMED = Cell("vcotta", "digits", "vcotta", start="warmed")


@pytest.fixture
def files(tmp_path) -> Weights:
    """A source network of seed 7 and, told apart from it, a warmed one of seed 8."""
    save_weights(DIGITS.build(None, seed=7), tmp_path / "source.safetensors")
    save_warmed(to_variational(DIGITS.build(None, seed=8)), tmp_path / "warmed.safetensors")
    return Weights(tmp_path / "source.safetensors", tmp_path / "warmed.safetensors")


def first_weight(net) -> torch.Tensor:
    return next(net.parameters()).detach()


def test_given_networks_are_taken_as_they_are(quick, files) -> None:
    source, warmed = (first_weight(DIGITS.build(None, seed=seed)) for seed in (7, 8))
    plain = network_for(Cell("bn", "digits", "bn", seed=3), DIGITS, files)
    assert torch.equal(first_weight(plain), source)
    assert torch.equal(first_weight(network_for(WARMED, DIGITS, files)), warmed)
    unwarmed = network_for(replace(WARMED, start="unwarmed"), DIGITS, files)
    assert is_variational(unwarmed)
    assert torch.equal(first_weight(unwarmed), source)


def test_the_papers_preset_warms_up_as_printed_or_takes_the_network_given(quick, files) -> None:
    best, paper = (Asked("cifar10", preset).cell("vcotta") for preset in ("best", "paper"))
    cifar = find_benchmark("cifar10")
    assert recipe(best, cifar)["warm_up"]["kl_weight"] == 0.7
    assert recipe(paper, cifar)["warm_up"]["kl_weight"] is None
    assert best.key != paper.key
    epochs = Asked("cifar10", "paper").cell("vcotta", warm_up={"epochs": 2})
    assert epochs.warm_up == {"kl_weight": None, "epochs": 2}
    long, printed = (
        recipe(Asked("cifar100", preset).cell("vcotta"), find_benchmark("cifar100"))["warm_up"]
        for preset in ("best", "paper")
    )
    assert (long["epochs"], long["augmix"]) == (10, True)
    assert (printed["epochs"], printed["augmix"], printed["kl_weight"]) == (5, False, None)
    assert recipe(Asked("cifar100", "paper").cell("vcotta"), find_benchmark("cifar100"), files)["warm_up"] is None
    varied = Asked("cifar100", "paper").cell("5 epochs", warm_up={"epochs": 5})  # as printed, but what is varied
    assert recipe(varied, find_benchmark("cifar100"), files)["warm_up"]["epochs"] == 5
    found = network_for(replace(paper, dataset="digits"), DIGITS, files)
    assert torch.equal(first_weight(found), first_weight(DIGITS.build(None, seed=8)))
    assert recipe(paper, cifar, files) == {"training": None, "warm_up": None}


@pytest.mark.parametrize("change", [{"warm_up": {"epochs": 2}}, {"source_share": 0.5}])
def test_a_warm_up_of_its_own_is_made_from_the_source(quick, files, change) -> None:
    found = network_for(replace(WARMED, **change), DIGITS, files)
    assert torch.equal(first_weight(found), first_weight(DIGITS.build(None, seed=7)))


def test_files_in_each_others_place_and_files_that_are_not_there_are_told(files, tmp_path) -> None:
    with pytest.raises(ValueError, match="is warmed: give it as `warmed`"):
        Weights(files.warmed)
    with pytest.raises(ValueError, match="`warmed` to be a file of `vcotta warmup`"):
        Weights(files.source, files.source)
    with pytest.raises(FileNotFoundError, match="is not there"):
        Weights(tmp_path / "none")
    assert len(set(files.hashes().values())) == 2


@pytest.mark.slow
def test_a_network_trained_from_scratch_learns(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path))
    net = network_for(replace(WARMED, start="scratch"), DIGITS)
    test = DIGITS.load()
    with torch.no_grad():
        guesses = torch.cat([net(images).argmax(1) for images, _ in batches(test.images, test.labels, 100)])
    assert (guesses.numpy() != test.labels).mean() < 0.05
