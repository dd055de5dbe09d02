"""Class prototypes of the source, and the contrastive loss that draws test features to them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.inputs import check_labels
from vcotta.methods.base import Adapter
from vcotta.methods.features import classifier

__all__ = [
    "class_sums",
    "contrastive_loss",
    "cosine_similarities",
    "make_projector",
    "nearest_prototypes",
    "prototype_contrast",
    "source_prototypes",
]

_ENOUGH = 100_000  # source images, the bound of RMT's official code


def class_sums(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the features of each class, (classes, dimensions), and how many it has, (classes,).

    Example:
        >>> class_sums(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0, 2, 2]), classes=3)
        (tensor([[1.],
                [0.],
                [6.]]), tensor([1., 0., 2.]))
    """
    members = F.one_hot(labels.long(), classes).to(features.dtype)
    return members.T @ features, members.sum(0)


@torch.no_grad()
def source_prototypes(adapter: Adapter, source: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean penultimate feature of every class over source data, (classes, dimensions), in one pass.

    The features are those of the start network with the statistics of each source batch, as at test time. The pass ends
    after 100 000 images.

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
        if seen > _ENOUGH:
            break
    if missing := (counts == 0).nonzero().flatten().tolist():
        raise ValueError(
            f"Expected `source` to hold images of all {len(sums)} classes, whose mean features are the prototypes, but "
            f"got none of class {missing[0]}."
        )
    return (sums / counts.unsqueeze(1)).to(layer.weight.dtype)


def nearest_prototypes(prototypes: Tensor, features: Tensor) -> Tensor:
    """Return for each feature the prototype of the largest cosine, (batch, dimensions), without gradient.

    Example:
        >>> nearest_prototypes(torch.tensor([[9.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 2.0]]))
        tensor([[0., 1.]])
    """
    similarity = F.normalize(features.detach(), dim=-1) @ F.normalize(prototypes, dim=-1).T
    return prototypes[similarity.argmax(-1)]


def cosine_similarities(vectors: Tensor) -> Tensor:
    """Cosines between all pairs of rows, with ones on the diagonal, which takes no gradient."""
    unit = F.normalize(vectors, dim=-1)
    diagonal = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    return (unit @ unit.T).masked_fill(diagonal, 1.0)


def contrastive_loss(views: Tensor, temperature: float) -> Tensor:
    r"""Draw the views of one image together and away from those of the others.

    With unit vectors :math:`v_u` of all V views of all B images, and Pos(u) the other views of the image of u,

    .. math:: L = \frac{1}{VB} \sum_u \frac{1}{V - 1} \sum_{w \in Pos(u)}
        -\log \frac{\exp(v_u^\top v_w / t)}{\sum_{k \ne u} \exp(v_u^\top v_k / t)}.

    As in RMT's official code, all other images count as negatives: also those of the same class, although they may
    share their prototype.

    Args:
        views: (views, batch, dimensions), of any length.
        temperature: t.

    Example:
        >>> contrastive_loss(torch.ones(3, 1, 5), temperature=0.1)
        tensor(0.6931)
    """
    count, batch = views.shape[:2]
    unit = F.normalize(views, dim=-1).flatten(0, 1)
    image = torch.arange(batch, device=views.device).repeat(count)
    itself = torch.eye(len(unit), dtype=torch.bool, device=views.device)
    log_share = (unit @ unit.T / temperature).masked_fill(itself, -torch.inf).log_softmax(-1)
    positive = (image.unsqueeze(0) == image.unsqueeze(1)) & ~itself
    return -torch.where(positive, log_share, 0.0).sum(-1).mean() / (count - 1)


def make_projector(width: int, dimensions: int = 128) -> nn.Sequential:
    """The small network behind which features are compared: linear, ReLU, linear."""
    return nn.Sequential(nn.Linear(width, dimensions), nn.ReLU(), nn.Linear(dimensions, dimensions))


def prototype_contrast(
    projector: nn.Module, prototypes: Tensor, features: Tensor, features_of_view: Tensor, temperature: float
) -> Tensor:
    """`contrastive_loss` of three views of each image: its nearest prototype, its features, those of a random view."""
    nearest = nearest_prototypes(prototypes, features)
    return contrastive_loss(projector(torch.stack([nearest, features, features_of_view])), temperature)
