from __future__ import annotations

import copy
import functools
import itertools

import pytest
import torch
from torch.nn.functional import softplus

from vcotta import configure, to_point, to_variational
from vcotta.bayes import kl_divergence, variational_parameters
from vcotta.methods import BN, VCoTTA, VCoTTAConfig
from vcotta.methods import vcotta as module
from vcotta.methods.parts.prior_mixture import mix

plain = functools.partial(VCoTTAConfig, statistics="batch", label_prior=False)
"""The settings without what is inferred of a stream, for which there are tests of their own."""


@pytest.fixture
def net(tiny):
    return to_variational(tiny(), sigma_ratio=0.2)


def test_without_a_step_and_with_alpha_one_it_returns_the_source(net, images) -> None:
    adapter = VCoTTA(net, plain(lr=0.0, alpha=1.0, inference="x0", views=2))
    source = BN(to_point(net))
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), source(images(seed=seed)))


def test_alpha_one_returns_the_source_even_while_the_teacher_learns(net, images) -> None:
    config = plain(lr=0.1, alpha=1.0, inference="x0", views=1)
    adapter, source = VCoTTA(net, config), BN(to_point(net))
    for seed in range(3):
        assert torch.equal(adapter(images(seed=seed)), source(images(seed=seed)))


def test_alpha_zero_returns_the_teacher_from_before_the_update(net, images) -> None:
    config = plain(lr=0.05, alpha=0.0, inference="x0", views=1, beta=0.5)
    adapter = VCoTTA(net, config)
    for seed in range(3):
        teacher = BN(to_point(adapter.networks["teacher"]))
        assert torch.allclose(adapter(images(seed=seed)), teacher(images(seed=seed)), atol=1e-6)


@pytest.mark.parametrize("inference", ["x0", "filtered", "pooled"])
@pytest.mark.parametrize("target", ["teacher", "mixture"])
def test_a_source_without_weight_predicts_only_the_image_and_the_rest_is_the_same(
    net, images, inference, target
) -> None:
    free, almost = (
        VCoTTA(
            net,
            plain(alpha=alpha, inference=inference, target=target, views=3, lr=0.05, source_views=True),
            seed=0,
        )
        for alpha in (0.0, 1e-12)
    )
    for seed in range(3):
        assert torch.allclose(free(images(seed=seed)), almost(images(seed=seed)), atol=1e-5)
    assert (free.last["forwards"], almost.last["forwards"]) == (1 + 4 + 2, 4 + 4 + 2)


def test_drift_is_the_divergence_of_the_student_from_the_source_before_the_update(net, images) -> None:
    adapter = VCoTTA(net, plain(lr=0.05, views=1, beta=0.5))
    weights = sum(mean.numel() for _, mean, _ in variational_parameters(net))
    drifts = []
    for seed in range(3):
        student = copy.deepcopy(adapter.networks["student"])
        adapter(images(seed=seed))
        drifts.append(adapter.last["drift"])
        assert drifts[-1] == pytest.approx(kl_divergence(student, adapter.start).item() / weights)
    assert 0 == drifts[0] < drifts[1] < drifts[2]


EVERY_OPTION = (
    [
        dict(zip(("alpha", "scope", "target", "inference"), values, strict=True))
        for values in itertools.product(
            ("entropy", "printed", "confidence", 0.3),
            ("batch", "sample"),
            ("teacher", "mixture"),
            ("x0", "filtered", "pooled"),
        )
    ]
    + [
        {"loss": loss, "sampling": sampling, "mixup": mixup, "optimizer": optimizer}
        for loss, sampling, mixup, optimizer in itertools.product(
            ("ce", "sce"), ("local", "weight", "none"), (False, True), ("adam", "sgd")
        )
    ]
    + [
        {"student": "both", "relative": False},
        {"temperature": 2.0},
        {"views": 0},
        *({"source_views": True, "alpha": alpha} for alpha in ("entropy", "confidence", 0.3)),
        {"margin": -1.0},
        {"margin": 0.3},
        {"kl_weight": None, "kl_lambda": 1e4},
        {"kl_weight": 0.0},
    ]
)


@pytest.mark.parametrize("options", EVERY_OPTION, ids=lambda o: " ".join(f"{k}={v}" for k, v in o.items()))
def test_every_option_predicts_and_adapts(options, net, images) -> None:
    adapter = VCoTTA(net, plain(**({"views": 2} | options)))
    before = [parameter.detach().clone() for parameter in adapter.networks["teacher"].parameters()]
    for seed in range(2):
        output = adapter(images(seed=seed))
        assert torch.allclose(output.exp().sum(-1), torch.ones(6), atol=1e-5)
    assert not adapter.last["skipped"]
    assert 0 <= adapter.last["alpha"] <= 1
    after = adapter.networks["teacher"].parameters()
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def fixed_views(monkeypatch, adapter, source: torch.Tensor, teacher: torch.Tensor) -> None:
    monkeypatch.setattr(adapter, "_log_probs", lambda images: (source, teacher))


def test_each_inference_is_its_formula(net, images, monkeypatch) -> None:
    torch.manual_seed(0)
    source, teacher = torch.randn(2, 4, 6, 4).log_softmax(-1)
    alpha = torch.tensor(0.3)
    expected = {
        "x0": mix(source[0], teacher[0], alpha),
        "filtered": mix(module.filter_views(source, 0.05), module.filter_views(teacher, 0.05), alpha),
        "pooled": (
            (0.5 * (0.3 * source[0] + 0.7 * teacher[0]) + 0.5 * (0.3 * source + 0.7 * teacher).mean(0)).log_softmax(-1)
        ),
    }
    for inference, value in expected.items():
        adapter = VCoTTA(net, plain(inference=inference, alpha=0.3, margin=0.05))
        fixed_views(monkeypatch, adapter, source, teacher)
        assert torch.allclose(adapter(images()), value, atol=1e-5), inference


def test_views_that_the_source_does_not_predict_count_with_the_teacher_alone(net, images, monkeypatch) -> None:
    torch.manual_seed(0)
    (source, _), teacher = torch.randn(2, 6, 4).log_softmax(-1), torch.randn(4, 6, 4).log_softmax(-1)
    first = mix(source, teacher[0], torch.tensor(0.3))
    pooled = 0.3 * source + 0.7 * teacher[0]
    expected = {
        "x0": first,
        "filtered": mix(source, module.filter_views(teacher, 0.05), torch.tensor(0.3)),
        "pooled": (0.5 * pooled + (pooled + teacher[1:].sum(0)) / 8).log_softmax(-1),
    }
    for inference, value in expected.items():
        adapter = VCoTTA(net, plain(inference=inference, alpha=0.3, margin=0.05, source_views=False, views=3))
        adapter(images())
        assert adapter.last["forwards"] == 1 + 4 + 2
        fixed_views(monkeypatch, adapter, source.unsqueeze(0), teacher)
        assert torch.allclose(adapter(images()), value, atol=1e-5), inference


def test_sample_scope_gives_each_image_its_own_weight(net, images, monkeypatch) -> None:
    sure, unsure = torch.tensor([9.0, 0, 0, 0]).log_softmax(-1), torch.zeros(4).log_softmax(-1)
    source = torch.stack([sure, unsure] * 3).expand(2, -1, -1)
    teacher = torch.stack([unsure, sure] * 3).expand(2, -1, -1)
    outputs = {}
    for scope in ("sample", "batch"):
        adapter = VCoTTA(net, plain(alpha="entropy", tau=0.01, scope=scope, inference="x0"))
        fixed_views(monkeypatch, adapter, source, teacher)
        outputs[scope] = adapter(images()).exp()[:, 0]
        assert adapter.last["alpha"] == pytest.approx(0.5, abs=1e-3)
    assert (outputs["sample"] > 0.99).all()
    assert (outputs["batch"] < 0.7).all()


def test_the_prediction_has_a_weight_of_its_own_and_the_target_keeps_alpha(net, images) -> None:
    own, same = (VCoTTA(net, plain(lr=0.05, views=1, inference="x0", prediction_alpha=a), seed=0) for a in (1.0, None))
    for seed in range(2):
        assert torch.equal(own(images(seed=seed)), BN(to_point(net))(images(seed=seed)))
        same(images(seed=seed))
    assert (own.last["alpha"], own.last["prediction_alpha"]) == (0.5, 1.0)
    assert (same.last["alpha"], same.last["prediction_alpha"]) == (0.5, 0.5)
    weights = zip(own.networks["student"].parameters(), same.networks["student"].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)


def test_the_target_is_the_teacher_or_the_mixture(net) -> None:
    source, teacher = torch.randn(2, 4, 6, 4).log_softmax(-1)
    alpha = torch.full((1, 1), 0.4)
    filtered = [module.filter_views(p, 0.1) for p in (source, teacher)]

    def target(**options):
        return VCoTTA(net, plain(margin=0.1, **options))._target(source, teacher, alpha).exp()

    assert torch.allclose(target(target="teacher", temperature=1.0), filtered[1].exp(), atol=1e-6)
    mixture = 0.4 * filtered[0].exp() + 0.6 * filtered[1].exp()
    assert torch.allclose(target(target="mixture", temperature=1.0), mixture, atol=1e-6)
    squared = mixture.square() / mixture.square().sum(-1, keepdim=True)
    assert torch.allclose(target(target="mixture", temperature=0.5), squared, atol=1e-6)


@pytest.mark.parametrize(("student", "seen"), [("image", 1), ("view", 1), ("both", 2)])
def test_the_student_is_trained_on_what_is_asked_for(student, seen, net, images, monkeypatch) -> None:
    adapter = VCoTTA(net, plain(views=2, student=student))
    inputs = []
    monkeypatch.setattr(
        adapter, "_student_log_probs", lambda x: inputs.append(x) or VCoTTA._student_log_probs(adapter, x)
    )
    adapter(images())
    assert len(inputs) == seen
    assert torch.equal(inputs[0], images()) == (student != "view")
    if student != "image":
        assert not torch.equal(inputs[-1], images())
    assert adapter.last["forwards"] == 1 + 3 + seen


def test_relative_steps_are_a_share_of_what_they_change(net, images) -> None:
    adapter = VCoTTA(net, plain(views=1, lr=0.01, kl_weight=0.0, sampling="local", full_batch=None))
    before = {name: p.detach().clone() for name, p in adapter.networks["student"].named_parameters()}
    adapter(images())
    for name, parameter in adapter.networks["student"].named_parameters():
        size = 1.0 if name.endswith("rho") else max(before[name].square().mean().sqrt().item(), 1e-3)
        moved = (parameter - before[name]).abs().max().item()
        if name != "conv1.bias":  # which the normalisation after it makes idle
            assert moved == pytest.approx(0.01 * size, rel=0.02), name  # Adam's first step is the step size


@pytest.mark.parametrize(("full", "share"), [(None, 1.0), (6, 1.0), (3, 1.0), (12, 0.5), (24, 0.25)])
def test_a_small_batch_makes_its_share_of_a_step_and_of_the_average(net, images, full, share) -> None:
    options = {"views": 0, "relative": False, "kl_weight": 0.0, "lr": 0.01, "beta": 0.8}
    adapter = VCoTTA(net, plain(full_batch=full, **options), seed=0)
    student, teacher = (adapter.networks[name].fc.weight for name in ("student", "teacher"))
    before = student.detach().clone()
    adapter(images(6))
    moved = student.detach() - before
    assert moved.abs().max().item() == pytest.approx(0.01 * share, rel=0.02)  # Adam's first step is the step size
    assert torch.allclose(teacher - before, (1 - 0.8**share) * moved, atol=1e-7)


def test_a_large_batch_after_a_small_one_makes_a_whole_step_and_a_reset_forgets_both(net, images) -> None:
    adapter = VCoTTA(net, plain(full_batch=6, views=0, lr=0.01), seed=0)
    whole = [group["lr"] for group in adapter.optimizer.param_groups]
    for size, share in ((3, 0.5), (6, 1.0), (2, 1 / 3)):
        adapter(images(size))
        assert [group["lr"] for group in adapter.optimizer.param_groups] == [share * lr for lr in whole]
    adapter.reset()
    adapter(images(6))
    assert [group["lr"] for group in adapter.optimizer.param_groups] == whole


def test_the_divergence_costs_half_of_kappa_when_every_weight_moved_by_one_sigma(net, images) -> None:
    adapter = VCoTTA(net, plain(views=0, alpha=1.0, kl_weight=0.8, lr=0.0))
    with torch.no_grad():
        for _, mean, rho in module.variational_parameters(adapter.networks["student"]):
            mean.add_(softplus(rho))
    adapter(images())
    assert adapter.last["kl"] == pytest.approx(0.4, rel=1e-3)
    assert adapter.last["loss"] == pytest.approx(adapter.last["fit"] + adapter.last["kl"], rel=1e-5)


def test_lambda_divides_the_divergence(net, images) -> None:
    adapter = VCoTTA(net, plain(views=0, alpha=1.0, kl_weight=None, kl_lambda=50.0, lr=0.0))
    with torch.no_grad():
        adapter.networks["student"].fc.weight.add_(0.1)
    adapter(images())
    assert adapter.last["kl"] == pytest.approx(kl_divergence(adapter.networks["student"], net).item() / 50, rel=1e-4)


def test_a_heavy_divergence_holds_the_student_at_its_prior(net, images) -> None:
    drifts = []
    for kappa in (0.0, 1e3):
        adapter = VCoTTA(net, plain(views=1, alpha=1.0, kl_weight=kappa, lr=1e-3, loss="sce"))
        for seed in range(10):
            adapter(images(seed=seed))
        drifts.append(kl_divergence(adapter.networks["student"], net).item())
    assert drifts[1] < 0.2 * drifts[0]


def test_the_teacher_averages_sigma_after_the_step(net, images) -> None:
    adapter = VCoTTA(net, plain(views=1, lr=0.05, beta=0.9, sampling="local", full_batch=6))
    teacher, student = adapter.networks["teacher"], adapter.networks["student"]
    old = softplus(teacher.fc.weight_rho).clone()
    adapter(images())
    expected = 0.9 * old + 0.1 * softplus(student.fc.weight_rho)
    assert torch.allclose(softplus(teacher.fc.weight_rho), expected, rtol=1e-4)
    assert not torch.allclose(old, expected, rtol=1e-4)


def test_mixup_trains_on_mixtures_and_predicts_the_images(net, images) -> None:
    mixed, alone = (VCoTTA(net, plain(views=1, mixup=mixup, lr=0.05)) for mixup in (True, False))
    assert torch.equal(mixed(images()), alone(images()))
    assert not torch.equal(mixed.networks["student"].fc.weight, alone.networks["student"].fc.weight)


@pytest.mark.parametrize("preset", ["best", "paper", "authors"])
def test_very_sure_networks_neither_underflow_nor_skip(preset, net, images) -> None:
    with torch.no_grad():
        net.fc.weight.mul_(3000)
    adapter = VCoTTA(net, configure("vcotta", preset=preset, views=2))
    assert adapter(images()).isfinite().all()
    assert not adapter.last["skipped"]
