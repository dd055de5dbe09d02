"""Entropy minimisation on chosen samples: what EATA, RDumb, SAR and DeYO share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.losses import entropy
from vcotta.methods.norm_layers import train_only_normalisation

__all__ = [
    "ETA",
    "ETAConfig",
    "entropy_ceiling",
    "is_below",
    "is_novel",
    "masked_mean",
    "mean_prediction",
    "train_early_normalisation",
]

_MEMORY = 0.9  # of the mean prediction; fixed in the official codes of EATA and RDumb


def entropy_ceiling(margin: float, log_probs: Tensor) -> float:
    """E_0, a share of the largest entropy there is, log C.

    Example:
        >>> round(entropy_ceiling(0.4, torch.zeros(1, 1000)), 3)
        2.763
    """
    return margin * math.log(log_probs.shape[-1])


def is_below(values: Tensor, ceiling: float) -> Tensor:
    """Whether values are below a ceiling, strictly; what is not a number counts, so that `Adapter.minimise` sees it.

    Example:
        >>> is_below(torch.tensor([0.1, 0.5, float("nan")]), 0.5)
        tensor([ True, False,  True])
    """
    return ~(values >= ceiling)


def is_novel(probs: Tensor, mean: Tensor, margin: float) -> Tensor:
    """Whether predictions differ from their running mean, :math:`|cos(m, p)| < margin`.

    While there is no mean, which zeros say, all of them do.

    Example:
        >>> probs = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> is_novel(probs, mean=torch.tensor([1.0, 0.0]), margin=0.4)
        tensor([False,  True])
        >>> is_novel(probs, mean=torch.zeros(2), margin=0.4)
        tensor([True, True])
    """
    return is_below(F.cosine_similarity(mean, probs, dim=-1).abs(), margin) | ~mean.any()


def mean_prediction(probs: Tensor, kept: Tensor, mean: Tensor) -> Tensor:
    """Move the running mean by the mean of the kept predictions: 0.9 m + 0.1 p; the first takes the place of zeros.

    Example:
        >>> probs, kept = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([True, False])
        >>> mean_prediction(probs, kept, mean=torch.tensor([0.0, 1.0]))
        tensor([0.1000, 0.9000])
    """
    new = masked_mean(probs, kept.unsqueeze(-1))
    return torch.where(mean.any(), _MEMORY * mean + (1 - _MEMORY) * new, new)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the samples in the mask, 0 if there is none; what is outside it gets no gradient.

    Example:
        >>> masked_mean(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
        tensor(2.)
    """
    return torch.where(mask, values, 0).sum(0) / mask.sum(0).clamp_min(1)


def train_early_normalisation(model: nn.Module, method: str) -> list[Tensor]:
    """`train_only_normalisation` without the late layers that SAR and DeYO leave alone.

    By their names in the official codes: ``layer4`` of a ResNet, and blocks 9 to 11 and the last norm of a vision
    transformer, here the ``norm`` beside its ``blocks``. Networks with other names are trained throughout.

    Example:
        >>> net = nn.ModuleDict({"layer3": nn.BatchNorm2d(2), "layer4": nn.BatchNorm2d(4)})
        >>> [tuple(p.shape) for p in train_early_normalisation(net, "SAR")]
        [(2,), (2,)]
    """
    trained = train_only_normalisation(model, method, skip=("layer4", "blocks.9", "blocks.10", "blocks.11"))
    for module in model.modules():
        children = dict(module.named_children())
        if {"blocks", "norm"} <= set(children):
            children["norm"].requires_grad_(False)
    return [parameter for parameter in trained if parameter.requires_grad]


@dataclass(frozen=True)
class ETAConfig:
    """Settings of `ETA`, as EATA and RDumb describe them."""

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    entropy_margin: float = 0.4
    similarity_margin: float = 0.4

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "entropy_margin", "similarity_margin"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")


class ETA(Adapter):
    r"""The step of EATA without its penalty, all of RDumb but its restarts.

    A sample counts if its entropy is below :math:`E_0`, a share of log C, and its prediction differs from the running
    mean m of those that counted before, :math:`|\cos(m, p)| < \epsilon`. With those that do, S,

    .. math:: L = \frac{1}{|S|}\sum_{i \in S} e^{E_0 - H_i} H_i

    is minimised over scale and shift of the normalisation layers, the weights being constants. ``memory["mean"]`` is m,
    zeros until some sample counted.
    """

    def setup(self, model: nn.Module) -> None:
        """Let scale and shift of the normalisation layers require gradients, nothing else."""
        trained = train_only_normalisation(model, type(self).__name__)
        self.networks = {"model": model}
        if trained:
            self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the samples that count."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        if self.optimizer is not None:
            self._learn(log_probs)
        return log_probs

    def penalty(self) -> Tensor | None:
        """What is added to the loss; nothing here."""
        return None

    def _learn(self, log_probs: Tensor) -> None:
        config = self.config
        entropies, probs = entropy(log_probs), log_probs.detach().exp()
        ceiling = entropy_ceiling(config.entropy_margin, log_probs)
        mean = self.memory.get("mean", torch.zeros_like(probs[0]))
        kept = is_below(entropies.detach(), ceiling) & is_novel(probs, mean, config.similarity_margin)
        weights = (ceiling - entropies.detach()).exp()
        loss, penalty = masked_mean(weights * entropies, kept), self.penalty()
        done = self.minimise(loss if penalty is None else loss + penalty, when=kept.any())
        self.memory["mean"] = torch.where(done, mean_prediction(probs, kept, mean), mean)
        self.note(kept=kept.float().mean())
