from __future__ import annotations

import pytest
import torch

from vcotta import build_adapter, to_variational
from vcotta.methods.parts.losses import entropy
from vcotta.methods.prediction import RECENT, abstain, decompose
from vcotta.runs import metrics


@pytest.fixture
def adapter(tiny):
    return build_adapter("vcotta", to_variational(tiny()), views=2, seed=3)


def test_entropies_are_those_of_a_loop_over_images_and_draws() -> None:
    draws = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    predictive, expected, information = decompose(draws)
    for image in range(7):
        p = draws[:, image].exp()
        mean = p.mean(0)
        assert predictive[image] == pytest.approx(-float((mean * mean.log()).sum()))
        assert expected[image] == pytest.approx(sum(-float((q * q.log()).sum()) for q in p) / 5)
        # E KL(p || mean), the other way to write it
        divergence = sum(float((q * (q / mean).log()).sum()) for q in p) / 5
        assert information[image] == pytest.approx(divergence)


def test_draws_that_agree_carry_no_information_and_very_sure_ones_no_nan() -> None:
    one = torch.tensor([[900.0, 0.0], [1.0, 2.0]]).log_softmax(-1)
    predictive, expected, information = decompose(one.expand(4, -1, -1))
    assert torch.allclose(predictive, expected, atol=1e-6)
    assert information.max() < 1e-6


def test_several_draws_disagree_and_their_entropy_is_at_least_the_expected_one(adapter, images) -> None:
    found = adapter.predict(images(), samples=4)
    assert (found.mutual_information > 0).all()
    assert torch.allclose(found.predictive_entropy, found.expected_entropy + found.mutual_information, atol=1e-6)
    single = adapter.predict(images(), samples=1)
    assert single.mutual_information.max() < 1e-6


def test_wider_posteriors_know_less(tiny, images) -> None:
    information = [
        build_adapter("vcotta", to_variational(tiny(), sigma_ratio=ratio), views=1)
        .predict(images(), samples=16)
        .mutual_information.mean()
        for ratio in (0.05, 0.3)
    ]
    assert information[1] > 2 * information[0]


@pytest.mark.parametrize("scope", ["batch", "sample"])
def test_alpha_is_the_weight_of_the_source_for_each_image(scope, tiny, images) -> None:
    adapter = build_adapter("vcotta", to_variational(tiny()), views=2, scope=scope, lr=0.05, alpha="entropy")
    for seed in range(3):
        adapter(images(seed=seed))
    alpha = adapter.predict(images()).alpha
    assert alpha.shape == (6,)
    adapter(images())
    assert alpha.mean().item() == pytest.approx(adapter.last["prediction_alpha"])


def test_without_a_coverage_nothing_is_withheld_and_with_it_the_unsure_are(adapter, images) -> None:
    assert not adapter.predict(images()).abstain.any()
    found = adapter.predict(images(10), coverage=0.7)
    doubts = entropy(found.probabilities.log())
    assert found.abstain.sum() == 3
    assert doubts[found.abstain].min() > doubts[~found.abstain].max()


def test_the_share_answered_is_that_of_the_streams_own_past() -> None:
    recent = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    usual = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    assert abstain(usual, recent, 0.8).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert abstain(usual + 0.5, recent, 0.8).float().mean().item() == pytest.approx(0.7, abs=0.05)
    assert not abstain(usual / 2, recent, 0.8).any()
    assert not abstain(torch.full((3,), 0.9), recent, 1.0).any()


def test_an_answer_that_is_not_a_number_is_withheld_and_does_not_move_the_bound() -> None:
    recent, answers = torch.linspace(0, 1, 200), torch.tensor([0.1, torch.nan, 0.9])
    assert abstain(answers, recent, 0.8).tolist() == [False, True, True]
    assert abstain(answers, torch.cat([recent, answers[1:2]]), 0.8).tolist() == [False, True, True]
    assert abstain(answers[1:2], answers[1:2], 1.0).tolist() == [True]


def test_withholding_lowers_the_risk_as_the_risk_coverage_curve_says() -> None:
    draws = torch.Generator().manual_seed(0)
    truth = 2 * torch.randn(4000, 5, generator=draws).double()
    labels = torch.distributions.Categorical(logits=truth).sample()
    log_probs = truth.log_softmax(-1)
    doubts, wrong = entropy(log_probs), (log_probs.argmax(-1) != labels).double()
    risks = []
    for coverage in (0.25, 0.5, 1.0):
        kept = ~abstain(doubts, doubts, coverage)
        assert kept.double().mean().item() == pytest.approx(coverage, abs=1e-3)
        reference = wrong[doubts.argsort()[: round(coverage * 4000)]].mean()  # the most certain so many
        assert wrong[kept].mean().item() == pytest.approx(reference.item(), abs=1e-3)
        risks.append(wrong[kept].mean().item())
    assert risks == sorted(risks)
    curve = wrong[log_probs.amax(-1).argsort(descending=True)].cumsum(0) / torch.arange(1, 4001)
    assert metrics.aurc(log_probs, labels) == pytest.approx(curve.mean().item())


def test_an_adapter_remembers_the_entropies_of_its_latest_answers_and_saves_them(adapter, images, tiny) -> None:
    for seed in range(3):
        adapter(images(seed=seed))
    assert len(adapter.state_dict()["recent"]) == 3 * len(images())
    other = build_adapter("vcotta", to_variational(tiny()), views=2)
    other.load_state_dict(adapter.state_dict())
    one, two = (a.predict(images(seed=9), coverage=0.5) for a in (adapter, other))
    assert torch.equal(one.abstain, two.abstain)
    for seed in range(RECENT // 200 + 1):
        adapter(images(200, seed=seed))
    assert len(adapter.state_dict()["recent"]) == RECENT


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"samples": 2.5}, {"coverage": 0.0}, {"coverage": 1.2}])
def test_requests_out_of_range_are_refused_by_name(wrong, adapter, images) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        adapter.predict(images(), **wrong)
