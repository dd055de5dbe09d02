"""PETAL: a source posterior as the prior, and restoration by Fisher information (Brahma and Rai, CVPR 2023)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, UnitInterval
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import fisher_information, restore_least, restore_randomly, update_teacher
from vcotta.methods.parts.view_average import ViewAveraging
from vcotta.methods.passes import Passes
from vcotta.methods.registry import register_method
from vcotta.nn.inputs import check_labels
from vcotta.nn.optim import OptimizerName, finite_step, make_optimizer

__all__ = ["PETAL", "PETALConfig"]

_DAMPING = 1e-6  # added to the variances, as in the official code
_CONSTANT_EPOCHS = 2  # of SWAG with the first step size; snapshots are taken from the end of the last of them on


@dataclass(frozen=True)
class PETALConfig(StreamSettings):
    """Settings of PETAL; defaults for CIFAR10-C from the official configuration.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        views: Augmented views averaged when the anchor is unsure (32).
        threshold: p_th: views are used when the anchor's mean confidence is below it (CIFAR10-C 0.92, CIFAR100-C 0.72,
            ImageNet-C 0.1). None: learned from source data by CoTTA's rule.
        beta: Decay of the teacher's average (0.999).
        loss: ``ce`` (CIFAR) or the symmetric ``sce`` (ImageNet).
        prior_weight: lambda, weight of the source posterior (1e-9; ImageNet-C 1e-11). For CIFAR100-C the official
            configuration says 1e-9, but Fisher restoration runs with 1e-8, as ours.
        restoration: ``fisher`` restores the weights with the least Fisher information (PETAL-FIM), ``random`` a random
            share of them as in CoTTA (PETAL-SRes).
        delta: Share of all weights that ``fisher`` restores (0.03; ImageNet-C 0.003).
        restore: Probability that ``random`` restores a weight (0.01; ImageNet-C 0.001).
        epochs: Passes over the source data for SWAG (5).
        source_lr: SWAG's step size in the first two epochs (8e-4).
        swa_lr: SWAG's step size in the last epoch, reached in equal steps (0.01).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    views: NonNegativeInt = 32
    threshold: float | None = None
    beta: UnitInterval = 0.999
    loss: Literal["ce", "sce"] = "ce"
    prior_weight: NonNegative = 1e-9
    restoration: Literal["fisher", "random"] = "fisher"
    delta: UnitInterval = 0.03
    restore: UnitInterval = 0.01
    epochs: Count = 5
    source_lr: NonNegative = 8e-4
    swa_lr: NonNegative = 0.01
    flip: bool = True


@register_method
class PETAL(ViewAveraging):
    r"""CoTTA's mean teacher as MAP inference under a source posterior, restoring the least informed weights.

    Before testing, diagonal SWAG (`swag`) turns the source network into a posterior :math:`N(\mu, \sigma^2)` over its
    weights. Student, teacher and anchor start at :math:`\mu`. On every batch the student minimises

    .. math:: \mathrm{CE}(\bar p \to p) + \frac{\lambda}{2} \sum_j \frac{(\theta_j - \mu_j)^2}{\sigma_j^2 + 10^{-6}}

    where :math:`\bar p` is the teacher's prediction, over many views if the anchor is unsure, see `ViewAveraging`. With
    :math:`F_j` the squared gradient of this loss, the weights whose :math:`F_j` lies below the delta-quantile return to
    :math:`\mu` after the step and the teacher's update. The teacher's prediction is returned. The paper shuffles the
    source data in batches of 200; here the loader decides.

    Differs from the official code: variances are accumulated by Welford's method; the quantile is exact for any number
    of weights; BatchNorm's running statistics, which only a batch of one uses, stay the source's instead of being
    estimated anew; mean and variance get no gradient. The official ImageNet preparation never takes a step; here
    ImageNet follows the CIFAR recipe with its intended constant step size of 1e-4.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = PETAL(net, PETALConfig(views=2, threshold=1.1, epochs=2))
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.arange(8) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "petal"
    summary = "mean teacher under a source posterior, Fisher restoration"
    card = Card(
        "CVPR 2023",
        "everything",
        "5 epochs of SWAG",
        "3 or N + 2 forwards, 1 backward",
        "official code",
        distributed=True,
    )
    Config = PETALConfig
    needs_source = True
    datasets: ClassVar = {
        "cifar10": {"threshold": 0.92},
        "cifar100": {"threshold": 0.72, "prior_weight": 1e-8},
        "imagenet": {
            "lr": 0.01,
            "optimizer": "sgd",
            "threshold": 0.1,
            "loss": "sce",
            "prior_weight": 1e-11,
            "delta": 0.003,
            "restore": 0.001,
            "source_lr": 1e-4,
            "swa_lr": 1e-4,
        },
        "digits": {"lr": 1e-2, "beta": 0.98, "views": 8, "flip": False},
    }

    @classmethod
    def settings_for(cls, dataset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a data set; CIFAR100-C's ``prior_weight`` is for Fisher restoration alone."""
        found = super().settings_for(dataset, options)
        if dataset == "cifar100" and options.get("restoration") == "random":
            found.pop("prior_weight", None)
        return found

    def setup(self, model: nn.Module) -> None:
        """Make student, teacher and anchor, all at the posterior's mean."""
        if self.prepared:
            _load(model, self._moment("mean"))
        super().setup(model)
        self.networks["anchor"] = copy.deepcopy(self.networks["teacher"])

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Mean and variance of every parameter by SWAG, and the threshold if the config leaves it open."""
        config, net = self.config, copy.deepcopy(self.start).requires_grad_(True)
        moments = swag(self, net, source, config.epochs, config.source_lr, config.swa_lr)
        _load(net, moments.mean)
        learned: dict[str, Tensor] = {}
        for (name, _), mean, variance in zip(net.named_parameters(), moments.mean, moments.variance, strict=True):
            learned |= {f"mean.{name}": mean, f"variance.{name}": variance}
        return learned | self.learn_threshold(net, source)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student, then average and restore."""
        config = self.config
        student, teacher, anchor = (self.networks[role] for role in ("student", "teacher", "anchor"))
        target = self.teacher_target(anchor, images)
        log_probs = self.logits(student, images).log_softmax(-1)
        distance = cross_entropy if config.loss == "ce" else symmetric_cross_entropy
        prior = config.prior_weight * self._distance_to_prior()
        self.note(prior=prior.detach())
        with fisher_information(self.optimizer) as fisher:
            done = self.minimise(distance(target, log_probs).mean() + prior)
        update_teacher(teacher, student, config.beta, done)
        if config.restoration == "fisher":
            restore_least(student, anchor, fisher, config.delta, done)
        else:
            restore_randomly(student, anchor, config.restore, done)
        return target

    def _distance_to_prior(self) -> Tensor:
        r""":math:`\frac12 \sum_j (\theta_j - \mu_j)^2 / (\sigma_j^2 + 10^{-6})` over all parameters of the student."""
        student, anchor = self.networks["student"].parameters(), self.networks["anchor"].parameters()
        terms = [
            ((ours - mean).square() / (variance + _DAMPING)).sum()
            for ours, mean, variance in zip(student, anchor, self._moment("variance"), strict=True)
        ]
        return 0.5 * torch.stack(terms).sum()

    def _moment(self, which: str) -> list[Tensor]:
        """The prepared ``mean`` or ``variance``, in the order of the parameters."""
        return [self.prepared[f"{which}.{name}"] for name, _ in self.start.named_parameters()]


@torch.no_grad()
def _load(net: nn.Module, values: Iterable[Tensor]) -> None:
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.copy_(value)


@torch.enable_grad()
def swag(
    passes: Passes,
    net: nn.Module,
    source: Iterable[tuple[Tensor, Tensor]],
    epochs: int,
    first_lr: float,
    last_lr: float,
) -> Moments:
    """Train ``net`` in place on source data, and return mean and variance of its weights over snapshots.

    The recipe of PETAL's official code for CIFAR: SGD with momentum 0.9 and weight decay 5e-4 on the cross-entropy; two
    epochs at ``first_lr``, then rising linearly to ``last_lr``; a snapshot at the end of every epoch from the second
    on. BatchNorm uses the source's running statistics. A step whose loss or gradient is not finite is skipped.

    Raises:
        FloatingPointError: The loss was never finite in an epoch.
    """
    moments = Moments(net.parameters())
    optimizer = make_optimizer(net.parameters(), "momentum", 0.0, weight_decay=5e-4)
    for epoch in range(1, epochs + 1):
        share = max(0, epoch - _CONSTANT_EPOCHS) / max(1, epochs - _CONSTANT_EPOCHS)
        optimizer.param_groups[0]["lr"] = first_lr + share * (last_lr - first_lr)
        taken = torch.zeros((), device=passes.runtime.device)
        for images, labels in source:
            logits = passes.logits(net, images, batch_statistics=False)
            if epoch == 1:
                check_labels(labels, len(images), logits.shape[-1])
            taken += finite_step(optimizer, F.cross_entropy(logits, labels))
        if not taken:
            raise FloatingPointError(
                f"The loss on source data was never finite in epoch {epoch} of the preparation of PETAL. "
                "Try a smaller `source_lr` and `swa_lr`."
            )
        if epoch >= min(_CONSTANT_EPOCHS, epochs):
            moments.add(net.parameters())
    return moments


class Moments:
    """Mean and variance of parameters over snapshots, by Welford's method, which avoids cancellation."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.count = 0
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self._squares = [torch.zeros_like(mean) for mean in self.mean]

    @torch.no_grad()
    def add(self, parameters: Iterable[Tensor]) -> None:
        """Add a snapshot."""
        self.count += 1
        for parameter, mean, squares in zip(parameters, self.mean, self._squares, strict=True):
            before = parameter - mean
            mean.copy_(parameter if self.count == 1 else mean + before / self.count)
            squares += before * (parameter - mean)

    @property
    def variance(self) -> list[Tensor]:
        """The variances about the mean, at least 0."""
        return [(squares / self.count).clamp_min(0) for squares in self._squares]
