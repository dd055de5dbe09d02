import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from vcotta.runs import metrics

ALL = [metrics.error, metrics.nll, metrics.brier, metrics.ece, metrics.aurc]


@pytest.fixture
def predictions():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(300, 7, generator=generator)
    return logits.log_softmax(1), torch.randint(0, 7, (300,), generator=generator)


def test_error_nll_and_brier_agree_with_scikit_learn(predictions):
    log_probs, labels = predictions
    probs = log_probs.double().exp().numpy()
    probs /= probs.sum(1, keepdims=True)
    assert metrics.error(log_probs, labels) == pytest.approx(1 - accuracy_score(labels, probs.argmax(1)))
    assert metrics.nll(log_probs, labels) == pytest.approx(log_loss(labels, probs, labels=range(7)), rel=1e-5)
    one_hot = np.eye(7)[labels]
    per_class = [brier_score_loss(one_hot[:, c], probs[:, c]) for c in range(7)]
    assert metrics.brier(log_probs, labels) == pytest.approx(sum(per_class), rel=1e-5)


def test_ece_agrees_with_a_loop_over_bins(predictions):
    log_probs, labels = predictions
    confidence, predicted = log_probs.double().exp().max(1)
    expected = 0.0
    for i in range(15):
        inside = [k for k in range(300) if i / 15 < confidence[k] <= (i + 1) / 15]
        if inside:
            right = sum(float(predicted[k] == labels[k]) for k in inside) / len(inside)
            sure = sum(float(confidence[k]) for k in inside) / len(inside)
            expected += len(inside) / 300 * abs(right - sure)
    assert metrics.ece(log_probs, labels) == pytest.approx(expected)


def test_aurc_agrees_with_a_loop_over_coverages(predictions):
    log_probs, labels = predictions
    confidence, predicted = log_probs.double().exp().max(1)
    order = sorted(range(300), key=lambda k: -float(confidence[k]))
    wrong = [float(predicted[k] != labels[k]) for k in order]
    expected = sum(sum(wrong[:k]) / k for k in range(1, 301)) / 300
    assert metrics.aurc(log_probs, labels) == pytest.approx(expected)


def test_hand_made_values():
    log_probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]]).log()
    labels = torch.tensor([0, 2])
    assert metrics.error(log_probs, labels) == 0.5
    assert metrics.nll(log_probs, labels) == pytest.approx(-(math.log(0.7) + math.log(0.4)) / 2)
    assert metrics.brier(log_probs, labels) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.25 + 0.36) / 2)
    assert metrics.ece(log_probs, labels) == pytest.approx((0.3 + 0.5) / 2)
    assert metrics.aurc(log_probs, labels) == pytest.approx((0 + 0.5) / 2)


def test_certain_and_right_scores_zero_everywhere():
    log_probs, labels = torch.eye(4).log(), torch.arange(4)
    assert [metric(log_probs, labels) for metric in ALL] == [0.0] * 5


def test_certain_and_wrong_scores_worst_everywhere():
    log_probs, labels = torch.eye(4).log(), (torch.arange(4) + 1) % 4
    assert [metric(log_probs, labels) for metric in ALL] == [1.0, math.inf, 2.0, 1.0, 1.0]


def test_a_calibrated_predictor_has_no_calibration_error():
    confidence = torch.full((10,), 0.7)
    correct = torch.arange(10) < 7
    assert metrics.ece_of(confidence, correct) == pytest.approx(0, abs=1e-7)


def test_bins_are_closed_on_the_right():
    confidence = torch.tensor([0.5, 0.75], dtype=torch.float64)
    correct = torch.tensor([True, False])
    # With two bins 0.5 belongs to the lower one; in one bin the gaps +0.5 and -0.75 would partly cancel.
    assert metrics.ece_of(confidence, correct, bins=2) == pytest.approx((0.5 + 0.75) / 2)
    assert metrics.ece_of(confidence, correct, bins=1) == pytest.approx(0.25 / 2)
    assert metrics.ece_of(torch.tensor([0.0, 1.0]), torch.tensor([False, True])) == 0


def test_tied_confidences_score_the_mean_over_their_orders():
    tied = torch.tensor([0.9, 0.6, 0.6, 0.6])
    one, other = torch.tensor([1, 0, 1, 1]), torch.tensor([1, 1, 1, 0])
    orders = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    mean = sum(sum(sum(wrong[:k]) / k for k in range(1, 5)) / 4 for wrong in orders) / 3
    assert metrics.aurc_of(tied, one) == pytest.approx(mean)
    assert metrics.aurc_of(tied, other) == metrics.aurc_of(tied, one)


def test_random_confidence_has_the_risk_of_the_error_rate():
    correct = torch.arange(40) % 4 > 0
    assert metrics.aurc_of(torch.full((40,), 0.5), correct) == pytest.approx(0.25)


def test_scores_do_not_depend_on_the_order_of_samples(predictions):
    log_probs, labels = predictions
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    for metric in ALL:
        assert metric(log_probs[order], labels[order]) == pytest.approx(metric(log_probs, labels), rel=1e-12)


def test_arguments_are_left_as_they_were(predictions):
    log_probs, labels = predictions[0].double(), predictions[1]
    before = log_probs.clone()
    for metric in ALL:
        metric(log_probs, labels)
    assert torch.equal(log_probs, before)


def test_half_precision_is_accepted(predictions):
    log_probs, labels = predictions
    assert metrics.nll(log_probs.bfloat16(), labels) == pytest.approx(metrics.nll(log_probs, labels), rel=0.01)


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize(
    ("log_probs", "labels", "text"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.long), "`log_probs` to be floats of shape"),
        (torch.zeros(3, 2, dtype=torch.long), torch.zeros(3, dtype=torch.long), "`log_probs` to be floats"),
        (torch.zeros(3, 2), torch.zeros(2, dtype=torch.long), r"`labels` to be integers of shape \(3,\)"),
        (torch.zeros(3, 2), torch.zeros(3), "`labels` to be integers"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "at least one sample"),
        (torch.zeros(2, 1), torch.tensor([0, 1]), "`labels` to be 0 to 0"),
        (torch.zeros(2, 1), torch.tensor([-1, 0]), "`labels` to be 0 to 0"),
        (torch.randn(2, 3) * 5, torch.tensor([1, 0]), "log_softmax"),
        (torch.full((2, 3), math.nan), torch.tensor([1, 0]), "sum to one"),
    ],
)
def test_wrong_input_is_refused(metric, log_probs, labels, text):
    with pytest.raises(ValueError, match=text):
        metric(log_probs, labels)


@pytest.mark.parametrize("metric", [metrics.ece_of, metrics.aurc_of])
@pytest.mark.parametrize(
    ("confidence", "correct", "text"),
    [
        ([0.5, 0.5], [1], "one shape"),
        ([], [], "at least one sample"),
        ([1.5], [1], "0 to 1"),
        ([math.nan], [1], "0 to 1"),
        ([0.5], [2], "true or false"),
    ],
)
def test_wrong_confidences_are_refused(metric, confidence, correct, text):
    with pytest.raises(ValueError, match=text):
        metric(torch.tensor(confidence), torch.tensor(correct))
