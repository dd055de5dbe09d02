from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta import Runtime, build_adapter
from vcotta.methods import BN, SWA, SWAConfig, swa
from vcotta.methods.swa import soft_contrast, weight_distance


def contrast(features: Tensor, others: Tensor, probs: Tensor, temperature: float) -> Tensor:
    """The formula, pair by pair."""
    total = torch.zeros((), dtype=features.dtype)
    for i in range(len(features)):
        related = unrelated = torch.zeros((), dtype=features.dtype)
        for j in range(len(others)):
            score = (F.cosine_similarity(features[i], others[j], dim=0) / temperature).exp()
            related = related + (1.0 if i == j else (probs[i] * probs[j]).sum()) * score
            unrelated = unrelated + score
        total = total - (related / unrelated).log()
    return total / len(features)


def outputs(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits with the statistics of the batch."""
    for norm in (net.norm1, net.norm2):
        norm.train()
    h = torch.relu(net.norm2(net.conv2(torch.relu(net.norm1(net.conv1(x)))))).mean((2, 3))
    return h, net.fc(h)


def test_steps_are_those_of_an_independent_computation(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(swa, "random_view", lambda images, flip: images.flip(-1))
    adapter = build_adapter("swa", tiny(), lr=0.01, beta=0.9, rate=0.5, runtime=Runtime(precision="fp64"))
    student, teacher, start = (copy.deepcopy(tiny()).double() for _ in range(3))
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    threshold = torch.tensor(0.25, dtype=torch.float64)
    for seed in range(3):
        x = images(12, seed).double()
        q = outputs(teacher, x)[1].detach().softmax(-1)
        features, logits = outputs(student, x)
        others, _ = outputs(student, x.flip(-1))
        safe = q.amax(-1) >= threshold
        loss = F.cross_entropy(logits[safe], q.argmax(-1)[safe]) if safe.any() else 0.0
        loss = loss + contrast(features, others, q, 0.1)
        now, first = (nn.utils.parameters_to_vector(net.parameters()) for net in (student, start))
        loss = loss + (now - first.detach()).square().sum() / first.detach().square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for mean, now in zip(teacher.parameters(), student.parameters(), strict=True):
            mean.data = 0.9 * mean.data + 0.1 * now.data
        assert torch.allclose(adapter(images(12, seed)), q.log(), atol=1e-8)
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert adapter.last["threshold"] == pytest.approx(threshold.item())
        threshold = 0.5 * threshold + 0.5 * q.amax(-1).mean()
    ours, theirs = (dict(net.named_parameters()) for net in (adapter.networks["student"], student))
    for name in ours.keys() - {"conv1.bias"}:  # before BatchNorm, so that Adam makes steps of rounding errors
        assert torch.allclose(ours[name], theirs[name], atol=1e-6), name


def test_images_below_the_threshold_give_no_label(tiny, images) -> None:
    adapter = SWA(tiny(), SWAConfig(lr=0.1, contrast=0.0))
    adapter.memory["threshold"] = torch.ones(())
    expected = BN(tiny())(images())
    assert torch.allclose(adapter(images()), expected, atol=1e-6)
    assert adapter.last["kept"] == 0
    assert torch.allclose(adapter(images()), expected, atol=1e-6)  # nothing was learned from them


def test_the_threshold_is_a_moving_average_of_the_confidence(tiny, images) -> None:
    adapter = SWA(tiny(), SWAConfig(rate=1.0))
    confidence = adapter(images()).exp().amax(-1).mean()
    assert adapter.last["threshold"] == 0.25
    assert adapter.memory["threshold"] == pytest.approx(confidence.item())
    assert 0 < adapter.memory["threshold"] < 1


def test_the_distance_is_zero_at_the_source_and_relative_to_its_weights(tiny) -> None:
    net = tiny().requires_grad_(False)
    assert weight_distance(net, tiny()) == 0
    for parameter in net.parameters():
        parameter.mul_(1.5)
    assert weight_distance(net, tiny()).item() == pytest.approx(0.25, rel=1e-4)


def test_related_images_are_drawn_together_and_others_apart() -> None:
    features = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], requires_grad=True)
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    soft_contrast(features, features.detach(), probs, 1.0).backward()
    assert features.grad[0, 1] > 0  # away from the third, of another class
    assert features.grad[2, 0] > 0  # and that one from the first
    found = soft_contrast(features, features.detach(), probs, 0.5)
    assert found.item() == pytest.approx(contrast(features, features, probs, 0.5).item(), rel=1e-5)
    assert soft_contrast(features, features, torch.full((3, 2), 2**-0.5), 1.0).item() == pytest.approx(0, abs=1e-6)


def test_alignment_keeps_the_weights_nearer_to_the_source(tiny, images) -> None:
    far, near = (SWA(tiny(), SWAConfig(lr=0.01, alignment=weight)) for weight in (0.0, 100.0))
    for seed in range(4):
        far(images(12, seed)), near(images(12, seed))
    assert near.parameter_distance() < far.parameter_distance()


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"rate": 2.0}, {"contrast": -1.0}, {"temperature": 0.0}, {"alignment": -1.0}, {"lr": "fast"}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            SWAConfig(**wrong)
