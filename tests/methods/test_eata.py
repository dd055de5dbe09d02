from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from vcotta.methods import BN, EATA, TENT, EATAConfig, TENTConfig, build_adapter
from vcotta.methods.parts.losses import entropy

ALL = {"entropy_margin": 1.1, "similarity_margin": 1.1}


def source(images, batches: int = 3, n: int = 10):
    return [(images(n, seed), torch.zeros(n, dtype=torch.long)) for seed in range(10, 10 + batches)]


def eta(model, **options) -> EATA:
    return EATA(model, EATAConfig(fisher_weight=0.0, **options))


def trained(adapter) -> list[torch.Tensor]:
    return [p.detach().clone() for p in adapter.networks["model"].parameters() if p.requires_grad]


def batch_statistics_logits(model, x: torch.Tensor) -> torch.Tensor:
    h = x
    for conv, norm in ((model.conv1, model.norm1), (model.conv2, model.norm2)):
        h = F.relu(F.batch_norm(conv(h), None, None, norm.weight, norm.bias, True))
    return model.fc(h.mean((2, 3)))


def test_a_batch_of_unsure_samples_takes_no_step_and_leaves_no_mean(tiny, images) -> None:
    adapter = build_adapter("eata", tiny(), source=source(images), entropy_margin=0.0)
    before = trained(adapter)
    assert torch.equal(adapter(images()), BN(tiny())(images()))
    assert all(map(torch.equal, before, trained(adapter)))
    assert not adapter.memory["mean"].any()
    assert adapter.last["kept"] == 0
    assert adapter.last["skipped"] is False


def test_an_empty_selection_is_not_pulled_to_the_source_either(tiny, images) -> None:
    adapter = build_adapter("eata", tiny(), source=source(images), lr=0.1, **ALL | {"similarity_margin": 0.5})
    adapter(images())  # the first batch is novel as a whole
    moved = trained(adapter)
    adapter(images())  # the second is the same again
    assert adapter.last["kept"] == 0
    assert all(map(torch.equal, moved, trained(adapter)))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_step_is_the_one_of_the_papers_formula(optimizer, tiny, images) -> None:
    model = tiny()
    adapter = build_adapter(
        "eata", model, source=source(images), lr=0.05, optimizer=optimizer, fisher_weight=3.0, **ALL
    )
    reference = tiny().requires_grad_(False)
    norms = [reference.norm1.weight, reference.norm1.bias, reference.norm2.weight, reference.norm2.bias]
    start = [p.clone() for p in norms]
    for p in norms:
        p.requires_grad_(True)

    fisher = [torch.zeros_like(p) for p in norms]
    for x, _ in source(images):
        logits = batch_statistics_logits(reference, x)
        gradients = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(-1)), norms)
        fisher = [f + g.square() / 3 for f, g in zip(fisher, gradients, strict=True)]
    assert torch.allclose(adapter.prepared["fisher"], torch.cat(fisher), atol=1e-7)
    assert (adapter.prepared["fisher"] >= 0).all()

    if optimizer == "adam":
        steps = torch.optim.Adam(norms, lr=0.05)
    else:
        steps = torch.optim.SGD(norms, lr=0.05, momentum=0.9, nesterov=True)
    ceiling = 1.1 * math.log(4)
    for seed in range(3):
        adapter(images(seed=seed))
        h = entropy(batch_statistics_logits(reference, images(seed=seed)).log_softmax(-1))
        loss = ((ceiling - h.detach()).exp() * h).mean()
        loss = loss + 3.0 * sum((f * (p - s) ** 2).sum() for f, p, s in zip(fisher, norms, start, strict=True))
        steps.zero_grad()
        loss.backward()
        steps.step()
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for ours, theirs in zip(trained(adapter), norms, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_only_sure_and_novel_samples_are_learned_from(tiny, images) -> None:
    model, batches = tiny(), [images(40, seed) for seed in range(3)]
    with torch.no_grad():
        model.fc.weight.mul_(8)  # entropies of all sizes
    adapter = eta(model, lr=0.0, entropy_margin=0.6, similarity_margin=0.9)
    mean = None
    for x in batches:
        adapter(x)
        probs = BN(model)(x).exp()
        h = entropy(probs.log())
        kept = h < 0.6 * math.log(4)
        if mean is not None:
            kept &= F.cosine_similarity(mean, probs, dim=-1) < 0.9
        assert 0 < kept.sum() < 40
        assert adapter.last["kept"] == pytest.approx(kept.float().mean().item())
        expected = ((0.6 * math.log(4) - h[kept]).exp() * h[kept]).mean()
        assert adapter.last["loss"] == pytest.approx(expected.item(), rel=1e-4)
        new = probs[kept].mean(0)
        mean = new if mean is None else 0.9 * mean + 0.1 * new
        assert torch.allclose(adapter.memory["mean"], mean, atol=1e-6)
        assert adapter.memory["mean"].sum() == pytest.approx(1, abs=1e-5)


def test_without_penalty_and_filters_it_differs_from_tent_by_its_weights_alone(tiny, images) -> None:
    alike = images(1).expand(6, -1, -1, -1)  # one entropy, so one weight for all of them
    ours = eta(tiny("group"), lr=0.1, optimizer="sgd", **ALL)
    tent = TENT(tiny("group"), TENTConfig(lr=0.1, optimizer="sgd"))
    start = trained(tent)
    ours(alike)
    tent(alike)
    weight = math.exp(1.1 * math.log(4) - tent.last["entropy"])
    for before, here, there in zip(start, trained(ours), trained(tent), strict=True):
        assert torch.allclose(here - before, weight * (there - before), atol=1e-6)


def test_the_penalty_holds_the_parameters_near_the_source(tiny, images) -> None:
    def distance(weight: float) -> float:
        adapter = build_adapter(
            "eata", tiny(), source=source(images), fisher_weight=weight, lr=1e-2, optimizer="sgd", **ALL
        )
        for seed in range(8):
            adapter(images(seed=seed))
        pairs = zip(trained(adapter), trained(eta(tiny())), strict=True)
        return sum((ours - start).square().sum().item() for ours, start in pairs)

    assert distance(1e3) < 0.9 * distance(1e-6)


def test_penalty_and_its_gradient_are_zero_at_the_source(tiny, images) -> None:
    adapter = build_adapter("eata", tiny(), source=source(images), fisher_weight=5.0)
    penalty = adapter.penalty()
    assert penalty == 0
    norms = [p for p in adapter.networks["model"].parameters() if p.requires_grad]
    assert not any(g.any() for g in torch.autograd.grad(penalty, norms))


def test_eta_needs_no_source_and_gives_the_same_with_it(tiny, images) -> None:
    alone = build_adapter("eata", tiny(), fisher_weight=0.0, **ALL)
    given = build_adapter("eata", tiny(), source=source(images), fisher_weight=0.0, **ALL)
    assert not alone.needs_source
    assert EATA.needs_source
    for seed in range(3):
        assert torch.equal(alone(images(seed=seed)), given(images(seed=seed)))


def test_eata_with_a_penalty_must_be_prepared_on_source_data(tiny, images) -> None:
    with pytest.raises(ValueError, match="prepared on source data"):
        EATA(tiny())(images())


def test_no_more_images_are_used_than_asked_for(tiny, images) -> None:
    drawn = []

    def stream():
        for batch in source(images, batches=5):
            drawn.append(batch)
            yield batch

    some = build_adapter("eata", tiny(), source=stream(), fisher_images=15)
    assert len(drawn) == 2
    cut = [source(images)[0], (source(images)[1][0][:5], None)]
    all_of_them = build_adapter("eata", tiny(), source=[(x, torch.zeros(len(x))) for x, _ in cut])
    assert torch.equal(some.prepared["fisher"], all_of_them.prepared["fisher"])


def test_wrong_settings_are_refused() -> None:
    for wrong in ({"lr": -1.0}, {"entropy_margin": -0.1}, {"fisher_weight": -1.0}, {"fisher_images": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EATAConfig(**wrong)
