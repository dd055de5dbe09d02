"""PETAL: a source posterior as the prior, and restoration by Fisher information (Brahma and Rai, CVPR 2023)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.inputs import check_labels
from vcotta.methods.base import OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.mean_teacher import restore_randomly, update_teacher
from vcotta.methods.view_average import ViewAveraging

__all__ = ["PETAL", "Moments", "PETALConfig", "quantile", "smallest"]

_DAMPING = 1e-6  # added to the variances, as in the official code
_CONSTANT_EPOCHS = 2  # of SWAG, with the first step size; snapshots are taken from the end of the last of them on


@dataclass(frozen=True)
class PETALConfig:
    """Settings of PETAL; defaults for CIFAR10-C from the official configuration.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        views: Augmented views averaged when the anchor is unsure (32).
        threshold: p_th: views are used when the anchor's mean confidence is below it (CIFAR10-C 0.92, CIFAR100-C 0.72,
            ImageNet-C 0.1). None: learned from the source data, as CoTTA's authors do.
        beta: Decay of the teacher's average (0.999).
        loss: ``ce`` (CIFAR) or the symmetric ``sce`` (ImageNet).
        prior_weight: lambda, the weight of the source posterior (1e-9; ImageNet-C 1e-11). For CIFAR100-C the official
            configuration says 1e-9, but its code does not pass it on to Fisher restoration, which runs with 1e-8, and
            so does ours; with ``random`` it is 1e-9.
        restoration: ``fisher`` puts back the weights with the least Fisher information (PETAL-FIM), ``random`` a
            random share of them as in CoTTA (PETAL-SRes).
        delta: Share of all weights that ``fisher`` puts back (0.03; ImageNet-C 0.003).
        restore: Probability that ``random`` puts back a weight (0.01; ImageNet-C 0.001).
        epochs: Passes over the source data for SWAG (5).
        source_lr: SWAG's step size in the first two epochs (8e-4).
        swa_lr: SWAG's step size in the last epoch, reached in equal steps (0.01).
        flip: Whether views may mirror the image.
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    views: int = 32
    threshold: float | None = None
    beta: float = 0.999
    loss: Literal["ce", "sce"] = "ce"
    prior_weight: float = 1e-9
    restoration: Literal["fisher", "random"] = "fisher"
    delta: float = 0.03
    restore: float = 0.01
    epochs: int = 5
    source_lr: float = 8e-4
    swa_lr: float = 0.01
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "views", "prior_weight", "source_lr", "swa_lr"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        for name in ("beta", "delta", "restore"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")
        if self.epochs < 1:
            raise ValueError(f"Expected `epochs` to be at least 1, but got {self.epochs}.")


class PETAL(ViewAveraging):
    r"""CoTTA's mean teacher as MAP inference under the source posterior, restoring what the batch says least about.

    Before testing, SWAG (stochastic weight averaging, Gaussian) with a diagonal covariance turns the source network
    into a posterior :math:`N(\mu, \sigma^2)` over its weights. Student, teacher and anchor start at :math:`\mu`. On
    every batch the student minimises

    .. math:: \mathrm{CE}(\bar p \to p) + \frac{\lambda}{2} \sum_j \frac{(\theta_j - \mu_j)^2}{\sigma_j^2 + 10^{-6}}

    where :math:`\bar p` is the teacher's prediction, over many views if the anchor is unsure, see `ViewAveraging`. With
    :math:`F_j` the squared gradient of this loss, the weights whose :math:`F_j` lies below the delta-quantile of all of
    them go back to :math:`\mu` after the step and the teacher's update. The teacher's prediction is returned.

    SWAG follows the official CIFAR recipe: from the source weights, SGD with momentum 0.9 and weight decay 5e-4 on the
    cross-entropy of plain source images (the paper's 5 epochs of shuffled batches of 200; both are the loader's to
    give), two epochs at ``source_lr``, then rising linearly to ``swa_lr``, a snapshot at the end of every epoch from
    the second on, and BatchNorm on the source's running statistics throughout.

    Differs from the official code: variances are accumulated by Welford's method and clamped at 0 where
    :math:`E[\theta^2] - \mu^2` cancels; the quantile is exact for any number of weights; BatchNorm's running statistics
    stay the source's, under which :math:`\mu` was trained, instead of being estimated anew (only a batch of one uses
    them); mean and variance get no gradient. The official ImageNet preparation never takes a step; here ImageNet
    follows the CIFAR recipe with its intended constant step size of 1e-4 (the intended two epochs with four snapshots
    each are not implemented).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = PETAL(net, PETALConfig(views=2, threshold=1.1, epochs=2))
        >>> adapter.prepare([(torch.rand(8, 3, 8, 8), torch.arange(8) % 2)])
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (4, 1)
    """

    name = "petal"
    summary = "mean teacher under a source posterior, Fisher restoration"
    facts = Facts(
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
        """Return the settings of a data set; CIFAR100-C's weight of the posterior is Fisher restoration's alone."""
        found = super().settings_for(dataset, options)
        if dataset == "cifar100" and options.get("restoration") == "random":
            found.pop("prior_weight", None)
        return found

    def setup(self, model: nn.Module) -> None:
        """Make student, teacher and anchor, all at the posterior's mean."""
        if self.prepared:
            _load(model, self._moment("mean"))
        anchor, teacher = (copy.deepcopy(model).requires_grad_(False) for _ in range(2))
        student = model.requires_grad_(True)
        self.networks = {"student": student, "teacher": teacher, "anchor": anchor}
        self.make_optimizer(student.parameters(), self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Mean and variance of every parameter by SWAG, and the threshold if it is open."""
        net = copy.deepcopy(self.start).requires_grad_(True)
        moments = Moments(net.parameters())
        with torch.enable_grad():
            for epoch in self._fine_tune(net, source):
                if epoch >= min(_CONSTANT_EPOCHS, self.config.epochs):
                    moments.add(net.parameters())
        names = [name for name, _ in net.named_parameters()]
        means, variances = moments.mean, moments.variance
        _load(net, means)
        learned = {f"mean.{name}": mean for name, mean in zip(names, means, strict=True)}
        learned |= {f"variance.{name}": variance for name, variance in zip(names, variances, strict=True)}
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
        with _fisher_information(self.optimizer) as fisher:
            done = self.minimise(distance(target, log_probs).mean() + prior)
        update_teacher(teacher, student, config.beta, done)
        if config.restoration == "fisher":
            _restore_least(student, anchor, fisher, config.delta, done)
        else:
            restore_randomly(student, anchor, config.restore, done)
        return target

    def _fine_tune(self, net: nn.Module, source: Iterable[tuple[Tensor, Tensor]]) -> Iterator[int]:
        """Train on source data as SWAG wants it, and yield the number of every epoch, from 1, when it is over."""
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4, fused=True)
        for parameter in net.parameters():  # which a first step that is not taken would leave unfilled
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        for epoch in range(1, self.config.epochs + 1):
            optimizer.param_groups[0]["lr"] = self._swag_lr(epoch)
            taken = torch.zeros((), device=self.runtime.device)
            for images, labels in source:
                logits = self.logits(net, images, batch_statistics=False)
                if epoch == 1:
                    check_labels(labels, len(images), logits.shape[-1])
                taken += _step(optimizer, F.cross_entropy(logits, labels))
            if not taken:
                raise FloatingPointError(
                    f"The loss on source data was never finite in epoch {epoch} of the preparation of PETAL. "
                    "Try a smaller `source_lr` and `swa_lr`."
                )
            yield epoch

    def _swag_lr(self, epoch: int) -> float:
        """Step size of an epoch, counted from 1: constant at first, then rising linearly to the last."""
        config, rising = self.config, self.config.epochs - _CONSTANT_EPOCHS
        share = max(0, epoch - _CONSTANT_EPOCHS) / max(1, rising)
        return float(config.source_lr + share * (config.swa_lr - config.source_lr))

    def _distance_to_prior(self) -> Tensor:
        r""":math:`\frac12 \sum_j (\theta_j - \mu_j)^2 / (\sigma_j^2 + 10^{-6})` over all parameters of the student."""
        student, anchor = self.networks["student"].parameters(), self.networks["anchor"].parameters()
        terms = [
            ((ours - mean).square() / (variance + _DAMPING)).sum()
            for ours, mean, variance in zip(student, anchor, self._moment("variance"), strict=True)
        ]
        return 0.5 * torch.stack(terms).sum()

    def _moment(self, which: str) -> list[Tensor]:
        """What was prepared, ``mean`` or ``variance``, in the order of the parameters."""
        return [self.prepared[f"{which}.{name}"] for name, _ in self.start.named_parameters()]


class Moments:
    """Mean and variance of parameters over snapshots, by Welford's method, which does not cancel.

    Example:
        >>> moments = Moments([torch.zeros(1)])
        >>> for value in (0.0, 2.0):
        ...     moments.add([torch.tensor([value])])
        >>> moments.mean, moments.variance
        ([tensor([1.])], [tensor([1.])])
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.count = 0
        self.mean = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self._squares = [torch.zeros_like(mean) for mean in self.mean]

    @torch.no_grad()
    def add(self, parameters: Iterable[Tensor]) -> None:
        """Count one more snapshot."""
        self.count += 1
        for parameter, mean, squares in zip(parameters, self.mean, self._squares, strict=True):
            before = parameter - mean
            mean.copy_(parameter if self.count == 1 else mean + before / self.count)
            squares += before * (parameter - mean)

    @property
    def variance(self) -> list[Tensor]:
        """The variances about the mean, at least 0."""
        return [(squares / self.count).clamp_min(0) for squares in self._squares]


@torch.no_grad()
def quantile(values: Tensor, share: float) -> Tensor:
    """``torch.quantile`` (linear interpolation) of non-negative values, for more than its 16 million of them.

    Nothing is sorted, and a GPU is not waited for.

    Example:
        >>> quantile(torch.tensor([4.0, 0.0, 1.0, 2.0]), 0.5)
        tensor(1.5000)
    """
    values = values.flatten()
    rank = share * (values.numel() - 1)
    below = int(rank)
    fast = values.is_cuda and values.dtype == torch.float32
    lower = smallest(values, below) if fast else values.kthvalue(below + 1).values
    following = torch.where(values > lower, values, torch.inf).amin()
    upper = torch.where((values <= lower).sum() > below + 1, lower, following)
    return torch.lerp(lower, upper, rank - below) if rank > below else lower


def smallest(values: Tensor, rank: int) -> Tensor:
    """The value with ``rank`` others before it in ascending order, of non-negative float32 values, exactly.

    The bits of non-negative floats, read as integers, are in the order of the floats: 31 halvings of their range leave
    one, each with a count over all values. That suits a GPU, where torch's ``kthvalue`` is the work of a single block.

    Example:
        >>> smallest(torch.tensor([4.0, 0.0, 1.0, 2.0]), 2)
        tensor(2.)
    """
    bits = values.view(torch.int32)
    low = torch.zeros((), dtype=torch.int32, device=values.device)
    high = torch.full_like(low, torch.iinfo(torch.int32).max)
    for _ in range(31):
        middle = low + (high - low) // 2
        enough = (bits <= middle).sum() > rank
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    return low.view(torch.float32)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """One step, unless loss or gradient is not finite; whether it was taken, as a scalar on the device."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    done = loss.detach().isfinite() & nn.utils.get_total_norm(gradients).isfinite()
    optimizer.found_inf = (~done).float()  # type: ignore[attr-defined]  # the fused optimisers' way to skip a step
    optimizer.step()
    return done


@contextmanager
def _fisher_information(optimizer: torch.optim.Optimizer | None) -> Iterator[list[Tensor]]:
    """Collect the squared gradients of all parameters at the next step of the optimiser within the block."""
    assert optimizer is not None
    fisher: list[Tensor] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        fisher.extend(torch.zeros_like(p) if p.grad is None else p.grad.square() for p in parameters)

    hook = optimizer.register_step_pre_hook(keep)
    try:
        yield fisher
    finally:
        hook.remove()


@torch.no_grad()
def _restore_least(student: nn.Module, source: nn.Module, fisher: list[Tensor], delta: float, done: Tensor) -> None:
    """Put the weights whose Fisher information is below the delta-quantile of all of it back to the source's."""
    if not delta:
        return
    least = quantile(torch.cat([information.flatten() for information in fisher]), delta)
    for parameter, original, information in zip(student.parameters(), source.parameters(), fisher, strict=True):
        parameter.copy_(torch.where((information < least) & done, original, parameter))


@torch.no_grad()
def _load(net: nn.Module, values: Iterable[Tensor]) -> None:
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.copy_(value)
