from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import AdaContrast, AdaContrastConfig, Source, adacontrast
from vcotta.methods.adacontrast import diversity_loss, instance_loss


@pytest.fixture
def make(tiny):
    def build(seed: int = 0, **options) -> AdaContrast:
        return AdaContrast(tiny(), AdaContrastConfig(**({"queue": 16, "lr": 0.01} | options)), seed=seed)

    return build


def parameters(adapter, role: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks[role].parameters()]


def three_views(images):
    return images.flip(-1, -2), images.flip(-1), images.flip(-2)


def plain_views(monkeypatch) -> None:
    def strong(images, flip):
        first, second = images.chunk(2)
        return torch.cat([three_views(first)[1], three_views(second)[2]])

    monkeypatch.setattr(adacontrast, "weak_view", lambda images, flip: three_views(images)[0])
    monkeypatch.setattr(adacontrast, "strong_view", strong)


def features_and_logits(net, x):
    x = torch.relu(net.norm1(net.conv1(x)))
    features = torch.relu(net.norm2(net.conv2(x))).mean((2, 3))
    return features, net.fc(features)


def published(net, memory, batches, config):
    """Each batch's log-probabilities and loss, and queue and bank after it.

    But for the labels of keys that are about to leave the queue, which both published codes overwrite a step early.
    """
    student, teacher = copy.deepcopy(net), copy.deepcopy(net)
    optimizer = torch.optim.SGD(
        student.parameters(), config.lr, momentum=0.9, nesterov=True, weight_decay=config.weight_decay
    )
    keys, labels, bank, votes = (memory[name].clone() for name in ("keys", "labels", "features", "probabilities"))
    seen = 0
    for x in batches:
        weak, query, key = three_views(x)
        (f_w, z_w), (f_q, z_q) = (features_and_logits(student.train(), view) for view in (weak, query))
        with torch.no_grad():
            for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
                average.copy_(config.beta * average + (1 - config.beta) * new)
            k = F.normalize(features_and_logits(teacher.train(), key)[0], dim=-1)
            neighbours, opinions = features_and_logits(teacher, weak)
        y = z_w.argmax(-1)
        if seen >= config.refine_after:
            cosines = F.cosine_similarity(f_w[:, None], bank[None, :seen], dim=-1)
            y = votes[cosines.topk(config.neighbours).indices].mean(1).argmax(-1)
        q, p = F.normalize(f_q, dim=-1), z_q.softmax(-1).mean(0)
        others = (q @ keys.T).masked_fill(y[:, None] == labels, -math.inf)
        instances = torch.cat([(q * k).sum(-1, keepdim=True), others], 1) / config.temperature
        loss = F.cross_entropy(z_q, y) + config.contrast * F.cross_entropy(instances, torch.zeros_like(y))
        loss = loss + config.diversity * (p * (p + 1e-8).log()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        places = torch.arange(seen, seen + len(x)) % config.queue
        seen += len(x)
        keys[places], labels[places], bank[places], votes[places] = k, y, neighbours, opinions.softmax(-1)
        log_probs = features_and_logits(student.eval(), x)[1].log_softmax(-1)
        remembered = {"keys": keys, "labels": labels, "features": F.normalize(bank, dim=-1), "probabilities": votes}
        yield log_probs, loss.item(), remembered


@pytest.mark.parametrize("lr", [0.05, 0.0])
def test_a_stream_follows_the_published_steps(lr, tiny, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    net, batches = tiny().double(), [images(16, seed).double() for seed in range(5)]
    net.fc.weight.data *= 4
    net.fc.bias.data -= net(torch.cat(batches)).mean(0).detach()  # so that no class is predicted always
    options = {"contrast": 0.5, "diversity": 0.25, "refine_after": 36, "neighbours": 3, "beta": 0.5}
    config = AdaContrastConfig(lr=lr, queue=40, weight_decay=0.01, **options)
    adapter = AdaContrast(net, config, runtime=Runtime(precision="fp64"))
    steps = published(net, adapter.memory, batches, config)
    for x, (log_probs, loss, remembered) in zip(batches, steps, strict=True):
        assert torch.allclose(adapter(x), log_probs, atol=1e-9)
        assert adapter.last["loss"] == pytest.approx(loss)
        assert all(torch.allclose(adapter.memory[name], values) for name, values in remembered.items())


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


def test_statistics_move_in_training_passes_only(make, images) -> None:
    adapter = make()
    adapter(images())
    student = adapter.networks["student"]
    assert not any(norm.track_running_stats for norm in (student.norm1, student.norm2))
    before = student.norm1.running_mean.clone()
    adapter.logits(student, images())
    adapter.logits(student, images(), batch_statistics=False)
    assert torch.equal(before, student.norm1.running_mean)


def test_without_a_step_and_with_fixed_statistics_it_is_the_source(tiny, images) -> None:
    model = tiny()
    config = AdaContrastConfig(queue=16, lr=0.0)
    moving = AdaContrast(model, config)
    model.norm1.momentum = model.norm2.momentum = 0.0
    resting, source = AdaContrast(model, config), Source(model)
    for seed in range(4):
        expected = source(images(seed=seed))
        assert not torch.allclose(moving(images(seed=seed)), expected, atol=1e-3)
        assert torch.allclose(resting(images(seed=seed)), expected, atol=1e-6)
    assert all(map(torch.equal, parameters(moving, "student"), model.parameters()))


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


def test_new_keys_replace_the_oldest_in_the_queue_and_have_unit_length(make, images) -> None:
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


def test_a_batch_larger_than_the_queue_leaves_its_last_images(make, images, monkeypatch) -> None:
    plain_views(monkeypatch)
    adapter = make(queue=4)
    adapter(images())
    features, _ = adapter.features_and_logits(adapter.start, three_views(images())[0])
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


def test_the_queue_starts_from_the_seed_with_labels_of_all_classes(make) -> None:
    assert make(queue=64).memory["labels"].unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(make(seed=1).memory["keys"], make(seed=1).memory["keys"])
    assert not torch.equal(make(seed=1).memory["keys"], make(seed=2).memory["keys"])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"queue": 0}, {"neighbours": 0}, {"temperature": 0.0}, {"beta": 1.1}, {"weight_decay": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AdaContrastConfig(**wrong)
