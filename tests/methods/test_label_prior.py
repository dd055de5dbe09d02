"""The label prior: what it recovers, what it leaves alone."""

from __future__ import annotations

import pytest
import torch

from vcotta.methods.label_prior import PART, LabelPrior


def one_hot(labels: torch.Tensor, classes: int, sure: float = 0.98) -> torch.Tensor:
    rest = (1 - sure) / (classes - 1)
    return (torch.nn.functional.one_hot(labels, classes) * (sure - rest) + rest).log()


@pytest.mark.parametrize("known", [[[0.7, 0.2, 0.1, 0.0]], [[0.7, 0.2, 0.1, 0.0], [0.0, 0.1, 0.2, 0.7]]])
def test_a_label_prior_that_lasts_or_changes_is_recovered_from_calibrated_predictions(known) -> None:
    generator, prior = torch.Generator().manual_seed(0), LabelPrior()
    wrong, wrong_alone, found = [], [], []
    for turn in range(12):
        true = torch.tensor(known[turn % len(known)])
        for _ in range(5):
            labels = torch.multinomial(true, 50, replacement=True, generator=generator)
            logits = 2 * torch.randn(50, 4, generator=generator)
            logits[torch.arange(50), labels] += 4.0  # calibrated for a flat prior: a shift of two deviations
            answered = prior(logits.log_softmax(-1), update=True)
            wrong.append((answered.argmax(1) != labels).float().mean())
            wrong_alone.append((logits.argmax(1) != labels).float().mean())
        found.append(prior.counts[-1] / prior.counts[-1].sum())  # of the last fifty images or so
    assert prior.concentration().item() < 10
    for turn, true in enumerate(known):
        recovered = torch.stack(found[turn :: len(known)][1:]).mean(0)
        assert torch.allclose(recovered, torch.tensor(true), atol=0.12)
    assert torch.stack(wrong[10:]).mean() < 0.8 * torch.stack(wrong_alone[10:]).mean()


def test_neighbours_decide_where_an_image_alone_is_unsure() -> None:
    generator, prior = torch.Generator().manual_seed(0), LabelPrior()
    labels = torch.randint(10, (150,), generator=generator).repeat_interleave(8)  # runs of eight images
    log_probs = one_hot(labels, 10, sure=0.5)
    log_probs[::4] = one_hot((labels[::4] + 1) % 10, 10, sure=0.5)  # every fourth is wrong
    answered = torch.cat([prior(part, update=True) for part in log_probs.split(200)])
    assert (log_probs.argmax(1) == labels).float().mean() == 0.75
    assert (answered.argmax(1) == labels)[-400:].float().mean() > 0.85  # every other wrong one is at the edge of a run


def test_a_preference_of_the_network_is_not_taken_for_a_label_prior() -> None:
    generator, prior = torch.Generator().manual_seed(0), LabelPrior()
    for _ in range(20):
        labels = torch.randint(10, (50,), generator=generator)
        labels[:10] = 3  # a fifth more of the predictions are of one class, in no order
        log_probs = one_hot(labels[torch.randperm(50, generator=generator)], 10, sure=0.8)
        answered = prior(log_probs, update=True)
    assert prior.infer(log_probs).mixed > 0.7
    assert (answered.exp() - log_probs.exp()).abs().max() < 0.05


def test_a_batch_in_parts_is_inferred_like_one_after_another() -> None:
    whole, parts = LabelPrior(), LabelPrior()
    log_probs = one_hot(torch.arange(PART + 30) // 40 % 10, 10, sure=0.6)
    answered = whole(log_probs, update=True)
    expected = [parts(part, update=True) for part in log_probs.split(PART)]
    assert torch.equal(answered, torch.cat(expected))
    assert torch.equal(whole.state_dict()["belief"], parts.state_dict()["belief"])


@pytest.mark.parametrize("seed", range(3))
def test_a_flat_label_prior_stays_flat(seed) -> None:
    generator, prior = torch.Generator().manual_seed(seed), LabelPrior()
    for _ in range(100):
        log_probs = one_hot(torch.randint(10, (50,), generator=generator), 10, sure=0.8)
        answered = prior(log_probs, update=True)
    assert prior.infer(log_probs).mixed > 0.9
    assert (answered.exp() - log_probs.exp()).abs().max() < 0.02


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


def test_a_batch_in_parts_with_one_answer_that_is_no_number_is_not_remembered() -> None:
    prior = LabelPrior()
    prior(one_hot(torch.arange(10), 10), update=True)
    before, log_probs = prior.state_dict(), one_hot(torch.arange(PART + 30) % 10, 10)
    log_probs[3] = torch.nan
    prior(log_probs, update=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in prior.state_dict().items())


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
