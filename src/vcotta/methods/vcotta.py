"""VCoTTA: variational inference with a mixture of source and teacher priors (Lyu et al.)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, Positive, UnitInterval
from vcotta.bayes import kl_divergence, kl_to_priors, sampling, variational_parameters
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.card import Card
from vcotta.methods.class_mix import LATER, StreamSettings
from vcotta.methods.parts.class_bias import class_bias
from vcotta.methods.parts.layers import normalisation_and_classifier
from vcotta.methods.parts.losses import cross_entropy, entropy, symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.methods.parts.prior_mixture import AlphaRule, filter_views, mix, mixing_weight
from vcotta.methods.registry import register_method
from vcotta.methods.vcotta_presets import PRESETS
from vcotta.nn.batch_norm import batch_norms
from vcotta.nn.optim import step_scale
from vcotta.nn.sharing import current
from vcotta.nn.views import image_and_views, random_view

__all__ = ["VCoTTA", "VCoTTAConfig"]


@dataclass(frozen=True)
class VCoTTAConfig(StreamSettings):
    """Settings of VCoTTA; the defaults are those of the preset ``best``.

    Attributes:
        views: N, the number of random views beside the image itself, 0 or more (paper: 32, which take nearly
            three times the passes and gain 0.1 points on a WRN-28-10).
        alpha: Weight of the source prior: ``"entropy"``, ``"printed"``, ``"confidence"`` (see `mixing_weight`) or a
            fixed number in [0, 1].
        prediction_alpha: Weight of the source in the prediction, where ``alpha`` is that in target and divergence; None
            for ``alpha`` (paper).
        source_views: Whether the source predicts the views too (paper), or the image only (ours; half the passes, and
            better on a WRN-28-10). With ``alpha=0`` it predicts the image only.
        scope: One alpha for the ``"batch"``, or one for each ``"sample"`` in prediction and target (the divergences
            take the mean).
        tau: Temperature of the entropies in alpha; not in the paper.
        margin: Epsilon of the view filter. -1 keeps every view. Paper: 1e-2 CIFAR10-C, 0.3 CIFAR100-C, 0.1 ImageNet-C.
        target: What the student learns: the filtered ``"teacher"`` (paper) or the alpha-``"mixture"`` of filtered
            teacher and filtered source (authors' code).
        temperature: Divides the target's log-probabilities before normalisation; below 1 it sharpens (ours).
        loss: ``"ce"``, or ``"sce"``, half CE each way (the paper prints the sum).
        student: What the student is trained on: the ``"image"`` (paper), a random ``"view"``, drawn anew for each
            image, or ``"both"`` (ours).
        sampling: The student's training pass draws outputs (``"local"``, paper), weights (``"weight"``, authors'
            code) or nothing (``"none"``, ours).
        mixup: Mix each image and target with a random partner's (authors' code).
        inference: The mixture predicts from the image alone (``"x0"``, paper), from the filtered views
            (``"filtered"``, authors' code); or half from the image and half from the mean over all views, averages of
            log-probabilities (``"pooled"``, ours).
        lr: Step size (paper: 1e-4 CIFAR, 1e-2 ImageNet-C; authors' CIFAR10 file: 1e-3).
        relative: Multiply ``lr`` by the root mean square of each tensor's start, except for rho (ours). Our WRN-28-10
            has weights of 0.004, a ResNet-20 of 0.1: one absolute step does not suit both. Without BatchNorm, weights
            that sum over k inputs take a step 1 / sqrt(k) as long: no normalisation undoes what their steps add up to.
        optimizer: ``"adam"`` (authors' file; the paper names none), or ``"sgd"`` as CoTTA uses for ImageNet-C.
        beta: Decay of the teacher's average, on means, standard deviations and point parameters (paper: 0.999).
        full_batch: A batch of n fewer images takes a smaller step and a slower average, ``lr * n / full_batch`` and
            ``beta ** (n / full_batch)`` (ours), since Adam's steps do not shrink with the batch: single images, one
            after another, ruined a network that batches improve. None treats all batches alike (paper).
        kl_weight: kappa: the divergences are divided by the number D of variational weights that adapt and multiplied
            by kappa, so that moving every weight by one sigma costs kappa / 2, on any network.
        kl_lambda: Lambda: the divergences are divided by it (authors' code: 500 000). Give one of the two.
        statistics: As for every method, see `StreamSettings`, but inferred by default (paper: those of the batch).
            On networks without BatchNorm ``"inferred"`` takes each network's `class_bias` out of its predictions, as
            otherwise one class soon gets all images; ``"batch"`` leaves it there.
        label_prior: As for every method, but on by default, and known to the student's target, too (paper: off).
        flip: Whether views may mirror the image.
        trains: What adapts: ``"all"`` (paper), or ``"norm"`` (ours), scale and shift of the normalisation layers and
            the last linear or convolution layer. The rest is then the source's, held once by all networks, and states
            leave it out: a stream takes megabytes on disk and in memory instead of hundreds.
    """

    views: NonNegativeInt = 8
    alpha: AlphaRule | UnitInterval = 0.5
    prediction_alpha: UnitInterval | None = None
    source_views: bool = False
    scope: Literal["batch", "sample"] = "sample"
    tau: Positive = 0.1
    margin: float = -1.0
    target: Literal["teacher", "mixture"] = "mixture"
    temperature: Positive = 0.5
    loss: Literal["ce", "sce"] = "ce"
    student: Literal["image", "view", "both"] = "both"
    sampling: Literal["local", "weight", "none"] = "none"
    mixup: bool = False
    inference: Literal["x0", "filtered", "pooled"] = "pooled"
    lr: NonNegative = 3e-2
    relative: bool = True
    optimizer: OptimizerName = "adam"
    beta: UnitInterval = 0.99
    full_batch: Count | None = 32
    statistics: Literal["batch", "inferred"] = "inferred"
    label_prior: bool = True
    kl_weight: NonNegative | None = 0.05
    kl_lambda: Positive | None = None
    flip: bool = True
    trains: Literal["all", "norm"] = field(default="all", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.kl_weight is None) == (self.kl_lambda is None):
            raise ValueError(
                f"Expected one of `kl_weight` and `kl_lambda`, but got {self.kl_weight} and {self.kl_lambda}. "
                "Set the other one to None."
            )


@register_method
class VCoTTA(Adapter):
    r"""Variational continual test-time adaptation.

    In the paper the student q minimises, on every batch (Eq. update_stu),

    .. math:: \mathrm{CE}(\bar p' \to q) + [\alpha\,\mathrm{KL}(q\|q_0) + (1-\alpha)\,\mathrm{KL}(q\|\bar q)] / \lambda

    where :math:`q_0` is the warmed source (the start network), :math:`\bar q` the teacher, a moving average of q, and
    :math:`\bar p'` its prediction on the views it is most certain of. The prediction returned is the mixture
    :math:`\alpha p_0 + (1-\alpha)\bar p` of probabilities at the means, from before the update (Eq. inference).
    With ``prediction_alpha`` the weight in the prediction is another.

    That is the preset ``paper``. The presets ``authors`` (their code) and ``best`` (the default) differ where
    `VCoTTAConfig` says so. Source, teacher and every prediction use the means; at most the student's training samples.

    Example:
        >>> from vcotta.bayes import to_variational
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> VCoTTA(to_variational(net), VCoTTAConfig(views=2))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "vcotta"
    summary = "variational student, mixture of source and teacher priors"
    card = Card(
        "preprint, 2024",
        "everything",
        "a variational warm-up",
        "N + 5 forwards, 1 backward",
        "paper text",
        distributed=True,
    )
    Config = VCoTTAConfig
    datasets: ClassVar = {"digits": {"flip": False}}  # digits must not be mirrored
    presets: ClassVar = PRESETS
    needs_variational = True

    @classmethod
    def settings_for(cls, dataset: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a preset; of `kl_weight` and `kl_lambda` the one the caller gives replaces the other."""
        settings = super().settings_for(dataset, options)
        given = [name for name in ("kl_weight", "kl_lambda") if name in options]
        return settings | {"kl_weight": None, "kl_lambda": None} if len(given) == 1 else settings

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the start network is the source prior."""
        self._has_batch_norm = any(batch_norms(model))
        self.networks = student_and_teacher(model, self.frozen())
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        scales = self._step_scales(model, trained) if self.config.relative else None
        self.make_optimizer(trained, self.config.optimizer, self.config.lr, scales)
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        learned = (mean.numel() for _, mean, _ in variational_parameters(model) if mean.requires_grad)
        self._dimensions = max(1, sum(learned))

    def _step_scales(self, model: nn.Module, trained: Sequence[Tensor]) -> list[float]:
        """The units of relative steps, see ``relative``."""
        scales = {id(parameter): step_scale(parameter) for parameter in trained}
        for _, mean, rho in variational_parameters(model):
            scales[id(rho)] = 1.0
            if mean.ndim > 1 and not self._has_batch_norm:
                scales[id(mean)] = step_scale(mean) / math.sqrt(mean[0].numel())
        return [scales[id(parameter)] for parameter in trained]

    def frozen(self) -> list[Tensor]:
        """With ``trains="norm"`` everything but normalisation and classifier, buffers too."""
        if self.config.trains == "all":
            return []
        trained = {id(parameter) for parameter in normalisation_and_classifier(self.start)}
        return [t for t in (*self.start.parameters(), *self.start.buffers()) if id(t) not in trained]

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Steps 1 to 7 of the algorithm on one batch."""
        with torch.no_grad():
            source, teacher = self._log_probs(images)
            biases = self._biases(source, teacher, update=True)
            source, teacher = map(_without, (source, teacher), biases)
            alpha = self._alpha(source, teacher)
            share = self._share(alpha)
            prediction = self._infer(source, teacher, share)
            target = self._target(source, teacher, alpha)
            if self.config.label_prior and (labels := self.infer_labels(prediction)):
                target = (target + labels.correction).log_softmax(-1)
        kl, drift = self._divergences(alpha.mean())
        self.watch(source[0], teacher[0], drift)
        self._update(images, target, kl)
        self.note(
            alpha=alpha.mean(),
            prediction_alpha=share.mean(),
            entropy=entropy(prediction).mean(),
            entropy_source=entropy(source[0]).mean(),
            entropy_teacher=entropy(teacher[0]).mean(),
            drift=drift,
        )
        return prediction

    def predict_only(self, images: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mixture at the means, mixtures of draws of source and teacher with the same alpha, and alpha."""
        source, teacher = self._log_probs(images)
        biases = self._biases(source, teacher)
        source, teacher = map(_without, (source, teacher), biases)
        alpha, draws = self._share(self._alpha(source, teacher)), []
        nets = self.start, self.networks["teacher"]
        for _ in range(samples):
            with sampling(nets[0]), sampling(nets[1]):
                both = [self.logits(net, images).log_softmax(-1) for net in nets]
            drawn, also = map(_without, both, biases)
            draws.append(mix(drawn, also, alpha))
        return self._infer(source, teacher, alpha), torch.stack(draws), alpha.expand(len(images), 1).squeeze(-1)

    def drift(self) -> Tensor:
        """KL(student || source) in nats per weight that adapts."""
        student = self.networks["student"]
        return kl_divergence(student, self.start, compiled=bool(self.runtime.compile)) / self._dimensions

    def _divergences(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The loss's divergence to the mixture of priors, as ``kl_weight`` or ``kl_lambda`` say, and `drift`."""
        config, priors = self.config, [(alpha, self.start), (1 - alpha, self.networks["teacher"])]
        kl, parts = kl_to_priors(self.networks["student"], priors, compiled=bool(self.runtime.compile))
        kl = kl / config.kl_lambda if config.kl_weight is None else config.kl_weight * kl / self._dimensions
        return kl, parts[0] / self._dimensions

    def _log_probs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of source and teacher, (1 + views, batch, classes), each view with its own statistics.

        With ``source_views=False`` the source sees only the image; it runs first to keep the GPU busy while views are
        made. With ``alpha=0`` it runs too, for the guard and the log.
        """
        image_only = self.config.alpha == 0 or not self.config.source_views
        source = self.source_logits(images).unsqueeze(0) if image_only else None
        parts = image_and_views(images, self.config.views, flip=self.config.flip)
        # Both networks see the views, processes exchange statistics once, or one pass is compiled for all views.
        if source is None or current().is_shared or self.runtime.compile:
            views = torch.cat(list(parts))
            source, parts = self.logits_of_views(self.start, views) if source is None else source, iter([views])
        teacher = torch.cat([self.logits_of_views(self.networks["teacher"], part) for part in parts])
        return source.log_softmax(-1), teacher.log_softmax(-1)

    def _biases(self, *priors: Tensor, update: bool = False) -> list[Tensor | None]:
        """The `class_bias` of source and teacher, where statistics are inferred and no BatchNorm takes it away."""
        if self.config.statistics == "batch" or self._has_batch_norm:
            return [None] * len(priors)
        found = [class_bias(one, self.memory.get(f"bias_{place}")) for place, one in enumerate(priors)]
        if update:
            self.memory |= {f"bias_{place}": memory for place, (_, memory) in enumerate(found)}
        return [bias for bias, _ in found]

    def _alpha(self, source: Tensor, teacher: Tensor) -> Tensor:
        """Alpha, (batch, 1) or (1, 1) by scope, from the views that both networks predicted."""
        rule, teacher = self.config.alpha, teacher[: len(source)]
        if self.config.scope == "batch" and rule == "confidence":  # a mean inside the sigmoid: see `mixing_weight`
            source, teacher = source.flatten(0, 1).unsqueeze(1), teacher.flatten(0, 1).unsqueeze(1)
        alpha = mixing_weight(source, teacher, rule, self.config.tau).unsqueeze(-1)
        return alpha.mean(0, keepdim=True) if self.config.scope == "batch" else alpha

    def _share(self, alpha: Tensor) -> Tensor:
        """The weight of the source in the prediction, of the shape of ``alpha``, its weight in the target."""
        given = self.config.prediction_alpha
        return alpha if given is None else torch.full_like(alpha, given)

    def _infer(self, source: Tensor, teacher: Tensor, alpha: Tensor) -> Tensor:
        """The mixture's prediction; views that the source did not predict count with the teacher's prediction alone."""
        if self.config.inference == "filtered":
            return mix(filter_views(source, self.config.margin), filter_views(teacher, self.config.margin), alpha)
        if self.config.inference == "x0":
            return mix(source[0], teacher[0], alpha)
        source = torch.cat([source, teacher[len(source) :]])
        pooled = alpha * source + (1 - alpha) * teacher
        return (pooled[0] + pooled.mean(0)).div(2).log_softmax(-1)

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

    def _update(self, images: Tensor, log_target: Tensor, kl: Tensor) -> None:
        """One step of the student on cross-entropy and `_divergences`, then the teacher's average."""
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
        self.note(fit=fit.detach(), kl=kl.detach())
        beta = config.beta ** self._scale_step(len(images))
        update_teacher(teacher, student, beta, self.minimise(fit + kl), compiled=bool(self.runtime.compile))

    def _scale_step(self, count: int) -> float:
        """Set the step size for this batch, and return its share of that of a full one, see ``full_batch``."""
        full = self.config.full_batch
        share = 1.0 if full is None else min(1.0, count / full)
        assert self.optimizer is not None
        for group in self.optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]
        return share


def _without(log_probs: Tensor, bias: Tensor | None) -> Tensor:
    """Log-probabilities without what the network adds to a class on all images."""
    return log_probs if bias is None else (log_probs - bias).log_softmax(-1)
