"""Soft Weight Alignment, a reconstruction: safe labels, samples and parameters (after Yang et al., IJCAI 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import NonNegative, Positive
from vcotta.methods.card import Card
from vcotta.methods.parts.layers import classifier
from vcotta.methods.parts.reliable import masked_mean
from vcotta.methods.parts.threshold_teacher import SETTINGS, ThresholdTeacher, ThresholdTeacherConfig
from vcotta.methods.registry import register_method
from vcotta.nn.views import random_view

__all__ = ["SWA", "SWAConfig", "soft_contrast", "weight_distance"]


@dataclass(frozen=True)
class SWAConfig(ThresholdTeacherConfig):
    """Settings of the reconstruction of SWA. No published value is known; all are ours or another method's.

    Attributes:
        contrast: Weight of the contrastive loss (1).
        temperature: Of the contrastive loss (RMT's 0.1).
        alignment: Weight of the distance to the source's weights (1).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    contrast: NonNegative = 1.0
    temperature: Positive = 0.1
    alignment: NonNegative = 1.0
    flip: bool = True


@register_method
class SWA(ThresholdTeacher):
    r"""Soft Weight Alignment: pseudo-labels, related images and weights, each kept safe.

    **A reconstruction.** Of the original only the abstract and results are public. It names three parts: a threshold
    for pseudo-labels that adapts itself, a soft-weighted contrastive loss that draws related images together, and a
    normalised distance between adapted and source weights. This is the simplest method that has them. Its errors say
    nothing about the original's. (It is not stochastic weight averaging, which has the same initials.)

    With the teacher's probabilities q and labels y, and the student's prediction p and features f on the images,
    :math:`\tilde f` on a random view of them, the student minimises

    .. math:: L = \mathrm{mean}_{q_{iy} \ge \tau} \big(-\log p_{iy}\big) + w_1 L_{con}(f, \tilde f, q)
        + w_2 \frac{\|\theta - \theta_0\|^2}{\|\theta_0\|^2},

    see `soft_contrast` and `weight_distance`. Then the teacher averages the student. Its prediction is returned.

    Every choice is ours:

    * a mean teacher gives labels and prediction, as in the methods the original is grouped with, from the image alone;
    * the threshold :math:`\tau` is a moving average of the batches' mean confidence, from 1/C, the same for all
      classes (FreeMatch's global threshold);
    * images are as related as their predictions agree: the weight of a pair is :math:`\langle q_i, q_j \rangle`;
    * the contrast compares the features of images with those of views, without a projector or a queue;
    * the distance is squared, and relative to the size of the source's weights;
    * all weights are trained, BatchNorm uses the statistics of the batch; step size, decay and weights of the terms.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> SWA(net.append(nn.Linear(4, 2)))(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "swa"
    summary = "soft weight alignment: adaptive threshold, soft contrast, near the source"
    card = Card("IJCAI 2023", "everything", "nothing", "3 forwards, 1 backward", "reconstruction", distributed=True)
    Config = SWAConfig
    datasets: ClassVar = SETTINGS | {"digits": SETTINGS["digits"] | {"flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher of a network with features."""
        classifier(model)
        super().setup(model)

    def loss(
        self, student: nn.Module, images: Tensor, target: Tensor, threshold: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return cross-entropy with safe labels, soft contrast and distance to the source."""
        config, probs = self.config, target.exp()
        confidence, labels = probs.max(-1)
        features, logits = self.features_and_logits(student, images)
        view = self.runtime.place_images(random_view(images, flip=config.flip))
        others, _ = self.features_and_logits(student, view)
        safe = confidence >= threshold
        fit = masked_mean(F.cross_entropy(logits, labels, reduction="none"), safe)
        contrast = soft_contrast(features, others, probs, config.temperature)
        distance = weight_distance(student, self.start)
        notes = {"kept": safe.float().mean(), "threshold": threshold}
        notes |= {"contrast": contrast.detach(), "distance": distance.detach()}
        return fit + config.contrast * contrast + config.alignment * distance, notes


def soft_contrast(features: Tensor, others: Tensor, probs: Tensor, temperature: float) -> Tensor:
    r"""Contrast between images and views in which pairs count by how much their predictions agree.

    .. math:: L = -\mathrm{mean}_i \log \frac{\sum_j w_{ij} e^{f_i^\top g_j / t}}{\sum_j e^{f_i^\top g_j / t}},
        \quad w_{ij} = \langle q_i, q_j \rangle,\ w_{ii} = 1

    with features f of the images and g of the views, scaled to length 1, (batch, dimensions), and predictions q.
    """
    scores = F.normalize(features, dim=-1) @ F.normalize(others, dim=-1).T / temperature
    itself = torch.eye(len(probs), dtype=torch.bool, device=probs.device)
    weights = (probs @ probs.T).masked_fill(itself, 1.0).clamp_min(1e-30)
    return (scores.logsumexp(-1) - (scores + weights.log()).logsumexp(-1)).mean()


def weight_distance(student: nn.Module, source: nn.Module) -> Tensor:
    r""":math:`\|\theta - \theta_0\|^2 / \|\theta_0\|^2` over all parameters; 0 at the source."""
    pairs = list(zip(student.parameters(), source.parameters(), strict=True))
    moved = torch.stack([(now - start).square().sum() for now, start in pairs]).sum()
    return moved / torch.stack([start.square().sum() for _, start in pairs]).sum().clamp_min(1e-12)
