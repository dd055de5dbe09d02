"""ROID: certain and diverse samples, weight ensembling, prior correction (Marsden et al., WACV 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.certainty import PriorCorrection, certainty_and_diversity, correct_prior, soft_likelihood_ratio
from vcotta.methods.facts import Facts
from vcotta.methods.losses import symmetric_cross_entropy
from vcotta.methods.norm_layers import train_only_normalisation
from vcotta.views import random_view

__all__ = ["ROID", "ROIDConfig"]


@dataclass(frozen=True)
class ROIDConfig:
    """Settings of ROID; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        source_momentum: Share of the adapted parameters when they are mixed with the source's after a step (0.99).
        probability_momentum: Decay of the average prediction that diversity is measured against (0.9).
        temperature: Of the weights by certainty and diversity (1/3).
        prior_correction: What the batch's class prior multiplies in the returned prediction: ``logits`` (official
            code), ``probabilities`` (paper), or ``none``; see `vcotta.methods.certainty.correct_prior`.
        flip: Whether views may mirror the image.
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    source_momentum: float = 0.99
    probability_momentum: float = 0.9
    temperature: float = 1 / 3
    prior_correction: PriorCorrection = "logits"
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lr < 0:
            raise ValueError(f"Expected `lr` to be at least 0, but got {self.lr}.")
        for name in ("source_momentum", "probability_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected `{name}` to lie in [0, 1], but got {getattr(self, name)}.")
        if self.temperature <= 0:
            raise ValueError(f"Expected `temperature` to be above 0, but got {self.temperature}.")


class ROID(Adapter):
    r"""Self-training on the certain and diverse half of a batch, held near the source.

    With weights :math:`w_i` by certainty and diversity (0 for about half of the batch, S being the rest), the soft
    likelihood ratio and a view :math:`\tilde x` of the images in S,

    .. math::
        L = \frac{1}{B} \sum_{i \in S} w_i \left[ \mathrm{SLR}(p_i) + \mathrm{SCE}(p(\tilde x_i), p_i) \right]

    over scale and shift of the normalisation layers, gradients through both arguments of SCE. After the step they are
    mixed with the source's, :math:`\theta \leftarrow m \theta + (1 - m) \theta_0`. The returned prediction is the one
    from before the step, corrected by the batch's class prior.

    The view's pass sees only the images in S, whose statistics its BatchNorm layers use, so the host has to know S.
    Unlike the official code, the loss is divided by the number of images there are, not by the configured batch size:
    a short last batch is not weaker. Where predictions do not differ the official weights are not a number; here no
    step is taken and only the pull to the source goes on. Returned are log-probabilities with the official ranking
    instead of logits shrunk by the prior.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = ROID(net)
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (2, 1)
    """

    name = "roid"
    summary = "weights by certainty and diversity, weight ensembling, prior correction"
    facts = Facts("WACV 2024", "normalisation", "nothing", "2 forwards, 1 backward", "official code", distributed=True)
    Config = ROIDConfig
    datasets: ClassVar = {
        "cifar100": {},
        "imagenet": {"lr": 2.5e-4, "optimizer": "sgd"},
        "digits": {"flip": False},
    }

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the normalisation layers require gradients, nothing else."""
        trained = train_only_normalisation(model, type(self).__name__)
        self.networks = {"model": model}
        pairs = list(zip(model.parameters(), self.start.parameters(), strict=True))
        self.trained: list[Tensor] = [own for own, _ in pairs if own.requires_grad]
        self.sources: list[Tensor] = [source for own, source in pairs if own.requires_grad]
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, one step on the weighted loss, then the pull to the source."""
        logits = self.logits(self.networks["model"], images)
        if self.optimizer is not None:
            self._adapt(images, logits.log_softmax(-1))
        return correct_prior(logits.detach(), self.config.prior_correction)

    def _adapt(self, images: Tensor, log_probs: Tensor) -> None:
        mean = log_probs.detach().exp().mean(0)
        average = self.memory.get("average_prediction", torch.full_like(mean, 1 / len(mean)))
        weights = certainty_and_diversity(log_probs.detach(), average, self.config.temperature)
        view = random_view(images, flip=self.config.flip, kind="roid")
        kept = weights.nonzero().squeeze(-1)  # the host waits here; what it can do before, it has done
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
        """Soft likelihood ratio of the predictions and their consistency with those of a view, one value an image."""
        seen = self.logits(self.networks["model"], view).log_softmax(-1)
        return soft_likelihood_ratio(log_probs) + symmetric_cross_entropy(log_probs, seen)

    @torch.no_grad()
    def _ensemble(self, usable: Tensor) -> None:
        """Mix the adapted parameters with the source's; those that are not trained are equal and stay so."""
        adapted, source = parameters_to_vector(self.trained), parameters_to_vector(self.sources)
        self._write(torch.where(usable, torch.lerp(adapted, source, 1 - self.config.source_momentum), adapted))

    def _write(self, values: Tensor) -> None:
        """Set the trained parameters, which follow one another in ``values``: few operations serve many layers."""
        parts = values.split([parameter.numel() for parameter in self.trained])
        torch._foreach_copy_(self.trained, [part.view_as(p) for part, p in zip(parts, self.trained, strict=True)])
