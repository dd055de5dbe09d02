"""TCA: a mean teacher that keeps the arrangement of class centres (topological consistency adaptation, CVPR 2025)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.methods.base import OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.features import classifier
from vcotta.methods.losses import symmetric_cross_entropy
from vcotta.methods.mean_teacher import update_teacher
from vcotta.methods.view_average import ViewAveraging
from vcotta.views import random_view

__all__ = ["TCA", "TCAConfig", "class_centres", "intra_class", "intra_distance", "pair_weights", "uniformity"]

_ABSENT = -1e30  # the logarithm of nothing, finite so that gradients stay so


@dataclass(frozen=True)
class TCAConfig:
    """Settings of TCA; defaults for CIFAR10-C from the official code, those that CoTTA has too from its configuration.

    Attributes:
        lr: Step size; neither paper nor code names one. For CIFAR 3e-4, which on held-out corruptions gained four
            points over CoTTA's 1e-3 where a network's weights were small and lost one at most where they were not; for
            ImageNet-C CoTTA's (0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C (CoTTA's).
        views: Augmented views averaged when the source is unsure (32).
        threshold: Views are used when the source's mean confidence is below it (CIFAR10-C 0.92, CIFAR100-C 0.72,
            ImageNet-C 0.1). None: learned from source data where given, else 0.92.
        beta: Decay of the teacher's average (0.999).
        topology: Weight of the uniformity and the intra-class term (0.025, hard-coded for CIFAR; the paper: 0.15).
        alignment: Weight of the alignment of two views (0.15, hard-coded for CIFAR; the paper: 0.025).
        unit: Whether features are compared by their directions, as vectors of length 1, for which such terms were made
            (Wang and Isola, 2020; ours), or as they are (official code), where nothing bounds how far centres are
            pushed apart: on a WRN-28-10 and held-out corruptions that was two points worse.
        smoothing: Share of a batch in the moving pair weights (0.2).
        intra: The term within a class. ``compact`` draws its images together, the nearest ones most (ours), and
            ``distance`` all pairs alike. ``spread`` is the official code's ``compact`` with the opposite sign, by which
            they part, as they do by the paper's Eq. 5 (of another form: the mean distance, not squared, is inside the
            exponential, and the mean over classes inside the logarithm), though both call it compactness.
        centre_share: Share of the batch in the class centres of the uniformity term, the rest being their moving
            average (1: the batch alone, as in the official losses; the rate of its average is undefined).
        labels: Whose classes the centres follow: those of the ``student`` on the first view (official code) or those of
            the ``teacher`` (an unofficial rewrite).
        student_share: Share of the student's logits in the prediction, the rest being the teacher's (0.5 in the later
            official versions, 0.3 in the first).
        flip: Whether views may mirror the image.
    """

    lr: float = 3e-4
    optimizer: OptimizerName = "adam"
    views: int = 32
    threshold: float | None = None
    beta: float = 0.999
    topology: float = 0.025
    alignment: float = 0.15
    unit: bool = True
    smoothing: float = 0.2
    intra: Literal["compact", "distance", "spread"] = "compact"
    centre_share: float = 1.0
    labels: Literal["student", "teacher"] = "student"
    student_share: float = 0.5
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "views", "topology", "alignment"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        for name in ("beta", "smoothing", "centre_share", "student_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")


class TCA(ViewAveraging):
    r"""CoTTA's mean teacher without restoration, with class centres kept apart and the images of a class together.

    With student predictions p on the images and :math:`p_1` on a random view of them, whose features are v and whose
    predicted classes have the centres :math:`c_k`, features :math:`v_2` of a second view, and the teacher's prediction
    :math:`\bar p` (over many views if the source is unsure, see `ViewAveraging`), the student minimises

    .. math::

        \tfrac12 \mathrm{SCE}(p, \bar p) + \tfrac12 \mathrm{SCE}(p_1, \bar p)
        + 0.025 \Big[ \log \operatorname{mean}_{i<j} W_{ij} e^{-2 \|c_i - c_j\|^2}
        - \operatorname{mean}_k \log \operatorname{mean}_{a<b \in k} e^{-2 \|v_a - v_b\|^2} \Big]
        + 0.15 \operatorname{mean} \|v - v_2\|^2

    with features of length 1 (``unit``; as they are in the official code), where the pair weights W follow the class
    counts of the batches, see `pair_weights`. The prediction returned is the mean of student and teacher logits, from
    before the step.

    The official code was released in several versions, none of which runs: names are undefined. The teacher's views are
    those of the first, which the later ones lost; the rest follows the later ones, and differs from them where they
    cannot be meant. Their centres carry no gradient, which makes the uniformity term a constant; here they do. Their
    intra-class term drives images of a class apart (``intra="spread"``). Both terms go over the classes that the batch
    has, the intra-class one over those with two images or more, where the official code puts absent centres at the
    origin and takes the logarithm of an empty mean. Alignment, undefined there, is the mean squared distance, which the
    paper prints with a minus sign. Centres are those of the batch, which the official losses use; their moving average,
    whose rate is undefined there, is ``centre_share``. An unofficial rewrite leaves the pairs of the first batch
    unweighted; here W follows the counts from the start. The paper names one pair of weights for all data sets.
    ``docs/methods.md`` shows what the open choices come to on held-out corruptions.

    The features are what the last linear layer reads; a network without one is refused.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
        >>> adapter = TCA(net, TCAConfig(views=2, threshold=1.1))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (6, 1)
    """

    name = "tca"
    summary = "mean teacher, class centres apart, classes compact"
    facts = Facts(
        "CVPR 2025", "everything", "nothing", "5 or N + 4 forwards, 1 backward", "official code", distributed=True
    )
    Config = TCAConfig
    datasets: ClassVar = {
        "cifar10": {"threshold": 0.92},
        "cifar100": {"threshold": 0.72},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "threshold": 0.1},
        "digits": {"lr": 1e-2, "beta": 0.98, "views": 8, "flip": False},
    }

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the start network is the anchor."""
        classifier(model)  # refuses a network without features before the first batch
        teacher = copy.deepcopy(model).requires_grad_(False)
        student = model.requires_grad_(True)
        self.networks = {"student": student, "teacher": teacher}
        self.make_optimizer(student.parameters(), self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Set an open threshold by the rule of CoTTA's authors."""
        return self.learn_threshold(self.start, source)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict with student and teacher, then one step of the student and the teacher's average."""
        config, student = self.config, self.networks["student"]
        target = self.teacher_target(self.start, images)
        logits = self.logits(student, images)
        (features, view_logits), (others, _) = (self.features_and_logits(student, self._view(images)) for _ in range(2))
        fit = symmetric_cross_entropy(target, torch.stack([logits, view_logits]).log_softmax(-1)).mean()
        if config.unit:
            features, others = F.normalize(features, dim=-1), F.normalize(others, dim=-1)
        labelled = view_logits if config.labels == "student" else target
        members = F.one_hot(labelled.argmax(-1), logits.shape[-1]).to(logits.dtype)
        weights, centres = self._moved_weights(members.sum(0)), self._moved_centres(features, members)
        topology = uniformity(centres, members.any(0), weights) + _INTRA[config.intra](features, members)
        alignment = (features - others).square().sum(-1).mean()
        self.note(fit=fit.detach(), topology=topology.detach(), alignment=alignment.detach())
        done = self.minimise(fit + config.topology * topology + config.alignment * alignment)
        update_teacher(self.networks["teacher"], student, config.beta, done)
        self.memory["pair_weights"] = torch.where(done, weights, self._weights(weights))
        if config.centre_share < 1:
            self.memory["centres"] = torch.where(done, centres.detach(), self._centres(centres))
        # Log-probabilities are logits too: shifted by a constant, which the normalisation takes out again.
        return torch.lerp(target, logits, config.student_share).log_softmax(-1)

    def _view(self, images: Tensor) -> Tensor:
        return self.runtime.place_images(random_view(images, flip=self.config.flip))

    def _weights(self, like: Tensor) -> Tensor:
        """The pair weights so far, (classes, classes); at first 1 / C everywhere."""
        return self.memory.get("pair_weights", torch.full_like(like, 1 / len(like)))

    def _moved_weights(self, counts: Tensor) -> Tensor:
        weights = pair_weights(counts)
        return torch.lerp(self._weights(weights), weights, self.config.smoothing)

    def _centres(self, like: Tensor) -> Tensor:
        """The moving average of the centres so far, (classes, dimensions); zeros for a class that was never there."""
        return self.memory.get("centres", torch.zeros_like(like))

    def _moved_centres(self, features: Tensor, members: Tensor) -> Tensor:
        """The centres of the batch, mixed with what is remembered of them; a class the batch has not keeps its own."""
        centres = class_centres(features, members)
        if self.config.centre_share == 1:
            return centres
        past, here = self._centres(centres), members.any(0).unsqueeze(-1)
        known = past.any(-1, keepdim=True)
        moved = torch.where(known, torch.lerp(past, centres, self.config.centre_share), centres)
        return torch.where(here, moved, past)


def pair_weights(counts: Tensor) -> Tensor:
    r""":math:`(w_i + w_j) / 2` for all pairs of classes, :math:`w_k` being the share of :math:`\sqrt{n_k + 10^{-6}}`.

    Example:
        >>> pair_weights(torch.tensor([9.0, 1.0]))
        tensor([[0.7500, 0.5000],
                [0.5000, 0.2500]])
    """
    roots = (counts + 1e-6).sqrt()
    shares = roots / roots.sum()
    return 0.5 * (shares.unsqueeze(0) + shares.unsqueeze(1))


def class_centres(features: Tensor, members: Tensor) -> Tensor:
    """Mean feature of every class, (classes, dimensions), zeros for one without images.

    Example:
        >>> class_centres(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
        tensor([[1.],
                [3.]])
    """
    return members.T @ features / members.sum(0).clamp_min(1).unsqueeze(-1)


def uniformity(centres: Tensor, present: Tensor, weights: Tensor) -> Tensor:
    r""":math:`\log \operatorname{mean}_{i<j} W_{ij} e^{-2 \|c_i - c_j\|^2}` over pairs of classes the batch has.

    Args:
        centres: Class centres, (classes, dimensions).
        present: Which classes the batch has, (classes,).
        weights: W, (classes, classes).

    Returns:
        The term, 0 if there are fewer than two classes. It falls as centres move apart.
    """
    pairs = (present.unsqueeze(0) & present.unsqueeze(1)).triu(1)
    scores = weights.log() - 2 * _squared_distances(centres, present)
    mean = scores.masked_fill(~pairs, _ABSENT).flatten().logsumexp(0) - pairs.sum().clamp_min(1).log()
    return torch.where(pairs.any(), mean, 0.0)


def intra_class(features: Tensor, members: Tensor) -> Tensor:
    r"""Mean over classes of :math:`\log \operatorname{mean}_{a<b} e^{-2 \|v_a - v_b\|^2}`, a and b being of the class.

    Args:
        features: Features, (batch, dimensions).
        members: Whether an image is of a class, 0 or 1, (batch, classes).

    Returns:
        The term over the classes with two images or more, 0 if there are none. It is at most 0, and 0 if the images of
        a class agree.
    """
    counts = members.sum(0)
    pairs = counts * (counts - 1) / 2
    together = (members @ members.T > 0).triu(1)
    scores = -2 * _squared_distances(features, torch.ones_like(features[:, 0], dtype=torch.bool))
    of_image = scores.masked_fill(~together, _ABSENT).logsumexp(1)  # over the pairs it is the first of
    of_class = of_image.unsqueeze(1).masked_fill(members == 0, _ABSENT).logsumexp(0)
    means = torch.where(pairs > 0, of_class - pairs.clamp_min(1).log(), 0.0)
    return means.sum() / (pairs > 0).sum().clamp_min(1)


def intra_distance(features: Tensor, members: Tensor) -> Tensor:
    r"""Mean over classes of :math:`\operatorname{mean}_{a<b} \|v_a - v_b\|^2`, over classes with two images or more.

    Example:
        >>> intra_distance(torch.tensor([[1.0], [3.0], [9.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
        tensor(4.)
    """
    counts = members.sum(0)
    spread = (features - members @ class_centres(features, members)).square().sum(-1)
    means = 2 * (members.T @ spread) / (counts - 1).clamp_min(1)  # pairs lie twice the variance apart
    return means.sum() / (counts > 1).sum().clamp_min(1)


def _squared_distances(points: Tensor, present: Tensor) -> Tensor:
    """Squared distances between the rows of ``points``, about the mean of those present so that little cancels."""
    mean = (points * present.unsqueeze(-1)).sum(0) / present.sum().clamp_min(1)
    points = points - mean.detach()
    squares = points.square().sum(-1)
    return (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * points @ points.T).clamp_min(0)


_INTRA = {
    "compact": lambda features, members: -intra_class(features, members),
    "distance": intra_distance,
    "spread": intra_class,
}
