from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import petal
from vcotta.methods.bn import BN
from vcotta.methods.cotta import CoTTA, CoTTAConfig
from vcotta.methods.parts import view_average
from vcotta.methods.parts.losses import cross_entropy
from vcotta.methods.petal import PETAL, Moments, PETALConfig


def source(images, batches: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images(16, 100 + i), torch.arange(16) % 4) for i in range(batches)]


def prepared(model, images, runtime=None, **options) -> PETAL:
    adapter = PETAL(model, PETALConfig(**({"threshold": 0.0, "epochs": 3} | options)), runtime=runtime)
    adapter.prepare(source(images))
    return adapter


def at_the_mean(adapter: PETAL):
    return copy.deepcopy(adapter.networks["anchor"])


def parameters(adapter: PETAL, role: str) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in adapter.networks[role].parameters()])


def published(adapter: PETAL, batches):
    """Each batch's log-probabilities, anchor's confidence, loss and the student's parameters after it.

    Two mirrored images are the views, SGD the optimiser, and restoration goes by Fisher information.
    """
    config = adapter.config
    student, teacher, anchor = (copy.deepcopy(adapter.networks[r]).train() for r in ("student", "teacher", "anchor"))
    optimizer = torch.optim.SGD(student.parameters(), config.lr, momentum=0.9, nesterov=True)
    mean, variance = (
        torch.cat([adapter.prepared[f"{moment}.{name}"].flatten() for name, _ in student.named_parameters()])
        for moment in ("mean", "variance")
    )
    for x in batches:
        confidence = anchor(x).softmax(-1).amax(-1).mean()
        seen = [x.flip(-1), x.flip(-2)] if confidence < config.threshold else [x]
        q = torch.stack([teacher(view) for view in seen]).mean(0).softmax(-1)
        p = student(x).softmax(-1)
        forward, backward = -(q * p.log()).sum(-1).mean(), -(p * q.log()).sum(-1).mean()
        loss = forward if config.loss == "ce" else (forward + backward) / 2
        away = nn.utils.parameters_to_vector(student.parameters()) - mean
        loss = loss + config.prior_weight * (away.square() / (variance + 1e-6)).sum() / 2
        optimizer.zero_grad()
        loss.backward()
        fisher = torch.cat([p.grad.flatten() for p in student.parameters()]).square()
        optimizer.step()
        with torch.no_grad():
            for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
                average.copy_(config.beta * average + (1 - config.beta) * new)
        stepped = nn.utils.parameters_to_vector(student.parameters()).detach()
        restored = torch.where(fisher < fisher.quantile(config.delta), mean, stepped)
        nn.utils.vector_to_parameters(restored.clone(), student.parameters())
        yield q.log(), confidence.item(), loss.item(), restored


@pytest.mark.parametrize("loss", ["ce", "sce"])
def test_a_stream_follows_the_published_steps(loss, tiny, images, monkeypatch) -> None:
    monkeypatch.setattr(
        view_average, "random_views", lambda images, count, flip: torch.stack([images.flip(-1), images.flip(-2)])
    )
    net = tiny()
    net.fc.weight.data *= 8
    options = {"threshold": 0.55, "lr": 0.05, "optimizer": "sgd", "beta": 0.9, "prior_weight": 5e-6, "delta": 0.3}
    adapter = prepared(net, images, Runtime(precision="fp64"), loss=loss, **options)
    adapter.networks["teacher"].fc.weight.data *= 4  # surer than the threshold always, the anchor only sometimes
    batches, used = [images(12, seed).double() for seed in range(4)], []
    for x, (log_probs, confidence, total, restored) in zip(batches, published(adapter, batches), strict=True):
        assert torch.allclose(adapter(x), log_probs, atol=1e-9)
        assert adapter.last["confidence"] == pytest.approx(confidence)
        assert adapter.last["loss"] == pytest.approx(total)
        assert torch.allclose(parameters(adapter, "student"), restored, atol=1e-9)
        used.append(confidence < adapter.threshold)
    assert set(used) == {True, False}


def test_preparation_is_swag_with_the_published_step_sizes(tiny, images) -> None:
    adapter = PETAL(tiny(), PETALConfig(threshold=0.0))
    adapter.prepare(source(images))
    net, snapshots = tiny().eval(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
    for epoch, lr in enumerate((8e-4, 8e-4, 8e-4 + 0.0092 / 3, 8e-4 + 0.0184 / 3, 1e-2)):
        optimizer.param_groups[0]["lr"] = lr
        for x, y in source(images):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        if epoch >= 1:
            snapshots.append([p.detach().double().clone() for p in net.parameters()])
    for i, (name, _) in enumerate(net.named_parameters()):
        values = torch.stack([snapshot[i] for snapshot in snapshots])
        assert torch.allclose(adapter.prepared[f"mean.{name}"].double(), values.mean(0), atol=1e-6)
        expected = values.var(0, correction=0)
        assert torch.allclose(adapter.prepared[f"variance.{name}"].double(), expected, rtol=1e-3, atol=1e-11)
    assert len(adapter.prepared) == 2 * len(list(net.parameters()))


def test_everything_starts_at_the_mean_and_statistics_stay_the_sources(tiny, images) -> None:
    adapter = prepared(tiny(), images)
    for role in ("student", "teacher", "anchor"):
        state = adapter.networks[role].state_dict()
        for name, value in tiny().state_dict().items():
            expected = adapter.prepared.get(f"mean.{name}", value)
            assert torch.equal(state[name], expected)
    assert not torch.equal(adapter.networks["student"].fc.weight, tiny().fc.weight)


def test_preparing_twice_is_preparing_once(tiny, images) -> None:
    adapter = prepared(tiny(), images)
    once = {name: value.clone() for name, value in adapter.prepared.items()}
    adapter.prepare(source(images))
    assert all(torch.equal(adapter.prepared[name], value) for name, value in once.items())


class Fragile(nn.Module):
    """A network whose output overflows on a white first pixel."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x):
        return torch.where(x[:, :1, 0, 0] == 1, float("inf"), 1.0) * self.body(x)


def test_a_source_batch_whose_loss_is_not_finite_is_skipped(tiny, images) -> None:
    bad, labels = images(16, 3), torch.arange(16) % 4
    bad[0, 0, 0, 0] = 1
    means = []
    for data in ([(bad, labels), *source(images)], source(images)):
        adapter = PETAL(Fragile(tiny()), PETALConfig(threshold=0.0, epochs=3))
        adapter.prepare(data)
        means.append(parameters(adapter, "anchor"))
    assert torch.equal(*means)


def test_the_prior_costs_nothing_at_the_mean_and_the_published_sum_elsewhere(tiny, images) -> None:
    adapter = prepared(tiny(), images)
    student = adapter.networks["student"]
    at_mean = adapter._distance_to_prior()
    at_mean.backward()
    assert at_mean.item() == 0
    assert all(not p.grad.any() for p in student.parameters())
    with torch.no_grad():
        student.fc.bias += torch.tensor([0.0, 0.1, 0.2, 0.3])
    expected = 0.5 * (torch.tensor([0.0, 0.1, 0.2, 0.3]).square() / (adapter.prepared["variance.fc.bias"] + 1e-6)).sum()
    assert adapter._distance_to_prior().item() == pytest.approx(expected.item(), rel=1e-3)


def test_without_prior_and_with_random_restoration_it_is_cotta_from_the_mean(tiny, images) -> None:
    options = {"views": 2, "threshold": 1.1, "restore": 0.3, "lr": 0.01}
    adapter = prepared(tiny(), images, prior_weight=0.0, restoration="random", **options)
    cotta = CoTTA(at_the_mean(adapter), CoTTAConfig(**options))
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), cotta(images(seed=seed)))


@pytest.mark.parametrize("restoration", ["fisher", "random"])
def test_no_share_restores_nothing(restoration, tiny, images) -> None:
    adapter = prepared(tiny(), images, restoration=restoration, delta=0.0, restore=0.0, beta=0.0)
    adapter(images())
    assert torch.equal(parameters(adapter, "student"), parameters(adapter, "teacher"))  # beta 0: a copy made before it


def test_certain_random_restoration_returns_to_the_mean(tiny, images) -> None:
    adapter = prepared(tiny(), images, restoration="random", restore=1.0)
    for seed in range(2):
        adapter(images(seed=seed))
        assert torch.equal(parameters(adapter, "student"), parameters(adapter, "anchor"))


@pytest.mark.parametrize("delta", [0.1, 0.5])
def test_fisher_restores_its_share_at_any_scale_of_the_loss(delta, tiny, images, monkeypatch) -> None:
    restored = []
    for scale in (1, 4):
        monkeypatch.setattr(petal, "cross_entropy", lambda *a, scale=scale: scale * cross_entropy(*a))
        adapter = prepared(tiny(), images, delta=delta, beta=0.0, prior_weight=scale * 1e-4)
        adapter.networks["student"].fc.weight.data += 0.01
        adapter(images())
        student, unrestored = parameters(adapter, "student"), parameters(adapter, "teacher")  # beta 0: a copy before it
        restored.append(student != unrestored)
        assert torch.equal(student[restored[-1]], parameters(adapter, "anchor")[restored[-1]])
    assert torch.equal(*restored)
    assert restored[0].float().mean().item() == pytest.approx(delta, abs=0.01)


def test_without_a_step_it_predicts_as_bn_of_the_mean(tiny, images) -> None:
    adapter = prepared(tiny(), images, lr=0.0)
    bn = BN(at_the_mean(adapter))
    for seed in range(3):
        assert torch.allclose(adapter(images(seed=seed)), bn(images(seed=seed)), atol=1e-5)


def test_an_open_threshold_is_learned_from_the_mean_network(tiny, images) -> None:
    adapter = prepared(tiny(), images, threshold=None)
    net = at_the_mean(adapter).eval()
    confidence = torch.cat([net(x).softmax(-1).amax(-1) for x, _ in source(images)])
    assert adapter.threshold == pytest.approx(confidence.quantile(0.05).item() - 0.05, abs=1e-5)


def test_bad_source_data_is_refused(tiny, images) -> None:
    adapter = PETAL(tiny(), PETALConfig(epochs=2))
    with pytest.raises(ValueError, match="prepared on source data"):
        adapter(images())
    with pytest.raises(ValueError, match="labels"):
        adapter.prepare([(images(), torch.full((6,), 4))])
    with pytest.raises(ValueError, match="read only once"):
        adapter.prepare(iter(source(images)))
    with pytest.raises(FloatingPointError, match="source_lr"):
        PETAL(tiny(), PETALConfig(source_lr=1e30, epochs=2)).prepare(source(images))


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"delta": 1.5}, {"restore": -0.1}, {"epochs": 0}, {"restoration": "all"}, {"prior_weight": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PETALConfig(**wrong)


def test_moments_are_those_of_the_snapshots_and_variances_never_negative() -> None:
    moments = Moments([torch.zeros(2)])
    moments.add([torch.tensor([0.0, 1000.0])])
    assert moments.variance[0].tolist() == [0.0, 0.0]
    moments.add([torch.tensor([2.0, 1000.0])])
    assert moments.mean[0].tolist() == [1.0, 1000.0]
    assert moments.variance[0].tolist() == [1.0, 0.0]
    close = [10 + 1e-3 * torch.rand(50, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    moments = Moments([torch.zeros(50)])
    for snapshot in close:
        moments.add([snapshot])
    expected = torch.stack(close).double().var(0, correction=0)
    assert (moments.variance[0] >= 0).all()
    assert torch.allclose(moments.variance[0].double(), expected, rtol=0.02)  # E[x^2] - E[x]^2 would be noise
