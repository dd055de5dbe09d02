from __future__ import annotations

import copy

import pytest
import torch

from vcotta import Runtime, build_adapter
from vcotta.methods import DSS, DSSConfig
from vcotta.methods.dss import negative_loss


def test_steps_are_those_of_an_independent_computation(tiny, images) -> None:
    adapter = build_adapter("dss", tiny(), lr=0.01, beta=0.9, rate=0.5, runtime=Runtime(precision="fp64"))
    student, teacher = (copy.deepcopy(tiny()).double() for _ in range(2))
    for net in (student, teacher):
        net.norm1.train(), net.norm2.train()
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    threshold = torch.tensor(0.25, dtype=torch.float64)
    highs = []
    for seed in range(3):
        x = images(12, seed).double()
        q, p = teacher(x).detach().softmax(-1), student(x).softmax(-1)
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(12):
            confidence, label = q[i].max(0)
            weight = 1.0 if confidence >= threshold else confidence
            unlikely = [k for k in range(4) if q[i, k] < 0.25]
            away = [-(1 - p[i, k]).log() for k in unlikely]
            loss = loss - weight * p[i, label].log() + sum(away) / max(1, len(away))
        loss = loss / 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for mean, now in zip(teacher.parameters(), student.parameters(), strict=True):
            mean.data = 0.9 * mean.data + 0.1 * now.data
        assert torch.allclose(adapter(images(12, seed)), q.log(), atol=1e-8)
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-7)
        highs.append(adapter.last["high"])
        threshold = 0.5 * threshold + 0.5 * q.amax(-1).mean()
    assert 0 < min(highs) < 1  # both groups occurred
    ours, theirs = (dict(net.named_parameters()) for net in (adapter.networks["student"], student))
    for name in ours.keys() - {"conv1.bias"}:  # before BatchNorm, so that Adam makes steps of rounding errors
        assert torch.allclose(ours[name], theirs[name], atol=1e-6), name


def test_with_a_threshold_of_zero_all_images_are_of_high_quality(tiny, images) -> None:
    adapter = DSS(tiny())
    adapter.memory["threshold"] = torch.zeros(())
    adapter(images())
    assert adapter.last["high"] == 1


def test_the_threshold_stays_between_0_and_1_and_follows_predictions_alone(tiny, images) -> None:
    first, second = DSS(tiny(), DSSConfig(lr=0.0, rate=0.3)), DSS(tiny(), DSSConfig(lr=0.1, rate=0.3, beta=1.0))
    for seed in range(4):  # with beta 1 the teacher, whose predictions count, never moves
        first(images(seed=seed)), second(images(seed=seed))
    assert torch.equal(first.memory["threshold"], second.memory["threshold"])
    assert 0.25 < first.memory["threshold"] < 1


def test_negative_learning_lowers_unlikely_classes_and_stays_finite() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]], requires_grad=True)
    target = torch.tensor([[0.1, 0.2, 0.7]]).log()
    loss = negative_loss(logits.log_softmax(-1), target)
    probs = logits.detach().softmax(-1)[0]
    assert loss.item() == pytest.approx((-(1 - probs[0]).log() - (1 - probs[1]).log()).item() / 2)
    loss.backward()
    assert logits.grad[0, 0] > 0  # a step against it lowers the class
    assert logits.grad[0, 1] > 0
    sure = torch.tensor([[99.0, 0.0, 0.0]], requires_grad=True)
    loss = negative_loss(sure.log_softmax(-1), target)
    loss.backward()
    assert loss.isfinite()
    assert sure.grad.isfinite().all()


def test_an_image_without_unlikely_classes_has_no_negative_loss() -> None:
    uniform = torch.full((1, 4), 0.25).log()
    assert negative_loss(uniform, uniform).item() == 0


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"rate": -0.1}, {"negative": -1.0}, {"beta": 2.0}, {"optimizer": "none"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            DSSConfig(**wrong)
