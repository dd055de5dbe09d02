"""ROID: certain and diverse samples, weight ensembling, prior correction (Marsden et al., WACV 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vcotta._util.validation import NonNegative, Positive, UnitInterval
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import soft_likelihood_ratio, symmetric_cross_entropy
from vcotta.methods.parts.reliable import NormalisationAdapter
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_view

__all__ = ["ROID", "PriorCorrection", "ROIDConfig", "certainty_and_diversity", "correct_prior"]

PriorCorrection = Literal["logits", "probabilities", "none"]
"""What the smoothed class prior of a batch multiplies: ``logits`` (official code), ``probabilities``, or nothing."""

_ROUNDING = 1e-6  # smaller differences of cosines or entropies may be float32 rounding


@dataclass(frozen=True)
class ROIDConfig(StreamSettings):
    """Settings of ROID; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        source_momentum: Share of the adapted parameters when they are mixed with the source's after a step (0.99).
        probability_momentum: Decay of the average prediction that diversity is measured against (0.9).
        temperature: Of the weights by certainty and diversity (1/3).
        prior_correction: What the batch's class prior multiplies in the returned prediction: ``logits`` (official
            code), ``probabilities`` (paper), or ``none``; see `correct_prior`.
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    source_momentum: UnitInterval = 0.99
    probability_momentum: UnitInterval = 0.9
    temperature: Positive = 1 / 3
    prior_correction: PriorCorrection = "logits"
    flip: bool = True


@register_method
class ROID(NormalisationAdapter):
    r"""Self-training on the certain and diverse half of a batch, held near the source.

    With weights :math:`w_i` by certainty and diversity (0 for about half of the batch; S is the rest), the soft
    likelihood ratio and a view :math:`\tilde x` of the images in S,

    .. math::
        L = \frac{1}{B} \sum_{i \in S} w_i \left[ \mathrm{SLR}(p_i) + \mathrm{SCE}(p(\tilde x_i), p_i) \right]

    is minimised over scale and shift of the normalisation layers, with gradients through both arguments of SCE. After
    the step they are mixed with the source's, :math:`\theta \leftarrow m \theta + (1 - m) \theta_0`. The prediction is
    the one from before the step, corrected by the batch's class prior. The view's pass sees only the images in S, whose
    statistics its BatchNorm layers use, so the host waits to know S.

    Differs from the official code: the loss is divided by the number of images, not by the configured batch size;
    where predictions do not differ, and the official weights are NaN, only the pull to the source acts; and
    log-probabilities with the official ranking are returned instead of logits shrunk by the prior.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> ROID(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "roid"
    summary = "weights by certainty and diversity, weight ensembling, prior correction"
    card = Card("WACV 2024", "normalisation", "nothing", "2 forwards, 1 backward", "official code", distributed=True)
    Config = ROIDConfig
    datasets: ClassVar = {"cifar100": {}, "imagenet": {"lr": 2.5e-4, "optimizer": "sgd"}, "digits": {"flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Train the normalisation layers, and keep the source's values of what is trained."""
        super().setup(model)
        pairs = list(zip(model.parameters(), self.start.parameters(), strict=True))
        self.trained: list[Tensor] = [own for own, _ in pairs if own.requires_grad]
        self.sources: list[Tensor] = [source for own, source in pairs if own.requires_grad]

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, one step on the weighted loss, then the pull to the source."""
        logits = self.logits(self.networks["model"], images)
        if self.optimizer is not None:
            self._learn(images, logits.log_softmax(-1))
        return correct_prior(logits.detach(), self.config.prior_correction)

    def _learn(self, images: Tensor, log_probs: Tensor) -> None:
        mean = log_probs.detach().exp().mean(0)
        average = self.memory.get("average_prediction", torch.full_like(mean, 1 / len(mean)))
        weights = certainty_and_diversity(log_probs.detach(), average, self.config.temperature)
        view = random_view(images, flip=self.config.flip, kind="roid")
        kept = weights.nonzero().squeeze(-1)  # the host waits here
        self.note(kept=len(kept) / len(images))
        if len(kept):
            seen = self.runtime.place_images(view.index_select(0, kept))
            losses = self._losses(seen, log_probs.index_select(0, kept))
            usable = self.minimise((weights.index_select(0, kept) * losses).sum() / len(images))
        else:
            usable = mean.isfinite().all()
        momentum = self.config.probability_momentum
        self.memory["average_prediction"] = torch.where(usable, momentum * average + (1 - momentum) * mean, average)
        self._ensemble(usable)

    def _losses(self, view: Tensor, log_probs: Tensor) -> Tensor:
        """Soft likelihood ratio of the predictions plus their consistency with those of a view, one value per image."""
        seen = self.logits(self.networks["model"], view).log_softmax(-1)
        return soft_likelihood_ratio(log_probs) + symmetric_cross_entropy(log_probs, seen)

    @torch.no_grad()
    def _ensemble(self, usable: Tensor) -> None:
        """Mix the trained parameters with the source's."""
        adapted, source = parameters_to_vector(self.trained), parameters_to_vector(self.sources)
        self._write(torch.where(usable, torch.lerp(adapted, source, 1 - self.config.source_momentum), adapted))

    def _write(self, values: Tensor) -> None:
        """Set the trained parameters from one vector, in few operations for many layers."""
        parts = values.split([parameter.numel() for parameter in self.trained])
        torch._foreach_copy_(self.trained, [part.view_as(p) for part, p in zip(parts, self.trained, strict=True)])


@torch.no_grad()
def certainty_and_diversity(log_probs: Tensor, average: Tensor, temperature: float) -> Tensor:
    r"""Weights of a batch's predictions, zero for those that resemble the average prediction.

    With diversity :math:`d_i = 1 - \cos(\bar p, p_i)` and certainty :math:`e_i = -H(p_i)`, each scaled to [0, 1] over
    the batch: :math:`w_i = \exp(d_i e_i / \tau)` where :math:`d_i` is at least its mean, else 0. Where predictions do
    not differ, and the official code divides by zero, all weights are 0. A prediction that is not finite gives NaN.
    """
    probs = log_probs.exp()
    cosine = probs @ average / (probs.norm(dim=-1) * average.norm())
    values = torch.stack([1 - cosine, (probs * log_probs).sum(-1)])
    lowest, highest = values.aminmax(dim=-1, keepdim=True)
    span = highest - lowest
    diversity, certainty = (values - lowest) / span.clamp_min(_ROUNDING)
    weights = torch.exp(diversity * certainty / temperature)
    return torch.where((diversity < diversity.mean()) | (span <= _ROUNDING).any(), 0.0, weights)


def correct_prior(logits: Tensor, what: PriorCorrection) -> Tensor:
    r"""Log-probabilities of a batch, corrected by its estimated class prior.

    The prior r is the batch's mean prediction, smoothed to :math:`\tilde r = (r + s) / (1 + s C)` with
    :math:`s = \max(1/B, 1/C) / \max_c r_c`. The paper weights predictions by it: ``probabilities`` normalises
    :math:`\tilde r \odot p`. The official code multiplies the logits z by it, which ranks classes differently and
    shrinks logits by about C. ``logits`` keeps that ranking: :math:`\mathrm{softmax}(C \tilde r \odot z)`.
    """
    log_probs = logits.log_softmax(-1)
    if what == "none":
        return log_probs
    batch, classes = logits.shape
    prior = log_probs.exp().mean(0)
    smooth = max(1 / batch, 1 / classes) / prior.max()
    prior = (prior + smooth) / (1 + smooth * classes)
    return (classes * prior * logits if what == "logits" else log_probs + prior.log()).log_softmax(-1)
