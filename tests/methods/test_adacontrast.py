from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from vcotta.methods import AdaContrast, AdaContrastConfig, Source, adacontrast
from vcotta.methods.adacontrast import diversity_loss, instance_loss


@pytest.fixture
def make(tiny):
    def build(seed: int = 0, **options) -> AdaContrast:
        return AdaContrast(tiny(), AdaContrastConfig(**({"queue": 16, "lr": 0.01} | options)), seed=seed)

    return build


def parameters(adapter, role: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks[role].parameters()]


def plain_views(monkeypatch) -> None:
    monkeypatch.setattr(adacontrast, "weak_view", lambda images, flip: images)
    monkeypatch.setattr(adacontrast, "strong_view", lambda images, flip: images.flip(-1))


def test_the_instance_loss_is_its_formula() -> None:
    q, k, queue = (F.normalize(torch.randn(n, 6, dtype=torch.float64), dim=-1) for n in (5, 5, 9))
    same = torch.rand(5, 9) < 0.4
    total = 0.0
    for i in range(5):
        own = math.exp(float(q[i] @ k[i]) / 0.07)
        others = sum(math.exp(float(q[i] @ queue[j]) / 0.07) for j in range(9) if not same[i, j])
        total -= math.log(own / (own + others))
    assert instance_loss(q, k, queue, same, 0.07).item() == pytest.approx(total / 5)


def test_without_negatives_of_other_classes_the_instance_loss_is_zero_with_a_finite_gradient() -> None:
    q = torch.randn(3, 4, requires_grad=True)
    loss = instance_loss(q, torch.randn(3, 4), torch.randn(6, 4), torch.ones(3, 6, dtype=torch.bool), 0.07)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(q.grad, torch.zeros(3, 4))


def test_the_diversity_loss_is_least_for_equally_frequent_classes() -> None:
    assert diversity_loss(100 * torch.eye(4)).item() == pytest.approx(-math.log(4), abs=1e-5)
    assert diversity_loss(100 * torch.eye(4)[:1].expand(5, -1)).item() == pytest.approx(0, abs=1e-5)


def test_the_loss_is_the_sum_of_its_parts(make, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    adapter = make(contrast=0.5, diversity=0.25, refine_after=0)
    adapter(images(seed=1))
    student, teacher, memory = adapter.networks["student"], adapter.networks["teacher"], adapter.memory
    with torch.no_grad():
        f_q, z_q = adapter.features_and_logits(student, images().flip(-1))
        f_k, _ = adapter.features_and_logits(teacher, images().flip(-1))
    y = memory["probabilities"][:6].sum(0).argmax().expand(6)  # ten neighbours wanted, six there: all of them vote
    same = y[:, None] == memory["labels"][None]
    q, k = F.normalize(f_q, dim=-1), F.normalize(f_k, dim=-1)
    expected = F.cross_entropy(z_q, y) + 0.5 * instance_loss(q, k, memory["keys"], same, 0.07)
    expected = expected + 0.25 * diversity_loss(z_q)
    adapter(images())
    assert adapter.last["loss"] == pytest.approx(expected.item(), abs=1e-4)


def test_the_prediction_is_the_updated_students_with_its_moved_statistics(make, images) -> None:
    adapter = make()
    output = adapter(images())
    student = adapter.networks["student"]
    assert not torch.equal(student.norm1.running_mean, adapter.start.norm1.running_mean)
    expected = adapter.logits(student, images(), batch_statistics=False).log_softmax(-1)
    assert torch.allclose(output, expected, atol=1e-6)


def test_the_students_statistics_move_by_the_weak_and_then_the_strong_view(make, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    adapter = make(lr=0.0)
    adapter(images())
    conv, norm, moved = adapter.start.conv1, adapter.start.norm1, adapter.networks["student"].norm1
    mean, variance = norm.running_mean.clone(), norm.running_var.clone()
    for view in (images(), images().flip(-1)):
        out = conv(view).transpose(0, 1).flatten(1)
        mean, variance = 0.9 * mean + 0.1 * out.mean(1), 0.9 * variance + 0.1 * out.var(1)
    assert torch.allclose(moved.running_mean, mean, atol=1e-6)
    assert torch.allclose(moved.running_var, variance, atol=1e-6)
    assert moved.num_batches_tracked == norm.num_batches_tracked + 2


def test_statistics_move_in_training_passes_only(make, images) -> None:
    adapter = make()
    adapter(images())
    student = adapter.networks["student"]
    assert not any(norm.track_running_stats for norm in (student.norm1, student.norm2))
    before = student.norm1.running_mean.clone()
    adapter.logits(student, images())
    adapter.logits(student, images(), batch_statistics=False)
    assert torch.equal(before, student.norm1.running_mean)


def test_without_a_step_and_with_resting_statistics_it_is_the_source(tiny, images) -> None:
    model = tiny()
    config = AdaContrastConfig(queue=16, lr=0.0)
    moving = AdaContrast(model, config)(images())
    assert not torch.allclose(moving, Source(model)(images()), atol=1e-3)
    model.norm1.momentum = model.norm2.momentum = 0.0
    assert torch.allclose(AdaContrast(model, config)(images()), Source(model)(images()), atol=1e-6)


def test_a_single_image_leaves_the_statistics(make, images) -> None:
    adapter = make()
    adapter(images(1))
    student = adapter.networks["student"]
    assert torch.equal(student.norm1.running_mean, adapter.start.norm1.running_mean)
    assert not torch.equal(student.fc.weight, adapter.start.fc.weight)


def test_a_decay_of_one_freezes_the_teacher_and_of_zero_makes_keys_by_the_student_before_its_step(make, images) -> None:
    frozen, copied = make(beta=1.0), make(beta=0.0)
    for seed in range(2):
        frozen(images(seed=seed))
        assert all(map(torch.equal, parameters(copied, "teacher"), parameters(copied, "student")))
        copied(images(seed=seed))
    assert all(map(torch.equal, parameters(frozen, "teacher"), frozen.start.parameters()))


def test_keys_go_round_in_the_queue_and_keep_unit_length(make, images) -> None:
    adapter = make(queue=16)
    memory = adapter.memory
    assert torch.allclose(memory["keys"].norm(dim=-1), torch.ones(16))
    for step in range(1, 5):
        before = memory["keys"].clone()
        adapter(images(seed=step))
        assert memory["seen"] == 6 * step
        assert torch.allclose(memory["keys"].norm(dim=-1), torch.ones(16))
        written = {place % 16 for place in range(6 * step - 6, 6 * step)}
        changed = {place for place in range(16) if not torch.equal(before[place], memory["keys"][place])}
        assert changed == written


def test_the_bank_holds_the_key_encoders_features_of_the_last_images(make, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    adapter = make(queue=8, beta=0.5)
    adapter(images())
    assert (adapter.memory["probabilities"].sum(-1) > 0).tolist() == [True] * 6 + [False] * 2
    teacher = adapter.networks["teacher"]
    features, logits = adapter.features_and_logits(teacher, images(seed=1))
    adapter(images(seed=1))
    places = [6, 7, 0, 1, 2, 3]
    assert torch.allclose(adapter.memory["features"][places], F.normalize(features, dim=-1), atol=1e-5)
    assert torch.allclose(adapter.memory["probabilities"][places], logits.softmax(-1), atol=1e-5)


def test_a_batch_larger_than_the_queue_leaves_its_last_images(make, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    adapter = make(queue=4)
    adapter(images())
    features, _ = adapter.features_and_logits(adapter.start, images())
    assert adapter.memory["seen"] == 4
    assert torch.allclose(adapter.memory["features"], F.normalize(features[2:], dim=-1), atol=1e-5)


def test_labels_are_the_weak_views_until_enough_was_seen(make) -> None:
    adapter = make(refine_after=10, neighbours=1)
    adapter.memory["features"][:6] = F.normalize(torch.randn(6, 8), dim=-1)
    adapter.memory["probabilities"][:6, 3] = 1.0
    adapter.memory["seen"].fill_(9)
    logits = torch.randn(5, 4)
    assert torch.equal(adapter._labels(torch.randn(5, 8), logits), logits.argmax(-1))
    adapter.memory["seen"].fill_(10)
    assert torch.equal(adapter._labels(adapter.memory["features"][:5], logits), torch.full((5,), 3))


def test_the_nearest_neighbours_vote(make) -> None:
    adapter = make(refine_after=1, neighbours=3, queue=12)
    bank = F.normalize(torch.randn(12, 8), dim=-1)
    votes = torch.rand(12, 4).softmax(-1)
    adapter.memory["features"].copy_(bank)
    adapter.memory["probabilities"].copy_(votes)
    adapter.memory["seen"].fill_(7)  # the other five are not there yet
    features = 3 * torch.randn(20, 8)
    cosines = F.cosine_similarity(features[:, None], bank[None, :7], dim=-1)
    expected = torch.stack([votes[row.argsort(descending=True)[:3]].mean(0).argmax() for row in cosines])
    assert torch.equal(adapter._labels(features, torch.zeros(20, 4)), expected)


def test_one_neighbour_that_is_the_image_itself_gives_its_stored_label(make) -> None:
    adapter = make(refine_after=1, neighbours=1)
    features = torch.randn(6, 8)
    adapter.memory["features"][:6] = F.normalize(features, dim=-1)
    adapter.memory["probabilities"][:6] = torch.randn(6, 4).softmax(-1)
    adapter.memory["seen"].fill_(6)
    expected = adapter.memory["probabilities"][:6].argmax(-1)
    assert torch.equal(adapter._labels(features, torch.randn(6, 4)), expected)


def test_weights_decay(make, images) -> None:
    plain, decayed = make(weight_decay=0.0), make(weight_decay=0.5)
    for adapter in (plain, decayed):
        adapter(images())
    before = plain.start.conv2.weight
    difference = plain.networks["student"].conv2.weight - decayed.networks["student"].conv2.weight
    assert torch.allclose(difference, 0.01 * 1.9 * 0.5 * before, atol=1e-5)  # Nesterov: 1.9 times the first gradient


def test_the_queue_starts_from_the_seed(make) -> None:
    assert torch.equal(make(seed=1).memory["keys"], make(seed=1).memory["keys"])
    assert not torch.equal(make(seed=1).memory["keys"], make(seed=2).memory["keys"])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"queue": 0}, {"neighbours": 0}, {"temperature": 0.0}, {"beta": 1.1}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AdaContrastConfig(**wrong)
