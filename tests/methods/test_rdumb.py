from __future__ import annotations

import pytest
import torch

from vcotta.methods import BN, EATA, EATAConfig, RDumb, RDumbConfig

ALL = {"entropy_margin": 1.1, "similarity_margin": 1.1}


def test_after_a_period_the_prediction_is_that_of_a_new_network(tiny, images) -> None:
    adapter, bn = RDumb(tiny(), RDumbConfig(period=3, lr=0.1, **ALL)), BN(tiny())
    fresh = [torch.allclose(adapter(images(seed=seed)), bn(images(seed=seed)), atol=1e-6) for seed in range(7)]
    assert fresh == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_restart_forgets_moments_and_mean_prediction_too(optimizer, tiny, images) -> None:
    adapter = RDumb(tiny(), RDumbConfig(period=3, lr=0.1, optimizer=optimizer, **ALL))
    first = [adapter(images(seed=seed)) for seed in range(3)]
    second = [adapter(images(seed=seed)) for seed in range(3)]
    assert all(map(torch.equal, first, second))
    assert adapter.steps == 6


def test_before_the_first_restart_it_is_eta(tiny, images) -> None:
    adapter = RDumb(tiny(), RDumbConfig(lr=0.05, **ALL))
    eta = EATA(tiny(), EATAConfig(lr=0.05, fisher_weight=0.0, **ALL))
    for seed in range(5):
        assert torch.equal(adapter(images(seed=seed)), eta(images(seed=seed)))


def test_the_same_batch_again_teaches_nothing(tiny, images) -> None:
    adapter = RDumb(tiny(), RDumbConfig(lr=0.1, entropy_margin=1.1, similarity_margin=0.9))
    adapter(images())
    moved = adapter.networks["model"].norm1.weight.clone()
    for _ in range(3):
        adapter(images())
        assert adapter.last["kept"] == 0
    assert torch.equal(adapter.networks["model"].norm1.weight, moved)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"period": 0}, {"similarity_margin": -0.1}, {"lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RDumbConfig(**wrong)
