from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from vcotta.methods import build_adapter
from vcotta.methods.parts.class_features import (
    class_centres,
    class_sums,
    contrastive_loss,
    cosine_similarities,
    intra_class,
    make_projector,
    nearest_prototypes,
    pair_weights,
    prototype_contrast,
    source_prototypes,
    uniformity,
)
from vcotta.methods.parts.layers import catch_features


def labelled(images, batches: int = 3, n: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(images(n, seed), (torch.arange(n) + seed) % 4) for seed in range(batches)]


def test_prototypes_are_class_means_of_features_under_the_statistics_of_each_source_batch(tiny, images) -> None:
    model, source = tiny(), labelled(images)
    model.train()  # batch statistics
    with torch.no_grad(), catch_features(model) as caught:
        for batch, _ in source:
            model(batch)
    features, labels = torch.cat(caught), torch.cat([y for _, y in source])
    expected = torch.stack([features[labels == c].mean(0) for c in range(4)])
    found = build_adapter("santa", tiny(), source=source).prepared["prototypes"]
    assert torch.allclose(found, expected, atol=1e-6)
    assert not found.requires_grad


def test_the_pass_over_the_source_ends_when_the_limit_is_reached(tiny, images) -> None:
    adapter, seen = build_adapter("bn", tiny()), []

    def source():
        for batch in labelled(images, 5):
            seen.append(len(batch[0]))
            yield batch

    adapter.note(forwards=0)
    source_prototypes(adapter, source(), limit=10)
    assert seen == [8, 8]


def test_a_class_without_images_is_named(tiny, images) -> None:
    with pytest.raises(ValueError, match="none of class 3"):
        build_adapter("santa", tiny(), source=[(images(6), torch.arange(6) % 3)])


def test_sums_agree_with_a_loop() -> None:
    features, labels = torch.randn(20, 5), torch.randint(0, 6, (20,))
    sums, counts = class_sums(features, labels, 7)
    for c in range(7):
        assert torch.allclose(sums[c], features[labels == c].sum(0), atol=1e-5)
        assert counts[c] == (labels == c).sum()


def test_the_nearest_prototype_is_that_of_the_largest_cosine_whatever_the_lengths() -> None:
    prototypes, features = torch.randn(7, 5), torch.randn(9, 5, requires_grad=True)
    found = nearest_prototypes(prototypes * torch.rand(7, 1).add(0.1), features)
    cosines = F.cosine_similarity(features[:, None], prototypes[None], dim=-1)
    assert torch.allclose(F.normalize(found), F.normalize(prototypes)[cosines.argmax(1)], atol=1e-6)
    assert not found.requires_grad


def test_cosines_have_ones_on_a_diagonal_that_takes_no_gradient() -> None:
    vectors = torch.randn(4, 6, requires_grad=True)
    found = cosine_similarities(vectors)
    assert torch.allclose(found, F.cosine_similarity(vectors[:, None], vectors[None], dim=-1), atol=1e-6)
    found.diagonal().sum().backward()
    assert torch.equal(vectors.grad, torch.zeros(4, 6))


def reference(views: torch.Tensor, temperature: float) -> float:
    """The formula, anchor by anchor."""
    count, batch = views.shape[:2]
    unit = {(v, i): views[v, i] / views[v, i].norm() for v in range(count) for i in range(batch)}
    total = 0.0
    for u, anchor in unit.items():
        scores = {w: math.exp(float(anchor @ other) / temperature) for w, other in unit.items() if w != u}
        positives = [w for w in scores if w[1] == u[1]]
        total += sum(-math.log(scores[w] / sum(scores.values())) for w in positives) / len(positives)
    return total / len(unit)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_contrastive_loss_is_its_formula(batch) -> None:
    views = torch.randn(3, batch, 6, dtype=torch.float64)
    assert contrastive_loss(views, 0.3).item() == pytest.approx(reference(views, 0.3))


def test_the_contrastive_loss_does_not_depend_on_the_order_of_the_images() -> None:
    views = torch.randn(3, 6, 4, dtype=torch.float64)
    assert torch.allclose(contrastive_loss(views, 0.1), contrastive_loss(views[:, torch.randperm(6)], 0.1))


def test_equal_views_of_orthogonal_images_reach_the_minimum() -> None:
    views = torch.eye(5).expand(3, 5, 5)
    assert contrastive_loss(views, 0.01).item() == pytest.approx(math.log(2), abs=1e-5)
    assert contrastive_loss(torch.randn(3, 5, 5), 0.01) > math.log(2)


def test_the_gradient_of_the_contrast_reaches_features_and_projector_but_not_the_prototypes() -> None:
    projector, prototypes = make_projector(6, 4), torch.randn(3, 6, requires_grad=True)
    features, of_view = torch.randn(2, 5, 6).requires_grad_().unbind()
    features.retain_grad()
    of_view.retain_grad()
    prototype_contrast(projector, prototypes.detach(), features, of_view, 0.1).backward()
    assert prototypes.grad is None
    assert features.grad.isfinite().all()
    assert features.grad.abs().sum() > 0
    assert of_view.grad.abs().sum() > 0
    assert all(p.grad.abs().sum() > 0 for p in projector.parameters())


def test_a_single_image_gives_a_finite_contrast() -> None:
    features = torch.zeros(1, 6, requires_grad=True)  # what a dead ReLU leaves
    loss = prototype_contrast(make_projector(6), torch.randn(3, 6), features, features, 0.1)
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()


def batch(labels: list[int], classes: int = 5, dimensions: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    features = torch.randn(len(labels), dimensions, generator=torch.Generator().manual_seed(0))
    return features.requires_grad_(), F.one_hot(torch.tensor(labels), classes).float()


def apart(features: torch.Tensor, members: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return uniformity(class_centres(features, members), members.any(0), weights)


def test_pair_weights_follow_the_counts_and_equal_counts_give_equal_weights() -> None:
    weights = pair_weights(torch.tensor([4.0, 0.0, 25.0, 9.0]))
    shares = weights.diagonal()
    assert shares.sum().item() == pytest.approx(1)
    assert shares[[0, 2, 3]].tolist() == pytest.approx([0.2, 0.5, 0.3], abs=1e-3)
    assert torch.equal(weights, weights.T)
    assert ((weights > 0) & (weights < 1)).all()
    assert torch.allclose(pair_weights(torch.full((4,), 7.0)), torch.tensor(0.25))


def test_uniformity_is_its_formula_over_the_classes_present() -> None:
    features, members = batch([0, 0, 3, 4, 4, 4])
    weights = torch.rand(5, 5, generator=torch.Generator().manual_seed(1))
    weights = weights + weights.T
    centres = {k: features[members[:, k] > 0].mean(0) for k in (0, 3, 4)}
    terms = [
        weights[i, j] * torch.exp(-2 * (centres[i] - centres[j]).square().sum())
        for i, j in itertools.combinations(centres, 2)
    ]
    expected = torch.stack(terms).mean().log()
    assert apart(features, members, weights).item() == pytest.approx(expected.item(), rel=1e-4)


def test_uniformity_falls_as_centres_move_apart_and_ignores_a_common_shift() -> None:
    features, members = batch([0, 1, 2])
    weights = torch.full((5, 5), 0.2)
    near = apart(features, members, weights)
    assert apart(features + 5, members, weights).item() == pytest.approx(near.item(), abs=1e-4)
    assert apart(1.5 * features, members, weights) < near
    assert apart(1000 * features, members, weights).isfinite()


def test_uniformity_has_a_gradient_for_every_image_and_none_without_a_pair() -> None:
    features, members = batch([0, 1, 1, 4])
    apart(features, members, torch.full((5, 5), 0.2)).backward()
    assert (features.grad.abs().sum(-1) > 0).all()
    features, members = batch([2, 2, 2])
    alone = apart(features, members, torch.full((5, 5), 0.2))
    alone.backward()
    assert alone.item() == 0
    assert not features.grad.any()


def test_the_intra_class_term_is_its_formula_over_classes_with_a_pair() -> None:
    features, members = batch([0, 0, 3, 4, 4, 4])
    terms = []
    for k in (0, 4):
        own = features[members[:, k] > 0]
        pairs = [torch.exp(-2 * (a - b).square().sum()) for a, b in itertools.combinations(own, 2)]
        terms.append(torch.stack(pairs).mean().log())
    assert intra_class(features, members).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-4)


def test_raising_the_intra_class_term_draws_a_class_together() -> None:
    features, members = batch([0, 0, 0])
    spread = (features - features.mean(0)).square().sum()
    intra_class(features, members).backward()
    moved = features + 0.01 * features.grad
    assert (moved - moved.mean(0)).square().sum() < spread
    assert intra_class(torch.ones(3, 2), members).item() == pytest.approx(0, abs=1e-6)


def test_a_batch_with_one_image_a_class_has_a_finite_loss_and_gradient() -> None:
    features, members = batch([0, 1, 2, 3, 4])
    term = intra_class(features, members) + apart(features, members, torch.full((5, 5), 0.2))
    term.backward()
    assert term.isfinite()
    assert features.grad.isfinite().all()
    assert intra_class(features, members).item() == 0
