from __future__ import annotations

import math

import pytest

from vcotta.report.stats import Score, along_stream, half_width, noted, reliability_bins, risk_coverage, spans, varies

FOG, SNOW = ("fog", 5), ("snow", 5)


@pytest.mark.parametrize(("values", "quantile"), [([1.0, 3.0], 12.7062), ([1.0, 2.0, 3.0], 4.30265)])
def test_the_interval_is_students(values, quantile) -> None:
    deviation = math.sqrt(sum((value - 2) ** 2 for value in values) / (len(values) - 1))
    assert half_width(values) == pytest.approx(quantile * deviation / math.sqrt(len(values)), rel=1e-5)


def test_the_interval_of_many_values_is_almost_that_of_a_normal_distribution() -> None:
    assert half_width(list(range(100))) == pytest.approx(1.9842 * 29.011492 / 10, rel=1e-4)


def test_there_is_no_interval_of_a_single_or_an_infinite_value() -> None:
    assert math.isnan(half_width([1.0]))
    assert math.isnan(half_width([1.0, math.inf]))
    assert Score.of([1.0]).text(".1f") == "1.0"
    assert Score.of([2.0, 2.0]).text(".1f") == "2.0"
    assert Score.of([1.0, math.inf]).text(".1f") == "inf"
    assert math.isnan(Score.of([1.0, math.nan]).mean)
    assert math.isnan(Score.of([]).mean)


def test_curves_follow_the_stream_and_have_gaps_where_a_value_is_missing(make_run) -> None:
    run = make_run("vcotta", {FOG: 10, SNOW: 4}, alphas=[0.5, None, 0.25, 0.75])
    assert [(span.label, span.start, span.end) for span in spans(run)] == [("fog", 0, 2), ("snow", 2, 4)]
    assert noted([run]) == ["alpha"]
    assert varies([run], "alpha")
    assert not varies([run], "beta")
    assert along_stream([run]).mean.tolist() == [50, 50, 20, 20]
    alpha = along_stream([run], "alpha")
    assert alpha.mean[0] == 0.5
    assert math.isnan(alpha.mean[1])
    short = along_stream([run], "alpha", most=2)
    assert short.mean.tolist() == [0.5, 0.5]
    assert short.batches.tolist() == [0.5, 2.5]


def test_a_curve_of_several_runs_has_the_interval_of_each_batch(make_run) -> None:
    curve = along_stream([make_run("bn", {FOG: wrong}) for wrong in (2, 4, 6)])  # 10, 20 and 30 per cent
    assert curve.mean.tolist() == pytest.approx([20, 20])
    assert (curve.high - curve.mean).tolist() == pytest.approx([half_width([10.0, 20.0, 30.0])] * 2)
    assert (curve.mean - curve.low).tolist() == pytest.approx((curve.high - curve.mean).tolist())


def test_bins_and_risk_agree_with_the_metrics(make_run) -> None:
    run = make_run("bn", {FOG: 10, SNOW: 4})
    ((confidence, accuracy, count),) = reliability_bins([run])
    assert (confidence, accuracy, count) == (pytest.approx(0.9), pytest.approx(0.65), 80)
    coverage, risk = risk_coverage([run])
    assert coverage[-1] == 1
    assert risk.tolist() == pytest.approx([0.35] * len(risk))
