"""Features by class: prototypes of the source, and losses on class centres, relations and contrasts."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.methods.base import Adapter
from vcotta.methods.parts.layers import classifier
from vcotta.nn.inputs import check_labels

__all__ = [
    "class_centres",
    "class_sums",
    "contrastive_loss",
    "cosine_similarities",
    "intra_class",
    "make_projector",
    "nearest_prototypes",
    "pair_weights",
    "prototype_contrast",
    "source_prototypes",
    "uniformity",
]

_ABSENT = -1e30  # stands for log 0, and keeps gradients finite


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the features of each class, (classes, dimensions), and their number, (classes,)."""
    members = (labels.unsqueeze(1) == torch.arange(classes, device=labels.device)).to(features.dtype)
    return members.T @ features, members.sum(0)


@torch.no_grad()
def source_prototypes(adapter: Adapter, source: Iterable[tuple[Tensor, Tensor]], limit: int = 100_000) -> Tensor:
    """Mean penultimate feature of every class over source data, (classes, dimensions), in one pass.

    The features are those of the start network with the statistics of each source batch, as at test time. The pass ends
    after ``limit`` images, RMT's official number.

    Raises:
        ValueError: If a class has no image.
    """
    layer = classifier(adapter.start)
    sums = layer.weight.new_zeros(layer.weight.shape, dtype=torch.float64)
    counts = sums.new_zeros(len(sums))
    seen = 0
    for images, labels in source:
        features, _ = adapter.features_and_logits(adapter.start, images)
        check_labels(labels, len(images), len(sums))
        batch_sums, batch_counts = class_sums(features, labels, len(sums))
        sums += batch_sums
        counts += batch_counts
        seen += len(images)
        if seen > limit:
            break
    if missing := (counts == 0).nonzero().flatten().tolist():
        raise ValueError(
            f"Expected `source` to hold images of all {len(sums)} classes, whose mean features are the prototypes, but "
            f"got none of class {missing[0]}."
        )
    return (sums / counts.unsqueeze(1)).to(layer.weight.dtype)


def nearest_prototypes(prototypes: Tensor, features: Tensor) -> Tensor:
    """Return for each feature the prototype of the largest cosine, (batch, dimensions), without gradient."""
    similarity = F.normalize(features.detach(), dim=-1) @ F.normalize(prototypes, dim=-1).T
    return prototypes[similarity.argmax(-1)]


def cosine_similarities(vectors: Tensor) -> Tensor:
    """Cosines between all pairs of rows; the diagonal is 1, without gradient."""
    unit = F.normalize(vectors, dim=-1)
    diagonal = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    return (unit @ unit.T).masked_fill(diagonal, 1.0)


def contrastive_loss(views: Tensor, temperature: float) -> Tensor:
    r"""Draw the views of one image together and away from those of the others.

    With unit vectors :math:`v_u` of all V views of all B images, and Pos(u) the other views of the image of u,

    .. math:: L = \frac{1}{VB} \sum_u \frac{1}{V - 1} \sum_{w \in Pos(u)}
        -\log \frac{\exp(v_u^\top v_w / t)}{\sum_{k \ne u} \exp(v_u^\top v_k / t)}.

    As in RMT's official code, all other images count as negatives, also those of the same class. ``views`` is
    (views, batch, dimensions).
    """
    count, batch = views.shape[:2]
    unit = F.normalize(views, dim=-1).flatten(0, 1)
    image = torch.arange(batch, device=views.device).repeat(count)
    itself = torch.eye(len(unit), dtype=torch.bool, device=views.device)
    log_share = (unit @ unit.T / temperature).masked_fill(itself, -torch.inf).log_softmax(-1)
    positive = (image.unsqueeze(0) == image.unsqueeze(1)) & ~itself
    return -torch.where(positive, log_share, 0.0).sum(-1).mean() / (count - 1)


def make_projector(width: int, dimensions: int = 128) -> nn.Sequential:
    """The network whose outputs are compared in place of features: linear, ReLU, linear."""
    return nn.Sequential(nn.Linear(width, dimensions), nn.ReLU(), nn.Linear(dimensions, dimensions))


def prototype_contrast(
    projector: nn.Module, prototypes: Tensor, features: Tensor, features_of_view: Tensor, temperature: float
) -> Tensor:
    """`contrastive_loss` of three views of each image: its nearest prototype, its features, those of a random view."""
    nearest = nearest_prototypes(prototypes, features)
    return contrastive_loss(projector(torch.stack([nearest, features, features_of_view])), temperature)


def pair_weights(counts: Tensor) -> Tensor:
    r""":math:`(w_i + w_j) / 2` for all pairs of classes, with :math:`w_k` the share of :math:`\sqrt{n_k + 10^{-6}}`."""
    roots = (counts + 1e-6).sqrt()
    shares = roots / roots.sum()
    return 0.5 * (shares.unsqueeze(0) + shares.unsqueeze(1))


def class_centres(features: Tensor, members: Tensor) -> Tensor:
    """Mean feature of every class, (classes, dimensions), zeros for one without images."""
    return members.T @ features / members.sum(0).clamp_min(1).unsqueeze(-1)


def uniformity(centres: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    r""":math:`\log \operatorname{mean}_{i<j} W_{ij} e^{-2 \|c_i - c_j\|^2}` over pairs of classes the batch has.

    ``centres`` are (classes, dimensions), ``present`` says which classes the batch has, and ``weights`` are W. The term
    falls as centres move apart; it is 0 for fewer than two classes.
    """
    pairs = (present.unsqueeze(0) & present.unsqueeze(1)).triu(1)
    scores = weights.log() - 2 * _squared_distances(centres, present)
    mean = scores.masked_fill(~pairs, _ABSENT).flatten().logsumexp(0) - pairs.sum().clamp_min(1).log()
    return torch.where(pairs.any(), mean, 0.0)


def intra_class(features: Tensor, members: Tensor) -> Tensor:
    r"""Mean over classes of :math:`\log \operatorname{mean}_{a<b} e^{-2 \|v_a - v_b\|^2}`, a and b being of the class.

    Over classes with two images or more, 0 if there are none. ``members`` says whether an image is of a class, 0 or 1,
    (batch, classes).
    """
    counts = members.sum(0)
    pairs = counts * (counts - 1) / 2
    together = (members @ members.T > 0).triu(1)
    scores = -2 * _squared_distances(features, torch.ones_like(features[:, 0], dtype=torch.bool))
    of_image = scores.masked_fill(~together, _ABSENT).logsumexp(1)  # over the pairs in which it comes first
    of_class = of_image.unsqueeze(1).masked_fill(members == 0, _ABSENT).logsumexp(0)
    means = torch.where(pairs > 0, of_class - pairs.clamp_min(1).log(), 0.0)
    return means.sum() / (pairs > 0).sum().clamp_min(1)


def _squared_distances(points: Tensor, present: Tensor) -> Tensor:
    """Squared distances between the rows of ``points``, about the mean of those present, to avoid cancellation."""
    mean = (points * present.unsqueeze(-1)).sum(0) / present.sum().clamp_min(1)
    points = points - mean.detach()
    squares = points.square().sum(-1)
    return (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * points @ points.T).clamp_min(0)
