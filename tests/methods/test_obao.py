from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import OBAOConfig, build_adapter, obao
from vcotta.methods.obao import relation_loss
from vcotta.methods.parts.class_features import cosine_similarities


@pytest.fixture
def prepared(tiny, images):
    def make(runtime=None, **options):
        source = [(images(12, 100 + seed), torch.arange(12) % 4) for seed in range(2)]
        return build_adapter("obao", tiny(), source=source, runtime=runtime, **({"margin": 1.1} | options))

    return make


def relation_formula(features, labels, relations):
    present = labels.unique()
    centres = F.normalize(torch.stack([features[labels == c].mean(0) for c in present]))
    now, then = centres @ centres.T, relations[present][:, present]
    return -(now * then).sum() / (now.square().sum() * then.square().sum()).sqrt()


def published(student, teacher, relations, batches, config):
    """Each batch's logits of student and teacher, its loss, and all that is stored after it.

    A mirrored image is the view, SGD the optimiser, and all that is stored is replayed.
    """
    optimizer = torch.optim.SGD(
        [p for name, p in student.named_parameters() if "fc" not in name], config.lr, momentum=0.9, nesterov=True
    )
    features = []
    student.fc.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    stored, labels, entropies = batches[0][:0], torch.empty(0, dtype=torch.long), batches[0].new_empty(0)
    for x in batches:
        z, z_t = student(x), teacher(x).detach()
        p, p_view, q = z.softmax(-1), student(x.flip(-1)).softmax(-1), z_t.softmax(-1)
        loss = sum(-0.25 * (q * r.log() + r * q.log()).sum(-1).mean() for r in (p, p_view))
        if len(stored):
            loss = loss + config.replay * F.cross_entropy(student(stored), labels)
            loss = loss + config.relation * relation_formula(features[-1], labels, relations)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        entropy = -(p * p.log()).sum(-1).detach()
        sure = entropy < config.margin * math.log(4)
        stored, entropies = torch.cat([stored, x[sure]]), torch.cat([entropies, entropy[sure]])
        labels = torch.cat([labels, (z + z_t).argmax(-1)[sure]])
        with torch.no_grad():
            for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
                average.copy_(config.beta * average + (1 - config.beta) * new)
        yield z.detach(), z_t, loss.item(), {"images": stored, "labels": labels, "entropies": entropies}


def test_a_stream_follows_the_published_steps(prepared, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(obao, "random_view", lambda images, flip: images.flip(-1))
    options = {"margin": 0.8, "replay": 0.5, "relation": 3.0, "lr": 0.02, "optimizer": "sgd", "beta": 0.9}
    adapter = prepared(Runtime(precision="fp64"), **options)
    for seed, net in enumerate(adapter.networks.values()):  # they differ from the start, which shows who says what
        net.load_state_dict(tiny(seed=seed).state_dict())
        net.fc.weight.data *= 8
    nets = [copy.deepcopy(net).train() for net in adapter.networks.values()]
    batches = [images(12, seed).double() for seed in range(3)]
    steps = published(*nets, adapter.prepared["relations"], batches, adapter.config)
    for x, (student, teacher, loss, stored) in zip(batches, steps, strict=True):
        assert torch.allclose(adapter(x), ((student + teacher) / 2).log_softmax(-1), atol=1e-9)
        assert adapter.last["loss"] == pytest.approx(loss)
        count = len(stored["labels"])
        assert adapter.memory["entropies"].isfinite().sum() == count
        assert all(torch.allclose(adapter.memory[name][:count], values) for name, values in stored.items())


def test_the_relation_loss_is_its_formula_over_the_classes_present() -> None:
    features, labels = torch.randn(9, 5), torch.tensor([0, 0, 2, 2, 2, 5, 5, 0, 5])
    relations = cosine_similarities(torch.randn(7, 5))
    expected = relation_formula(features, labels, relations)
    assert torch.allclose(relation_loss(features, labels, relations), expected, atol=1e-6)


def test_relations_as_in_the_source_are_the_minimum() -> None:
    prototypes = torch.randn(4, 6)
    features = prototypes.clone().requires_grad_()
    loss = relation_loss(features, torch.arange(4), cosine_similarities(prototypes))
    loss.backward()
    assert loss.item() == pytest.approx(-1, abs=1e-6)
    assert features.grad.abs().max() < 1e-6


def test_a_single_class_has_no_relations_to_learn() -> None:
    features = torch.randn(3, 6, requires_grad=True)
    loss = relation_loss(features, torch.tensor([1, 1, 1]), torch.eye(4))
    loss.backward()
    assert loss.item() == pytest.approx(-1)
    assert torch.equal(features.grad, torch.zeros(3, 6))


def test_the_first_batch_has_no_memory_and_is_the_first_to_be_stored(prepared, images) -> None:
    adapter = prepared(buffer=10)
    output = adapter(images())
    assert (adapter.last["forwards"], adapter.last["replayed"]) == (3, 0)
    assert torch.equal(adapter.memory["images"][:6], images())
    assert torch.equal(adapter.memory["labels"][:6], output.argmax(-1))
    assert adapter.memory["entropies"].isfinite().tolist() == [True] * 6 + [False] * 4
    adapter(images(seed=1))
    assert (adapter.last["forwards"], adapter.last["replayed"]) == (4, 6)


def test_only_confident_images_are_stored_in_order_and_the_buffer_never_overflows(prepared, images) -> None:
    probe = prepared(lr=0.0)
    probe(images())
    margin = probe.memory["entropies"][:6].median().item() / math.log(4) + 1e-6
    adapter = prepared(margin=margin, buffer=5, lr=0.0)
    adapter(images())
    sure = probe.memory["entropies"][:6] < margin * math.log(4)
    assert torch.equal(adapter.memory["images"][:3], images()[sure])
    for seed in range(1, 5):
        adapter(images(seed=seed))
        stored = adapter.memory["entropies"]
        assert len(stored) == 5
        assert (stored[stored.isfinite()] < margin * math.log(4)).all()
        assert ((adapter.memory["labels"] >= 0) & (adapter.memory["labels"] < 4)).all()


@pytest.mark.parametrize("confident", [1, 3, 6])
def test_a_full_buffer_replaces_its_highest_entropies_even_by_higher_ones(confident, prepared, images) -> None:
    adapter = prepared(buffer=4, margin=1.0)
    size = adapter.config.buffer
    new = torch.full((6,), 9.0)
    new[6 - confident :] = 1.2  # log 4 is 1.39; those of 9 are not confident
    adapter.memory = {
        "images": images(size, 7),
        "labels": torch.arange(4),
        "entropies": torch.tensor([0.1, 0.4, 0.2, 0.3]),
    }
    before = {name: tensor.clone() for name, tensor in adapter.memory.items()}
    adapter._store(images(), torch.full((6,), 3), new, torch.tensor(True))
    replaced = [1, 3, 2, 0][:confident]
    kept = [place for place in range(size) if place not in replaced]
    for name, tensor in adapter.memory.items():
        assert torch.equal(tensor[kept], before[name][kept])
    count = min(confident, size)
    assert torch.equal(adapter.memory["images"][replaced], images()[6 - confident :][:count])
    assert torch.equal(adapter.memory["entropies"][replaced], torch.full((count,), 1.2))
    adapter._store(images(), torch.full((6,), 3), new, torch.tensor(False))
    assert torch.equal(adapter.memory["images"][kept], before["images"][kept])


def test_free_places_go_first_when_the_buffer_runs_full(prepared, images) -> None:
    adapter = prepared(buffer=8)
    adapter(images())
    highest = adapter.memory["entropies"][:6].argsort(descending=True)[:4].tolist()
    kept = [place for place in range(6) if place not in highest]
    adapter(images(seed=1))
    stored = adapter.memory["images"]
    assert torch.equal(stored[6:], images(seed=1)[:2])
    assert torch.equal(stored[highest], images(seed=1)[2:])
    assert torch.equal(stored[kept], images()[kept])


def test_an_empty_selection_stores_nothing(prepared, images) -> None:
    adapter = prepared(margin=0.0)
    for seed in range(2):
        adapter(images(seed=seed))
    assert not adapter.memory["entropies"].isfinite().any()
    assert adapter.last["forwards"] == 3


def test_without_replay_and_relation_it_is_the_symmetric_mean_teacher_of_rmt(prepared, tiny, images) -> None:
    adapter = prepared(replay=0.0, relation=0.0)
    source = [(images(12, 100), torch.arange(12) % 4)]
    rmt = build_adapter("rmt", tiny(), source=source, contrast=0.0)
    for parameter in (rmt.networks["student"].fc.weight, rmt.networks["student"].fc.bias):
        parameter.requires_grad_(False)
    rmt._rng.load_state_dict(adapter._rng.state_dict())  # the projector has moved RMT's
    assert torch.equal(adapter(images()), rmt(images()))
    assert torch.equal(adapter.networks["student"].conv1.weight, rmt.networks["student"].conv1.weight)


def test_the_classifier_is_not_trained_and_the_teacher_averages_every_parameter(prepared, images) -> None:
    adapter = prepared(lr=0.05, beta=0.75)
    for seed in range(2):
        before = [p.clone() for p in adapter.networks["teacher"].parameters()]
        adapter(images(seed=seed))
        student, teacher = adapter.networks["student"], adapter.networks["teacher"]
        for old, new, average in zip(before, student.parameters(), teacher.parameters(), strict=True):
            assert torch.allclose(average, 0.75 * old + 0.25 * new, atol=1e-6)
    assert torch.equal(student.fc.weight, adapter.start.fc.weight)
    assert torch.equal(student.fc.bias, adapter.start.fc.bias)
    assert not torch.equal(student.conv1.weight, adapter.start.conv1.weight)


def test_no_more_than_asked_are_replayed(prepared, images) -> None:
    adapter = prepared(replayed=2)
    for seed in range(3):
        adapter(images(seed=seed))
    assert adapter.last["replayed"] == 2


def test_images_of_another_size_start_a_new_buffer(prepared, images) -> None:
    adapter = prepared(buffer=10)
    adapter(images())
    adapter(images(size=(10, 8)))
    assert adapter.last["replayed"] == 0
    assert adapter.memory["images"].shape == (10, 3, 10, 8)


def test_the_source_is_read_once(tiny, images) -> None:
    source = ((images(12, seed), torch.arange(12) % 4) for seed in range(2))
    adapter = build_adapter("obao", tiny(), source=source)
    assert torch.equal(adapter.prepared["relations"].diagonal(), torch.ones(4))
    adapter(images())


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"buffer": 0}, {"replayed": 0}, {"margin": -0.1}, {"relation": -1.0}, {"beta": 1.5}, {"lr": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            OBAOConfig(**wrong)
