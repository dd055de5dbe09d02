"""VCoTTA: variational inference with a mixture of source and teacher priors (Lyu et al.)."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vcotta._messages import unknown_name
from vcotta.bayes import kl_divergence, mixture_kl_bound, sampling, variational_parameters
from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.losses import cross_entropy, entropy, symmetric_cross_entropy
from vcotta.methods.mean_teacher import update_teacher
from vcotta.methods.prior_mixture import AlphaRule, filter_views, mix, mixing_weight
from vcotta.views import random_view, random_views

__all__ = ["VCoTTA", "VCoTTAConfig"]


@dataclass(frozen=True)
class VCoTTAConfig:
    """Settings of VCoTTA; the defaults are ``preset("best")``.

    Attributes:
        views: N, the number of random views beside the image itself, 0 or more (paper: 32).
        alpha: Weight of the source prior: ``"entropy"``, ``"printed"``, ``"confidence"`` (see `mixing_weight`) or a
            fixed number in [0, 1].
        source_views: Whether the source looks at the views too (paper), or at the image alone, the views being the
            teacher's (ours), which saves half of all passes and is better on a WRN-28-10. A source without any weight
            (``alpha=0``) never looks at them.
        scope: One alpha for the ``"batch"``, or one for each ``"sample"`` in prediction and target (the divergences
            take the mean).
        tau: Temperature of the entropies in alpha; not in the paper.
        margin: Epsilon of the view filter. -1 keeps every view. Paper: 1e-2 CIFAR10-C, 0.3 CIFAR100-C, 0.1 ImageNet-C.
        target: What the student learns: the filtered ``"teacher"`` (paper) or the alpha-``"mixture"`` of filtered
            teacher and filtered source (authors' code).
        temperature: Divides the target's log-probabilities before they are normalised; below 1 it sharpens (ours).
        loss: ``"ce"``, or ``"sce"``, half CE each way (the paper prints the sum).
        student: What the student is trained on: the ``"image"`` (paper), a random ``"view"`` with draws of its own for
            each image, or ``"both"`` (ours).
        sampling: The student's training pass draws outputs (``"local"``, paper), weights (``"weight"``, authors'
            code) or nothing (``"none"``, ours).
        mixup: Mix each image and target with a random partner's (authors' code).
        inference: The mixture predicts from the image alone (``"x0"``, paper), from the filtered views
            (``"filtered"``, authors' code), half from the image and half from the mean over all views
            (``"anchored"``, ours), or from the same averages taken of log-probabilities (``"pooled"``, ours).
        lr: Step size (paper: 1e-4 CIFAR, 1e-2 ImageNet-C; authors' CIFAR10 file: 1e-3).
        relative: Measure steps in the size of what they change: Adam's step of each tensor is ``lr`` times the root
            mean square of its start; rho, a logarithm of sigma, is left as it is (ours). Our WRN-28-10 has weights of
            0.004, a ResNet-20 of 0.1: the same absolute step ruins the one and does nothing to the other.
        optimizer: ``"adam"`` (authors' file; the paper names none), or ``"sgd"`` as CoTTA uses for ImageNet-C.
        beta: Decay of the teacher's average, on means, standard deviations and point parameters (paper: 0.999).
        full_batch: A batch of fewer images makes a smaller step and a slower average, ``lr * n / full_batch`` and
            ``beta ** (n / full_batch)``, so that few images never outweigh many (ours). Adam's steps do not shrink
            with what they are made of: one image after another ruined a network that batches improve. None makes all
            batches alike (paper).
        prior_images: N, how many images the source's statistics are worth where BatchNorm sees few: a batch of n has
            the share n / (n + N (1 - n / full_batch)) in a mixture with them, all of it from ``full_batch`` images on
            (ours; Schneider et al., 2020, have n / (n + N)). None, or ``full_batch=None``, leaves a batch to its own
            statistics, and one image to the source's (paper).
        kl_weight: kappa: the divergences are divided by the number D of variational weights and multiplied by kappa,
            so that moving every weight by one sigma costs kappa / 2, on any network.
        kl_lambda: Lambda: the divergences are divided by it (authors' code: 500 000). Give one of the two.
        flip: Whether views may mirror the image.
    """

    views: int = 32
    alpha: AlphaRule | float = 0.5
    source_views: bool = False
    scope: Literal["batch", "sample"] = "sample"
    tau: float = 0.1
    margin: float = -1.0
    target: Literal["teacher", "mixture"] = "mixture"
    temperature: float = 0.5
    loss: Literal["ce", "sce"] = "ce"
    student: Literal["image", "view", "both"] = "both"
    sampling: Literal["local", "weight", "none"] = "none"
    mixup: bool = False
    inference: Literal["x0", "filtered", "anchored", "pooled"] = "pooled"
    lr: float = 3e-2
    relative: bool = True
    optimizer: OptimizerName = "adam"
    beta: float = 0.99
    full_batch: int | None = 32
    prior_images: int | None = 8
    kl_weight: float | None = 0.05
    kl_lambda: float | None = None
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.alpha, str) and not 0 <= self.alpha <= 1:
            raise ValueError(f"Expected `alpha` to be a rule or a number in [0, 1], but got {self.alpha}.")
        if self.views < 0:
            raise ValueError(f"Expected `views` to be at least 0, but got {self.views}.")
        for name in ("tau", "temperature"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Expected `{name}` to be positive, but got {getattr(self, name)}.")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"Expected `beta` to lie in [0, 1], but got {self.beta}.")
        if not self.lr >= 0:
            raise ValueError(f"Expected `lr` to be at least 0, but got {self.lr}.")
        if self.full_batch is not None and self.full_batch < 1:
            raise ValueError(f"Expected `full_batch` to be at least 1, or None, but got {self.full_batch}.")
        if self.prior_images is not None and self.prior_images < 0:
            raise ValueError(f"Expected `prior_images` to be at least 0, or None, but got {self.prior_images}.")
        if (self.kl_weight is None) == (self.kl_lambda is None):
            raise ValueError(
                f"Expected one of `kl_weight` and `kl_lambda`, but got {self.kl_weight} and {self.kl_lambda}. "
                "Set the other one to None."
            )
        if not (self.kl_weight is None or self.kl_weight >= 0) or not (self.kl_lambda is None or self.kl_lambda > 0):
            raise ValueError(
                f"Expected `kl_weight` >= 0 or `kl_lambda` > 0, but got {self.kl_weight} and {self.kl_lambda}."
            )

    @classmethod
    def preset(cls, name: str = "best", dataset: str = "cifar10", **options: Any) -> VCoTTAConfig:
        """Named settings, with ``options`` on top.

        Args:
            name: ``"paper"`` is the method as the paper describes it, with its values for the data set (the five
                epochs of its warm-up are the default of `WarmUpConfig`, not a setting of this class); ``"authors"``
                what their code does; ``"best"`` what won on the four held-out corruptions of CIFAR-10, the same
                for every data set, but for a teacher that learns more quickly on the short streams of digits. On
                CIFAR-100 it was run as it is; ImageNet has not been measured yet.
            dataset: ``"cifar10"``, ``"cifar100"``, ``"imagenet"`` or ``"digits"``.
            options: Fields that differ from the preset.

        Example:
            >>> VCoTTAConfig.preset("paper", "cifar100").margin
            0.3
        """
        if name not in _PRESETS:
            raise unknown_name("preset", name, _PRESETS)
        if dataset not in _DATASETS:
            raise unknown_name("dataset", dataset, _DATASETS)
        values = _DATASETS[dataset] | _PRESETS[name] | _BY_DATASET.get((name, dataset), {})
        if "kl_lambda" in options and "kl_weight" not in options:
            values["kl_weight"] = None
        if "kl_weight" in options and "kl_lambda" not in options:
            values["kl_lambda"] = None
        unknown = set(options) - {field.name for field in fields(cls)}
        if unknown:
            raise unknown_name("option", min(unknown), (field.name for field in fields(cls)))
        return cls(**(values | options))


_PRESETS: dict[str, dict[str, Any]] = {
    "best": {},
    "paper": {
        "alpha": "entropy",
        "source_views": True,
        "scope": "batch",
        "target": "teacher",
        "temperature": 1.0,
        "loss": "sce",
        "student": "image",
        "sampling": "local",
        "inference": "x0",
        "beta": 0.999,
        "lr": 1e-4,
        "relative": False,
        "full_batch": None,
        "prior_images": None,
    },
    "authors": {
        "alpha": "confidence",
        "source_views": True,
        "scope": "batch",
        "margin": 0.3,
        "temperature": 1.0,
        "loss": "sce",
        "student": "image",
        "sampling": "weight",
        "mixup": True,
        "inference": "filtered",
        "beta": 0.999,
        "lr": 1e-3,
        "relative": False,
        "full_batch": None,
        "prior_images": None,
        "kl_weight": None,
        "kl_lambda": 500_000.0,
    },
}
_DATASETS: dict[str, dict[str, Any]] = {
    "cifar10": {},
    "cifar100": {},
    "imagenet": {},
    "digits": {"views": 8, "flip": False},  # digits must not be mirrored
}
_BY_DATASET: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "cifar10"): {"margin": 1e-2},
    ("paper", "cifar100"): {"margin": 0.3},
    ("paper", "imagenet"): {"margin": 0.1, "loss": "ce", "lr": 1e-2, "optimizer": "sgd"},
    ("paper", "digits"): {"margin": 1e-2},
    ("best", "digits"): {"lr": 0.1, "beta": 0.95},  # a teacher that learns quickly: its streams are short
}


class VCoTTA(Adapter):
    r"""Variational continual test-time adaptation.

    In the paper the student q minimises, on every batch (Eq. update_stu),

    .. math:: \mathrm{CE}(\bar p' \to q) + [\alpha\,\mathrm{KL}(q\|q_0) + (1-\alpha)\,\mathrm{KL}(q\|\bar q)] / \lambda

    where :math:`q_0` is the warmed source (the start network), :math:`\bar q` the teacher, a moving average of q, and
    :math:`\bar p'` its prediction on the views it is surest of. The prediction returned is the mixture
    :math:`\alpha p_0 + (1-\alpha)\bar p` of probabilities at the means, from before the update (Eq. inference).

    That is ``preset("paper")``. ``preset("authors")`` follows the authors' code, which differs where `VCoTTAConfig`
    says so, and so does the default, ``preset("best")``. Source, teacher and every prediction use the means; at most
    the student's training pass samples.

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = VCoTTA(to_variational(net), VCoTTAConfig(views=2))
        >>> adapter(torch.rand(4, 3, 8, 8)).shape, adapter.last["forwards"]
        (torch.Size([4, 2]), 6)
    """

    name = "vcotta"
    summary = "variational student, mixture of source and teacher priors"
    facts = Facts(
        "preprint, 2024",
        "everything",
        "a variational warm-up",
        "N + 4 forwards, 1 backward",
        "paper text",
        distributed=True,
    )
    Config = VCoTTAConfig
    needs_variational = True

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the start network is the source prior."""
        teacher = copy.deepcopy(model).requires_grad_(False)
        student = model.requires_grad_(True)
        self.networks = {"student": student, "teacher": teacher}
        rhos = {id(rho) for _, _, rho in variational_parameters(student)}
        scales = [1.0 if id(p) in rhos else _rms(p) for p in student.parameters()] if self.config.relative else None
        self.make_optimizer(student.parameters(), self.config.optimizer, self.config.lr, scales)
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        self._dimensions = sum(mean.numel() for _, mean, _ in variational_parameters(student))

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Steps 1 to 7 of the algorithm on one batch."""
        with torch.no_grad():
            source, teacher = self._look(images)
            alpha = self._alpha(source, teacher)
            prediction = self._infer(source, teacher, alpha)
            target = self._target(source, teacher, alpha)
            self.watch(source[0], teacher[0])
            drift = self._distance(self.networks["teacher"])
        self._update(images, target, alpha.mean())
        self.note(
            alpha=alpha.mean(),
            entropy=entropy(prediction).mean(),
            entropy_source=entropy(source[0]).mean(),
            entropy_teacher=entropy(teacher[0]).mean(),
            drift=drift,
        )
        return prediction

    def predict_only(self, images: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mixture at the means, and mixtures of draws of source and teacher on the images, with the same alpha."""
        source, teacher = self._look(images)
        alpha, draws = self._alpha(source, teacher), []
        nets = self.start, self.networks["teacher"]
        for _ in range(samples):
            with sampling(nets[0]), sampling(nets[1]):
                drawn, also = (self.logits(net, images).log_softmax(-1) for net in nets)
            draws.append(mix(drawn, also, alpha))
        return self._infer(source, teacher, alpha), torch.stack(draws), alpha.expand(len(images), 1).squeeze(-1)

    def share_of_batch(self, count: int) -> float:
        """See ``prior_images``."""
        if self.config.prior_images is None or self.config.full_batch is None:
            return super().share_of_batch(count)
        return float(count / (count + self.config.prior_images * (1 - self._fullness(count))))

    def drift(self) -> Tensor:
        """KL(student || source) a weight."""
        return self._distance(self.networks["student"])

    def _distance(self, net: nn.Module) -> Tensor:
        """KL(net || source) a weight."""
        return kl_divergence(net, self.start, compiled=bool(self.runtime.compile)) / self._dimensions

    def _look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of source and teacher, (1 + views, batch, classes), each view with its own statistics.

        A source that is spared the views has the image's alone, before they are made, so that a GPU has something to do
        meanwhile; without any weight it is still asked for that, by the guard and the log.
        """
        spared = self.config.alpha == 0 or not self.config.source_views
        source = self.logits(self.start, images).unsqueeze(0) if spared else None
        views = images.unsqueeze(0)
        if self.config.views:
            views = torch.cat([views, random_views(images, self.config.views, flip=self.config.flip)])
        if source is None:
            source = self.logits_of_views(self.start, views)
        teacher = self.logits_of_views(self.networks["teacher"], views)
        return source.log_softmax(-1), teacher.log_softmax(-1)

    def _alpha(self, source: Tensor, teacher: Tensor) -> Tensor:
        """Alpha as a column, (batch, 1) or (1, 1) by scope, from what both looked at."""
        rule, teacher = self.config.alpha, teacher[: len(source)]
        if self.config.scope == "batch" and rule == "confidence":  # a mean inside the sigmoid: see `mixing_weight`
            source, teacher = source.flatten(0, 1).unsqueeze(1), teacher.flatten(0, 1).unsqueeze(1)
        alpha = mixing_weight(source, teacher, rule, self.config.tau).unsqueeze(-1)
        return alpha.mean(0, keepdim=True) if self.config.scope == "batch" else alpha

    def _infer(self, source: Tensor, teacher: Tensor, alpha: Tensor) -> Tensor:
        """The mixture's prediction; of views that the source did not look at the teacher's counts alone."""
        if self.config.inference == "filtered":
            return mix(filter_views(source, self.config.margin), filter_views(teacher, self.config.margin), alpha)
        source = torch.cat([source, teacher[len(source) :]])
        if self.config.inference == "pooled":
            pooled = alpha * source + (1 - alpha) * teacher
            return (pooled[0] + pooled.mean(0)).div(2).log_softmax(-1)
        prediction = mix(source[0], teacher[0], alpha)
        if self.config.inference == "x0":
            return prediction
        over_views = mix(source, teacher, alpha).logsumexp(0) - math.log(len(teacher))
        return torch.logaddexp(prediction, over_views) - math.log(2)

    def _target(self, source: Tensor, teacher: Tensor, alpha: Tensor) -> Tensor:
        target = filter_views(teacher, self.config.margin)
        if self.config.target == "mixture":
            target = mix(filter_views(source, self.config.margin), target, alpha)
        sharpened: Tensor = (target / self.config.temperature).log_softmax(-1)
        return sharpened

    def _student_log_probs(self, images: Tensor) -> Tensor:
        student = self.networks["student"]
        with nullcontext() if self.config.sampling == "none" else sampling(student, self.config.sampling):
            logits = self.logits(student, images)
        return logits.log_softmax(-1)

    def _update(self, images: Tensor, log_target: Tensor, alpha: Tensor) -> None:
        """One step of the student on cross-entropy and divergence, then the teacher's average."""
        config, student, teacher = self.config, self.networks["student"], self.networks["teacher"]
        if config.mixup:
            partner, share = torch.randperm(len(images)), torch.rand(())
            partner, share = (draw.to(images.device, non_blocking=True) for draw in (partner, share))
            images = torch.lerp(images[partner], images, share)
            log_target = mix(log_target, log_target[partner], share)
        inputs = [] if config.student == "view" else [images]
        if config.student != "image":
            inputs.append(self.runtime.place_images(random_view(images, flip=config.flip, per_image=True)))
        distance = cross_entropy if config.loss == "ce" else symmetric_cross_entropy
        fit = torch.stack([distance(log_target, self._student_log_probs(x)).mean() for x in inputs]).mean()
        compiled = bool(self.runtime.compile)
        kl = mixture_kl_bound(student, self.start, teacher, alpha, compiled=compiled)
        kl = kl / config.kl_lambda if config.kl_weight is None else config.kl_weight * kl / self._dimensions
        self.note(fit=fit.detach(), kl=kl.detach())
        beta = config.beta ** self._scale_step(len(images))
        update_teacher(teacher, student, beta, self.minimise(fit + kl), compiled=compiled)

    def _scale_step(self, count: int) -> float:
        """Set the step of a batch of so many images, and return its share of a whole one."""
        share = self._fullness(count)
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]
        return share

    def _fullness(self, count: int) -> float:
        """A batch of so many images as a share of a full one, see ``full_batch``."""
        return 1.0 if self.config.full_batch is None else min(1.0, count / self.config.full_batch)


def _rms(tensor: Tensor) -> float:
    """Root mean square, at least 1e-3: a bias that starts at zero must be able to leave it."""
    return max(tensor.detach().square().mean().sqrt().item(), 1e-3)
