from __future__ import annotations

import pytest
import torch

from vcotta import to_variational
from vcotta.bayes import kl_divergence
from vcotta.methods import VCL, VCLConfig, VCoTTA, VCoTTAConfig, build_adapter, choose_guard, configure


@pytest.mark.parametrize("preset", ["best", "paper"])
def test_it_is_vcotta_with_the_previous_posterior_as_teacher_and_prior(preset, tiny, images) -> None:
    net = to_variational(tiny())
    ours = build_adapter("vcl", net, preset=preset, views=2, lr=0.01)
    theirs = build_adapter("vcotta", net, preset=preset, views=2, lr=0.01, alpha=0.0, beta=0.0, guard=False)
    for seed in range(3):
        assert torch.equal(ours(images(seed=seed)), theirs(images(seed=seed)))


def test_the_prior_of_a_batch_is_the_posterior_of_the_batch_before(tiny, images) -> None:
    adapter = VCL(to_variational(tiny()), VCLConfig(views=2, lr=0.01))
    for seed in range(3):
        before = {name: value.clone() for name, value in adapter.networks["student"].state_dict().items()}
        prior = {name: value.clone() for name, value in adapter.networks["teacher"].state_dict().items()}
        assert all(torch.allclose(before[name], prior[name], atol=1e-6) for name in before)
        adapter(images(seed=seed))
    assert kl_divergence(adapter.networks["student"], adapter.start) > 0


def test_the_prior_holds_nothing_back_in_one_step(tiny, images) -> None:
    found = []
    for weight in (0.0, 1e3):
        adapter = VCL(to_variational(tiny()), VCLConfig(views=2, lr=0.01, kl_weight=weight, statistics="batch"))
        for seed in range(3):
            adapter(images(seed=seed))
            assert adapter.last["kl"] == pytest.approx(0, abs=1e-6)
        found.append(adapter.networks["student"].conv1.weight)
    assert torch.allclose(*found, atol=1e-4)


def test_it_drifts_further_from_the_source_than_vcotta(tiny, images) -> None:
    shared = {"views": 2, "lr": 0.1, "kl_weight": 1.0}
    net = to_variational(tiny())
    ours, theirs = VCL(net, VCLConfig(**shared)), VCoTTA(net, VCoTTAConfig(**shared))
    for seed in range(8):
        ours(images(seed=seed)), theirs(images(seed=seed))
    assert ours.drift() > theirs.drift()


def test_the_prior_cannot_be_changed_and_there_is_no_guard() -> None:
    for wrong in ({"alpha": 0.5}, {"beta": 0.9}, {"alpha": "entropy"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            VCLConfig(**wrong)
    assert choose_guard("vcl", None, {}) is None
    assert configure("vcl", dataset="digits").lr == configure("vcotta", dataset="digits").lr
    assert configure("vcl", dataset="imagenet", preset="paper").optimizer == "sgd"
