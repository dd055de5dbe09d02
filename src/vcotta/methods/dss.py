"""DSS, a reconstruction: dynamic sample selection (after Wang et al., WACV 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vcotta._util.validation import NonNegative
from vcotta.methods.card import Card
from vcotta.methods.parts.threshold_teacher import ThresholdTeacher, ThresholdTeacherConfig
from vcotta.methods.registry import register_method

__all__ = ["DSS", "DSSConfig", "negative_loss"]


@dataclass(frozen=True)
class DSSConfig(ThresholdTeacherConfig):
    """Settings of the reconstruction of DSS. No published value is known; all are ours or another method's.

    Attributes:
        negative: Weight of the negative learning (1).
    """

    negative: NonNegative = 1.0


@register_method
class DSS(ThresholdTeacher):
    r"""Dynamic sample selection: learn what images of high and of low quality show, and what not.

    **A reconstruction.** Of the original only the abstract and results are public. It names a dynamic threshold that
    separates images of high and of low quality, and positive and negative learning from both. This is the simplest
    method that has them. Its errors say nothing about the original's.

    With the teacher's probabilities q, label y and confidence :math:`c_i = q_{iy}`, and the student's prediction p, the
    student minimises

    .. math:: L = \mathrm{mean}_i \Big[ a_i (-\log p_{iy})
        + w \operatorname{mean}_{k: q_{ik} < 1/C} \big(-\log(1 - p_{ik})\big) \Big],
        \quad a_i = 1 \text{ if } c_i \ge t, \text{ else } c_i.

    Then the teacher averages the student. Its prediction is returned.

    Every choice is ours:

    * a mean teacher gives labels and prediction, from the image alone: the original's rows lie near CoTTA's;
    * the threshold t is a moving average of the batches' mean confidence, from 1/C;
    * both groups learn from both terms; an image of low quality counts in the positive one by its confidence;
    * complementary labels are the classes less likely than chance;
    * all weights are trained, BatchNorm uses the statistics of the batch; step size, decay and weight of the terms.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> DSS(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "dss"
    summary = "dynamic sample selection, positive and negative learning"
    card = Card("WACV 2024", "everything", "nothing", "2 forwards, 1 backward", "reconstruction", distributed=True)
    Config = DSSConfig

    def loss(
        self, student: nn.Module, images: Tensor, target: Tensor, threshold: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the positive and the negative term."""
        confidence, labels = target.exp().max(-1)
        high = confidence >= threshold
        log_probs = self.logits(student, images).log_softmax(-1)
        positive = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * torch.where(high, 1.0, confidence)
        negative = negative_loss(log_probs, target)
        notes = {"high": high.float().mean(), "threshold": threshold, "negative": negative.detach().mean()}
        return (positive + self.config.negative * negative).mean(), notes


def negative_loss(log_probs: Tensor, log_target: Tensor) -> Tensor:
    r""":math:`-\log(1 - p_k)`, averaged over the classes that the target holds less likely than chance, per image.

    p is at most :math:`1 - 10^{-6}`; the loss is 0 for an image without such a class.
    """
    unlikely = log_target.exp() < 1 / log_target.shape[-1]
    losses = -torch.log1p(-log_probs.exp().clamp_max(1 - 1e-6))
    return torch.where(unlikely, losses, 0).sum(-1) / unlikely.sum(-1).clamp_min(1)
