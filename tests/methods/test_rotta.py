from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn

from vcotta import Runtime
from vcotta.methods import rotta
from vcotta.methods.rotta import BalancedMemory, RoTTA, RoTTAConfig
from vcotta.methods.source import Source


def test_batches_before_the_first_update_are_predicted_as_by_the_source(tiny, images) -> None:
    adapter, source = RoTTA(tiny(), RoTTAConfig(update_every=18, lr=0.1)), Source(tiny())
    for seed in range(3):  # the third batch holds the 18th image, but is predicted before the update
        assert torch.equal(adapter(images(seed=seed)), source(images(seed=seed)))
    assert adapter.last["backwards"] == 1
    assert not torch.equal(adapter(images(seed=3)), source(images(seed=3)))


def test_without_a_step_only_running_statistics_change(tiny, images) -> None:
    adapter = RoTTA(tiny(), RoTTAConfig(update_every=6, lr=0.0))
    for seed in range(3):
        adapter(images(seed=seed))
    start = adapter.start.state_dict()
    for net in adapter.networks.values():
        changed = {key for key, value in net.state_dict().items() if not torch.equal(value, start[key])}
        assert changed == {f"norm{i}.running_{kind}" for i in (1, 2) for kind in ("mean", "var")}


def test_images_are_counted_across_batches(tiny, images) -> None:
    adapter = RoTTA(tiny(), RoTTAConfig(update_every=4))
    updates = []
    for seed in range(4):
        adapter(images(n=6, seed=seed))
        updates.append(adapter.last["backwards"])
    assert updates == [1, 2, 1, 2]


def robust_pass(net: nn.Module, x: torch.Tensor, alpha: float) -> torch.Tensor:
    for conv, norm in ((net.conv1, net.norm1), (net.conv2, net.norm2)):
        x = conv(x)
        mean = (1 - alpha) * norm.running_mean + alpha * x.mean((0, 2, 3))
        var = (1 - alpha) * norm.running_var + alpha * x.var((0, 2, 3), correction=0)
        norm.running_mean, norm.running_var = mean.detach(), var.detach()
        mean, var, weight, bias = (v.view(1, -1, 1, 1) for v in (mean, var, norm.weight, norm.bias))
        x = torch.relu((x - mean) / (var + norm.eps).sqrt() * weight + bias)
    return net.fc(x.mean((2, 3)))


@pytest.mark.parametrize("nu", [0.0, 0.3])
def test_updates_follow_the_published_formulas_from_step_to_step(nu, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(rotta, "random_view", lambda images, flip: images.flip(-1))
    alpha, capacity, lr = 0.5, 12, 0.05
    settings = RoTTAConfig(update_every=4, capacity=capacity, alpha=alpha, nu=nu, lr=lr)
    adapter = RoTTA(tiny(seed=7), settings, runtime=Runtime(precision="fp64"))
    student, teacher = (tiny(seed=7).double() for _ in range(2))  # predicts two classes
    trained = [*student.norm1.parameters(), *student.norm2.parameters()]
    adam, stream = torch.optim.Adam(trained, lr=lr), images(n=16).double()
    for batch in stream.split(4):
        torch.testing.assert_close(adapter(batch), teacher(batch).log_softmax(-1), rtol=0, atol=1e-8)
        born = adapter.memory["born"]
        target = robust_pass(teacher, stream[born], alpha).softmax(-1).detach()
        log_probs = robust_pass(student, stream[born].flip(-1), alpha).log_softmax(-1)
        young = (-(adapter.memory["seen"] - born) / capacity).exp()
        adam.zero_grad()
        loss = (young / (1 + young) * -(target * log_probs).sum(-1)).mean()
        loss.backward()
        adam.step()
        for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
            average.data = (1 - nu) * average.data + nu * new.data
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-5)
        for role, net in (("student", student), ("teacher", teacher)):
            torch.testing.assert_close(adapter.networks[role].state_dict(), net.state_dict(), rtol=0, atol=1e-8)


def test_stored_images_are_those_of_the_stream(tiny, images) -> None:
    adapter = RoTTA(tiny(), RoTTAConfig(capacity=5, update_every=100))
    stream = torch.cat([images(n=6, seed=seed) for seed in range(4)])
    for batch in stream.split(6):
        adapter(batch)
    assert torch.equal(adapter.memory["images"], stream[adapter.memory["born"]])
    assert torch.equal(adapter.memory["labels"], tiny()(adapter.memory["images"]).argmax(-1))


def test_images_of_another_size_empty_the_memory_but_not_the_count(tiny, images) -> None:
    adapter = RoTTA(tiny(), RoTTAConfig(capacity=64, update_every=4))
    adapter(images(n=6))
    adapter(images(n=6, size=(8, 10)))
    assert adapter.memory["images"].shape[-2:] == (8, 10)
    assert adapter.memory["born"].min() >= 6
    assert adapter.memory["seen"] == 12


def test_updates_on_a_single_stored_image_work(tiny, images) -> None:
    adapter = RoTTA(tiny(), RoTTAConfig(capacity=1, update_every=1))
    assert adapter(images(n=3)).isfinite().all()
    assert (adapter.last["forwards"], adapter.last["backwards"]) == (7, 3)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"capacity": 0}, {"update_every": 0}, {"nu": 1.5}, {"alpha": -0.1}, {"lr": -1.0}, {"lambda_t": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RoTTAConfig(**wrong)


class ReferenceMemory:
    """The memory as the paper's Algorithm 1 has it: a list for each class, ages counted up one by one."""

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity, self.classes = capacity, classes
        self.lists: list[list[list[float]]] = [[] for _ in range(classes)]  # of [place, uncertainty, age]

    def score(self, uncertainty: float, age: float) -> float:
        return 1 / (1 + math.exp(-age / self.capacity)) + uncertainty / math.log(self.classes)

    def offer(self, place: int, label: int, uncertainty: float) -> None:
        sizes = [len(items) for items in self.lists]
        candidates = None
        if sizes[label] >= self.capacity / self.classes:
            candidates = [label]
        elif sum(sizes) >= self.capacity:
            candidates = [c for c in range(self.classes) if sizes[c] == max(sizes)]
        if candidates is None:
            self.lists[label].append([place, uncertainty, 0])
        else:
            scored = [(self.score(u, age), c, place) for c in candidates for place, u, age in self.lists[c]]
            worst, owner, old = max(scored)
            if worst > self.score(uncertainty, 0):
                self.lists[owner] = [item for item in self.lists[owner] if item[0] != old]
                self.lists[label].append([place, uncertainty, 0])
        for items in self.lists:
            for item in items:
                item[2] += 1

    def ages(self) -> dict[int, int]:
        return {place: age for items in self.lists for place, _, age in items}


@pytest.mark.parametrize(("capacity", "classes"), [(12, 3), (16, 10), (8, 20)])
def test_the_memory_agrees_with_a_plain_reference_and_keeps_its_bounds(capacity, classes) -> None:
    draws = random.Random(capacity)
    memory, reference, sizes = BalancedMemory(capacity, classes), ReferenceMemory(capacity, classes), [0]
    for place in range(300):
        label = min(int(draws.expovariate(0.3)), classes - 1)  # some classes come far more often
        uncertainty = draws.random() * math.log(classes)
        memory.offer(place, label, uncertainty)
        reference.offer(place, label, uncertainty)
        stored = {item.place: age for item, age in zip(memory.items, memory.ages(), strict=True)}
        assert stored == reference.ages()
        labels = [item.label for item in memory.items]
        assert max(labels.count(c) for c in labels) <= math.ceil(capacity / classes)
        sizes.append(len(memory.items))
    assert max(sizes) <= capacity
    assert sizes == sorted(sizes)


def test_an_image_less_certain_than_its_full_class_changes_nothing_but_ages() -> None:
    memory = BalancedMemory(capacity=4, classes=2)
    for place in range(2):
        memory.offer(place, 0, 0.1)
    before, ages = list(memory.items), memory.ages()
    memory.offer(2, 0, 0.6)
    assert memory.items == before
    assert memory.ages() == [age + 1 for age in ages]


def test_new_images_replace_old_ones_that_are_as_certain() -> None:
    memory = BalancedMemory(capacity=2, classes=2)
    for place in range(3):
        memory.offer(place, 0, 0.3)
    assert [item.place for item in memory.items] == [2]
