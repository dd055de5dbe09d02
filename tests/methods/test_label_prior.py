"""The label prior: what it recovers, what it leaves alone."""

from __future__ import annotations

import torch

from vcotta.methods.label_prior import LabelPrior


def one_hot(labels: torch.Tensor, classes: int, sure: float = 0.98) -> torch.Tensor:
    rest = (1 - sure) / (classes - 1)
    return (torch.nn.functional.one_hot(labels, classes) * (sure - rest) + rest).log()


def test_a_label_prior_is_recovered_from_calibrated_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([0.7, 0.2, 0.1, 0.0])
    prior = LabelPrior()
    for _ in range(60):
        labels = torch.multinomial(true, 50, replacement=True, generator=generator)
        logits = torch.randn(50, 4, generator=generator)
        logits[torch.arange(50), labels] += 1.0  # calibrated for a flat prior: a shift of one standard deviation
        found = prior(logits.log_softmax(-1), update=True).exp().mean(0)
    assert prior.concentration().item() < 2
    assert torch.allclose(found, true, atol=0.15)
    assert (prior.counts / prior.counts.sum() - true).abs().max() < 0.15


def test_a_flat_label_prior_stays_flat() -> None:
    generator, prior = torch.Generator().manual_seed(0), LabelPrior()
    for _ in range(100):
        log_probs = one_hot(torch.randint(10, (50,), generator=generator), 10, sure=0.8)
        answered = prior(log_probs, update=True)
    assert prior.concentration().item() > 20
    assert (answered.exp() - log_probs.exp()).abs().max() < 0.1


def test_a_clumped_stream_is_recognised_within_a_few_batches() -> None:
    prior = LabelPrior()
    unsure = one_hot(torch.full((20,), 1), 10, sure=0.5)
    for _ in range(15):
        answered = prior(unsure, update=True)
    assert answered[:, 1].exp().min() > 0.8


def test_a_prediction_alone_leaves_the_label_prior_as_it_is() -> None:
    prior = LabelPrior()
    prior(one_hot(torch.full((20,), 1), 10), update=True)
    before = {key: torch.as_tensor(value).clone() for key, value in prior.state_dict().items()}
    prior(one_hot(torch.full((20,), 2), 10))
    assert all(torch.equal(torch.as_tensor(value), before[key]) for key, value in prior.state_dict().items())


def test_answers_that_are_not_numbers_leave_the_prior_sane() -> None:
    prior = LabelPrior()
    prior(one_hot(torch.arange(10), 10), update=True)
    prior(torch.full((5, 10), torch.nan), update=True)
    assert all(tensor.isfinite().all() for tensor in prior.state_dict().values())
    assert prior(one_hot(torch.arange(10), 10)).isfinite().all()


def test_single_images_of_one_class_in_a_row_make_the_next_likelier() -> None:
    prior = LabelPrior()
    for _ in range(60):
        prior(one_hot(torch.tensor([2]), 10, sure=0.9), update=True)
    unsure = one_hot(torch.tensor([2]), 10, sure=0.3)
    assert prior(unsure)[0, 2].exp() > 0.9
