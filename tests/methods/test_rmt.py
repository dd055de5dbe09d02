from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vcotta import Runtime
from vcotta.methods import RMTConfig, build_adapter, configure, rmt
from vcotta.methods.parts.class_features import prototype_contrast
from vcotta.methods.parts.losses import entropy, symmetric_cross_entropy


def source_of(images, batches: int = 2, n: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images(n, 100 + seed), torch.arange(n) % 4) for seed in range(batches)]


@pytest.fixture
def prepared(tiny, images):
    def make(**options):
        return build_adapter("rmt", tiny(), source=source_of(images), **options)

    return make


def parameters(adapter, role: str) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks[role].parameters()]


def sce(z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p, q = z.softmax(-1), target.softmax(-1)
    return (-0.5 * q * p.log() - 0.5 * p * q.log()).sum(-1).mean()


def test_the_symmetric_cross_entropy_is_symmetric_and_of_equals_the_entropy() -> None:
    p, q = (torch.randn(5, 4).log_softmax(-1) for _ in range(2))
    assert torch.allclose(symmetric_cross_entropy(p, q), symmetric_cross_entropy(q, p))
    assert torch.allclose(symmetric_cross_entropy(p, p), entropy(p))


def test_the_loss_is_the_sum_of_its_parts(prepared, images, monkeypatch) -> None:
    monkeypatch.setattr(rmt, "random_view", lambda images, flip: images.flip(-1))
    adapter = prepared(consistency=0.5, contrast=0.25, temperature=0.2, lr=0.01)
    adapter(images(seed=1))
    student, teacher = adapter.networks["student"], adapter.networks["teacher"]
    h, z = adapter.features_and_logits(student, images())
    ha, za = adapter.features_and_logits(student, images().flip(-1))
    target = adapter.logits(teacher, images())
    contrast = prototype_contrast(adapter.networks["projector"], adapter.prepared["prototypes"], h, ha, 0.2)
    expected = 0.5 * (0.5 * sce(z, target) + 0.5 * sce(za, target)) + 0.25 * contrast
    adapter(images())
    assert adapter.last["loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_the_prediction_averages_the_logits_of_student_and_teacher(prepared, images) -> None:
    adapter = prepared(lr=0.05)
    adapter(images(seed=1))
    logits = [adapter.logits(adapter.networks[role], images()) for role in ("student", "teacher")]
    assert not torch.allclose(*logits, atol=1e-3)
    assert torch.allclose(adapter(images()), ((logits[0] + logits[1]) / 2).log_softmax(-1), atol=1e-6)


def test_without_contrast_and_replay_the_projector_is_not_trained(prepared, images) -> None:
    adapter = prepared(contrast=0.0)
    before = parameters(adapter, "projector")
    adapter(images())
    assert all(map(torch.equal, before, parameters(adapter, "projector")))


def test_a_decay_of_one_freezes_the_teacher_and_otherwise_it_averages_the_new_student(prepared, images) -> None:
    adapter = prepared(beta=1.0, lr=0.05)
    adapter(images())
    assert all(map(torch.equal, parameters(adapter, "teacher"), adapter.start.parameters()))
    adapter = prepared(beta=0.75, lr=0.05)
    adapter(images())
    for old, new, average in zip(
        adapter.start.parameters(), parameters(adapter, "student"), parameters(adapter, "teacher"), strict=True
    ):
        assert torch.allclose(average, 0.75 * old + 0.25 * new, atol=1e-6)


def test_the_settings_for_the_benchmarks_have_the_official_warm_up() -> None:
    asked = {name: configure("rmt", dataset=name).warm_up_images for name in ("cifar10", "cifar100", "imagenet")}
    assert set(asked.values()) == {50_000}
    assert configure("rmt").warm_up_images == configure("rmt", dataset="digits").warm_up_images == 0


def test_without_a_warm_up_the_source_is_read_once_and_leaves_prototypes_alone(tiny, images) -> None:
    source = iter(source_of(images))
    adapter = build_adapter("rmt", tiny(), source=source)
    assert next(source, None) is None
    assert list(adapter.prepared) == ["prototypes"]
    before = adapter.prepared["prototypes"].clone()
    for seed in range(2):
        adapter(images(seed=seed))
    assert torch.equal(before, adapter.prepared["prototypes"])
    assert adapter.last["forwards"] == 3


def test_replay_reads_the_source_once_and_keeps_a_bounded_sample_with_its_labels(tiny, images) -> None:
    batches = source_of(images, 3)
    adapter = build_adapter("rmt", tiny(), source=iter(batches), replay=1.0, replay_images=20)
    kept, labels = adapter.prepared["replay_images"], adapter.prepared["replay_labels"]
    assert kept.shape == (20, 3, 8, 8)
    everything = (255 * torch.cat([x for x, _ in batches])).round().byte()
    where = (kept[:, None] == everything[None]).flatten(2).all(-1)
    assert (where.sum(1) == 1).all()
    assert (where.sum(0) <= 1).all()
    assert torch.equal(labels, torch.cat([y for _, y in batches])[where.int().argmax(1)])
    assert where.any(0).view(3, 12).any(1).all()  # from every batch
    adapter(images())
    assert adapter.last["forwards"] == 4


def test_the_sample_is_uniform(images) -> None:
    batches = [
        (torch.full((10, 1, 1, 1), (10 * b) / 255) + torch.arange(10).view(-1, 1, 1, 1) / 255, torch.zeros(10))
        for b in range(3)
    ]
    counts = torch.zeros(30)
    torch.manual_seed(0)
    for _ in range(600):
        sample: dict[str, torch.Tensor] = {}
        for _ in rmt._sampled(batches, 6, sample):
            pass
        counts[sample["replay_images"].flatten().long()] += 1
    assert (counts / 600 - 0.2).abs().max() < 5 * (0.2 * 0.8 / 600) ** 0.5


def test_replay_adds_the_cross_entropy_of_the_drawn_images(prepared, images) -> None:
    adapter = prepared(consistency=0.0, contrast=0.0, replay=0.5, replay_images=6)
    x, y = adapter.prepared["replay_images"] / 255, adapter.prepared["replay_labels"]
    expected = 0.5 * F.cross_entropy(adapter.logits(adapter.start, x), y)  # six of six, in any order
    adapter(images(6))
    assert adapter.last["loss"] == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_warm_up_draws_the_student_to_the_teacher_batch_by_batch_in_rising_steps(optimizer, tiny, images) -> None:
    source, lr, beta, steps = source_of(images, 3), 0.02, 0.75, 5  # more steps than the source has batches
    options = {"optimizer": optimizer, "lr": lr, "beta": beta, "runtime": Runtime(precision="fp64")}
    adapter = build_adapter("rmt", tiny(), source=source, warm_up_images=12 * steps + 5, **options)

    student, teacher = (tiny().double().train() for _ in range(2))  # training: with the batch's statistics
    kinds = {"adam": (torch.optim.Adam, {}), "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True})}
    kind, settings = kinds[optimizer]
    reference = kind(student.parameters(), lr=lr, **settings)
    for step in range(steps):
        x = source[step % 3][0].double()
        reference.param_groups[0]["lr"] = lr * (step + 1) / steps
        reference.zero_grad()
        sce(student(x), teacher(x).detach()).backward()
        reference.step()
        for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
            average.data = beta * average.data + (1 - beta) * new.data

    for role, net in (("student", student), ("teacher", teacher)):
        for ours, theirs in zip(adapter.networks[role].parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours.data, theirs.data, rtol=0, atol=1e-9)
    for ours, theirs in zip(adapter.networks["student"].parameters(), student.parameters(), strict=True):
        for key, value in reference.state[theirs].items():
            torch.testing.assert_close(adapter.optimizer.state[ours][key], value, rtol=0, atol=1e-9)
    assert adapter.optimizer.param_groups[0]["lr"] == lr


def test_a_reset_returns_to_the_end_of_the_warm_up(prepared, images) -> None:
    adapter = prepared(warm_up_images=48, lr=0.01)
    warmed = {role: parameters(adapter, role) for role in ("student", "teacher")}
    assert not all(map(torch.equal, warmed["student"], adapter.start.parameters()))
    assert not all(map(torch.equal, warmed["teacher"], warmed["student"]))
    moments = adapter.state_dict()["optimizer"]["state"]
    assert moments[0]["step"] == 4
    first = adapter(images())
    adapter.reset()
    for role, before in warmed.items():
        assert all(map(torch.equal, before, parameters(adapter, role)))
    after = adapter.state_dict()["optimizer"]["state"]
    assert all(torch.equal(moments[i][key], after[i][key]) for i in moments for key in moments[i])
    assert torch.equal(adapter(images()), first)


def test_a_warm_up_below_one_batch_leaves_student_and_teacher_at_the_source(prepared) -> None:
    adapter = prepared(warm_up_images=11)
    for role in ("student", "teacher"):
        assert all(map(torch.equal, parameters(adapter, role), adapter.start.parameters()))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_with_replay_and_warm_up_a_resumed_stream_equals_an_uninterrupted_one(
    optimizer, prepared, tiny, images
) -> None:
    options = {"replay": 1.0, "replay_images": 9, "warm_up_images": 24, "optimizer": optimizer}
    whole, first = prepared(**options), prepared(**options)
    expected = [whole(images(seed=seed)) for seed in range(3)]
    first(images(seed=0))
    second = rmt.RMT(tiny(seed=5), RMTConfig(**options), seed=7)  # not prepared: all of it comes from the state
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(images(seed=1)), expected[1])
    assert torch.equal(second(images(seed=2)), expected[2])
    second.reset()
    assert torch.equal(second(images(seed=0)), expected[0])


def test_preparing_inside_inference_mode_works(prepared, tiny, images) -> None:
    options = {"replay": 1.0, "warm_up_images": 24}
    expected = prepared(**options)(images())
    with torch.inference_mode():
        adapter = build_adapter("rmt", tiny(), source=source_of(images), **options)
    assert torch.equal(adapter(images()), expected)


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"replay": -1.0}, {"replay_images": 0}, {"warm_up_images": -1}, {"beta": 1.5}, {"temperature": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RMTConfig(**wrong)
