from __future__ import annotations

import pytest
import torch

from vcotta import build_adapter
from vcotta.methods import BN, CoTTA, CoTTAConfig
from vcotta.methods.parts import view_average


def test_restoring_everything_keeps_the_student_at_the_source(tiny, images) -> None:
    adapter = CoTTA(tiny(), CoTTAConfig(restore=1.0, views=1))
    adapter(images())
    for ours, source in zip(adapter.networks["student"].parameters(), tiny().parameters(), strict=True):
        assert torch.equal(ours, source)


def test_the_restored_share_is_the_configured_one_and_restored_weights_equal_the_source(tiny, images) -> None:
    adapter = CoTTA(tiny(), CoTTAConfig(restore=0.3, threshold=0.0))
    adapter(images())
    pairs = zip(adapter.networks["student"].parameters(), adapter.start.parameters(), strict=True)
    equal = torch.cat([(ours == source).flatten() for ours, source in pairs]).float()
    n = equal.numel()
    assert abs(equal.mean() - 0.3) < 5 * (0.3 * 0.7 / n) ** 0.5 + 0.02  # a few weights get no gradient at all


def test_the_teacher_sees_the_student_before_its_restoration(tiny, images) -> None:
    adapter = CoTTA(tiny(), CoTTAConfig(restore=1.0, beta=0.0, threshold=0.0))
    adapter(images())
    teacher, student = adapter.networks["teacher"], adapter.networks["student"]
    assert not torch.equal(teacher.fc.weight, student.fc.weight)


def test_a_sure_source_means_no_views_and_the_prediction_of_bn(tiny, images) -> None:
    adapter = CoTTA(tiny(), CoTTAConfig(threshold=0.0, views=5))
    assert torch.equal(adapter(images()), BN(tiny())(images()))
    assert adapter.last["forwards"] == 3


def test_an_unsure_source_means_exactly_n_views(tiny, images, monkeypatch) -> None:
    calls = []

    def same(images, count, flip):
        calls.append((count, flip))
        return images.expand(count, *images.shape)

    monkeypatch.setattr(view_average, "random_views", same)
    adapter = CoTTA(tiny(), CoTTAConfig(threshold=1.1, views=5, flip=False))
    output = adapter(images())
    assert calls == [(5, False)]
    assert torch.allclose(output, BN(tiny())(images()), atol=1e-5)  # the average of five equal views


def test_without_a_step_nothing_moves(tiny, images) -> None:
    adapter, bn = CoTTA(tiny(), CoTTAConfig(lr=0.0, threshold=0.0)), BN(tiny())
    for seed in range(3):
        assert torch.allclose(adapter(images(seed=seed)), bn(images(seed=seed)), atol=1e-5)


def test_the_threshold_comes_from_source_data_by_the_authors_rule(tiny, images) -> None:
    model = tiny()
    source = [(images(50, seed), torch.zeros(50, dtype=torch.long)) for seed in range(2)]
    confidence = torch.cat([model(x).softmax(-1).amax(-1) for x, _ in source])
    adapter = build_adapter("cotta", model, source=source)
    assert adapter.threshold == pytest.approx(confidence.quantile(0.05).item() - 0.05, abs=1e-5)
    assert build_adapter("cotta", model, source=source, threshold=0.7).threshold == 0.7


def test_bad_source_data_is_refused(tiny, images) -> None:
    with pytest.raises(ValueError, match="empty"):
        build_adapter("cotta", tiny(), source=[])
    with pytest.raises(ValueError, match="Divide by 255"):
        build_adapter("cotta", tiny(), source=[(255 * images(), torch.zeros(6))])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"views": -1}, {"restore": 1.5}, {"beta": -0.1}, {"loss": "mse"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            CoTTAConfig(**wrong)
