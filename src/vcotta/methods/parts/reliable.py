"""Methods that train normalisation layers, and entropy minimisation on reliable samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import NonNegative
from vcotta.methods.base import Adapter
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.layers import train_early_normalisation, train_only_normalisation
from vcotta.methods.parts.losses import entropy
from vcotta.nn.optim import OptimizerName

__all__ = [
    "ETA",
    "ETAConfig",
    "NormalisationAdapter",
    "entropy_ceiling",
    "is_below",
    "is_novel",
    "masked_mean",
    "mean_prediction",
]

_MEMORY = 0.9  # decay of the mean prediction; fixed in the official codes of EATA and RDumb


def entropy_ceiling(margin: float, log_probs: Tensor) -> float:
    """E_0, a share of the largest entropy, log C."""
    return margin * math.log(log_probs.shape[-1])


def is_below(values: Tensor, ceiling: float) -> Tensor:
    """Whether values are strictly below a ceiling; NaN counts as below, so that `Adapter.minimise` skips the step."""
    return ~(values >= ceiling)


def is_novel(probs: Tensor, mean: Tensor, margin: float) -> Tensor:
    """Whether predictions differ from their running mean, |cos(m, p)| < margin; all do while the mean is zeros."""
    return is_below(F.cosine_similarity(mean, probs, dim=-1).abs(), margin) | ~mean.any()


def mean_prediction(probs: Tensor, kept: Tensor, mean: Tensor) -> Tensor:
    """Move the running mean by the mean of the kept predictions, 0.9 m + 0.1 p; the first mean replaces zeros."""
    new = masked_mean(probs, kept.unsqueeze(-1))
    return torch.where(mean.any(), _MEMORY * mean + (1 - _MEMORY) * new, new)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the samples in the mask, 0 if there is none; samples outside it get no gradient."""
    return torch.where(mask, values, 0).sum(0) / mask.sum(0).clamp_min(1)


class NormalisationAdapter(Adapter):
    """Predict, then take one step on scale and shift of the normalisation layers; a network without any only predicts.

    The method's config has ``lr`` and ``optimizer``.
    """

    early_only: ClassVar[bool] = False  # see `train_early_normalisation`

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the normalisation layers require gradients, nothing else."""
        train = train_early_normalisation if self.early_only else train_only_normalisation
        trained = train(model, type(self).__name__)
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then learn from the prediction."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        if self.optimizer is not None:
            self._learn(images, log_probs)
        return log_probs

    def _learn(self, images: Tensor, log_probs: Tensor) -> None:
        """Take one step, given the batch and its prediction."""
        raise NotImplementedError


@dataclass(frozen=True)
class ETAConfig(StreamSettings):
    """Settings that EATA and RDumb share.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 2.5e-4). EATA's authors do not publish theirs for CIFAR.
        optimizer: ``adam`` for CIFAR, ``momentum`` for ImageNet-C (``sgd`` in the re-implementation by Döbler et al.).
        entropy_margin: E_0 as a share of log C: only samples of lower entropy are learned from (0.4).
        similarity_margin: epsilon: only samples whose prediction has a smaller cosine with the running mean prediction
            are learned from (CIFAR10-C 0.4, ImageNet-C 0.05; CIFAR100-C 0.1 in EATA, 0.4 in RDumb).
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: NonNegative = 0.4
    similarity_margin: NonNegative = 0.4


class ETA(NormalisationAdapter):
    r"""The step of EATA without its penalty, and of RDumb without its restarts.

    S holds the samples whose entropy is below :math:`E_0`, a share of log C, and whose prediction differs from the
    running mean m of the predictions in earlier S, :math:`|\cos(m, p)| < \epsilon`. The loss is

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} e^{E_0 - H_i} H_i

    with constant weights. ``memory["mean"]`` is m, zeros at first.
    """

    def penalty(self) -> Tensor | float:
        """A term added to the loss; none here."""
        return 0.0

    def _learn(self, images: Tensor, log_probs: Tensor) -> None:
        config = self.config
        entropies, probs = entropy(log_probs), log_probs.detach().exp()
        ceiling = entropy_ceiling(config.entropy_margin, log_probs)
        mean = self.memory.get("mean", torch.zeros_like(probs[0]))
        kept = is_below(entropies.detach(), ceiling) & is_novel(probs, mean, config.similarity_margin)
        weights = (ceiling - entropies.detach()).exp()
        done = self.minimise(masked_mean(weights * entropies, kept) + self.penalty(), when=kept.any())
        self.memory["mean"] = torch.where(done, mean_prediction(probs, kept, mean), mean)
        self.note(kept=kept.float().mean())
