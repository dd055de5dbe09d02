from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta.methods import tca
from vcotta.methods.bn import BN
from vcotta.methods.cotta import CoTTA, CoTTAConfig
from vcotta.methods.parts.class_features import class_centres, intra_class, pair_weights, uniformity
from vcotta.methods.parts.losses import symmetric_cross_entropy
from vcotta.methods.tca import TCA, TCAConfig


def apart(features: torch.Tensor, members: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return uniformity(class_centres(features, members), members.any(0), weights)


@pytest.mark.parametrize("unit", [True, False])
def test_the_loss_is_the_sum_of_its_terms(unit, tiny, images, monkeypatch) -> None:
    views = [images(n=12, seed=7), images(n=12, seed=8)]
    drawn = iter(views)
    monkeypatch.setattr(tca, "random_view", lambda images, flip: next(drawn))
    adapter, net, x = TCA(tiny(), TCAConfig(threshold=0.0, smoothing=0.5, unit=unit)), tiny(), images(n=12)
    adapter(x)
    for norm in (net.norm1, net.norm2):
        norm.train()
    features: list[torch.Tensor] = []
    net.fc.register_forward_pre_hook(lambda layer, inputs: features.append(inputs[0]))
    logits, first, _ = (net(batch) for batch in (x, *views))
    if unit:
        features = [vectors / vectors.norm(dim=1, keepdim=True) for vectors in features]
    target = logits.log_softmax(-1)
    members = F.one_hot(first.argmax(-1), 4).float()
    weights = 0.5 * torch.full((4, 4), 0.25) + 0.5 * pair_weights(members.sum(0))
    loss = 0.5 * symmetric_cross_entropy(target, target).mean()
    loss = loss + 0.5 * symmetric_cross_entropy(target, first.log_softmax(-1)).mean()
    loss = loss + 0.025 * (apart(features[1], members, weights) - intra_class(features[1], members))
    loss = loss + 0.15 * (features[1] - features[2]).square().sum(-1).mean()
    assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert torch.allclose(adapter.memory["pair_weights"], weights, atol=1e-6)


def test_the_released_intra_class_term_has_the_opposite_sign(tiny, images) -> None:
    notes = {}
    for intra in ("compact", "spread"):
        adapter = TCA(tiny(), TCAConfig(threshold=0.0, intra=intra))
        adapter(images())
        notes[intra] = adapter.last["topology"]
    assert notes["compact"] > notes["spread"]


def test_identical_views_are_aligned(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(tca, "random_view", lambda images, flip: images)
    adapter = TCA(tiny(), TCAConfig(threshold=0.0))
    adapter(images())
    assert adapter.last["alignment"] == 0


def test_without_its_terms_it_is_cotta_without_restoration(tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(tca, "random_view", lambda images, flip: images)  # both halves of the fit are then the same
    adapter = TCA(tiny(), TCAConfig(threshold=0.0, topology=0.0, alignment=0.0, student_share=0.0, lr=0.01))
    cotta = CoTTA(tiny(), CoTTAConfig(threshold=0.0, restore=0.0, loss="sce", lr=0.01))
    for seed in range(3):
        assert torch.allclose(adapter(images(seed=seed)), cotta(images(seed=seed)), atol=1e-5)


def test_the_prediction_mixes_logits_of_student_and_teacher_from_before_the_step(tiny, images) -> None:
    predictions = {}
    for share in (0.0, 0.3, 1.0):
        adapter = TCA(tiny(), TCAConfig(threshold=0.0, student_share=share, lr=0.0))
        with torch.no_grad():
            adapter.networks["student"].fc.bias += torch.tensor([0.0, 0.5, 1.0, -1.0])
        predictions[share] = adapter(images())
    assert torch.allclose(predictions[0.0], BN(tiny())(images()), atol=1e-6)
    expected = (0.3 * predictions[1.0] + 0.7 * predictions[0.0]).log_softmax(-1)
    assert torch.allclose(predictions[0.3], expected, atol=1e-6)


def test_pair_weights_start_equal_and_stay_without_smoothing(tiny, images) -> None:
    adapter = TCA(tiny(), TCAConfig(threshold=0.0, smoothing=0.0))
    adapter(images())
    assert torch.equal(adapter.memory["pair_weights"], torch.full((4, 4), 0.25))


def test_a_network_without_features_is_refused() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match="a network with a linear layer"):
        TCA(net)


def test_wrong_settings_are_refused() -> None:
    for wrong in (
        {"views": -1},
        {"smoothing": 1.5},
        {"student_share": -0.1},
        {"topology": -1.0},
        {"intra": "none"},
    ):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            TCAConfig(**wrong)
