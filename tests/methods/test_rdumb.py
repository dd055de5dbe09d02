from __future__ import annotations

import copy
import math

import pytest
import torch

from vcotta import Runtime
from vcotta.methods import BN, EATA, EATAConfig, RDumb, RDumbConfig

ALL = {"entropy_margin": 1.1, "similarity_margin": 1.1}


def test_after_a_period_the_prediction_is_that_of_a_new_network(tiny, images) -> None:
    adapter, bn = RDumb(tiny(), RDumbConfig(period=3, lr=0.1, **ALL)), BN(tiny())
    fresh = [torch.allclose(adapter(images(seed=seed)), bn(images(seed=seed)), atol=1e-6) for seed in range(7)]
    assert fresh == [True, False, False, True, False, False, True]


def published(start, batches, config):
    """Each batch's log-probabilities and share of samples learned from."""
    for step, x in enumerate(batches):
        if step % config.period == 0:
            net, mean = copy.deepcopy(start).train(), None
            trained = [*net.norm1.parameters(), *net.norm2.parameters()]
            if config.optimizer == "adam":
                optimizer = torch.optim.Adam(trained, config.lr)
            else:
                optimizer = torch.optim.SGD(trained, config.lr, momentum=0.9, nesterov=True)
        p = net(x).softmax(-1)
        entropies, ceiling = -(p * p.log()).sum(-1), config.entropy_margin * math.log(4)
        kept = entropies < ceiling
        if mean is not None:
            kept &= torch.cosine_similarity(p, mean, dim=-1) < config.similarity_margin
        if kept.any():
            new = p[kept].mean(0).detach()
            mean = new if mean is None else 0.9 * mean + 0.1 * new
            optimizer.zero_grad()
            (entropies * (ceiling - entropies.detach()).exp())[kept].mean().backward()
            optimizer.step()
        yield p.log(), kept.double().mean()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_stream_follows_the_published_steps_and_a_restart_clears_moments_and_mean_prediction(
    optimizer, tiny, images
) -> None:
    net = tiny().double()
    net.fc.weight.data *= 16  # so that some samples are sure and some novel
    config = RDumbConfig(period=3, lr=0.05, optimizer=optimizer, entropy_margin=0.5, similarity_margin=0.9)
    adapter = RDumb(net, config, runtime=Runtime(precision="fp64"))
    batches = [images(12, seed % 3).double() for seed in range(7)]
    for x, (log_probs, share) in zip(batches, published(net, batches, config), strict=True):
        assert torch.allclose(adapter(x), log_probs, atol=1e-9)
        assert adapter.last["kept"] == pytest.approx(share.item())
        assert 0 < share < 1


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
