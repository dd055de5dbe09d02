"""ViDA: low- and high-rank adapters, weighted by uncertainty (homeostatic visual domain adapter, ICLR 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.branches import add_branches, branch_parameters, set_scales
from vcotta.methods.parts.losses import cross_entropy, symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import restore_tensors, student_and_teacher, update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.inputs import check_labels
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_views

__all__ = ["ViDA", "ViDAConfig"]


@dataclass(frozen=True)
class ViDAConfig(StreamSettings):
    """Settings of ViDA; defaults for CIFAR10-C from the official code, which is for a ViT-B/16.

    Attributes:
        lr: Step size of the network's own weights (CIFAR10-C 1e-4, CIFAR100-C 3e-4, ImageNet-C 5e-7).
        adapter_lr: Step size of the branches, as a multiple of ``lr`` (CIFAR10-C 0.1, CIFAR100-C 1/300, ImageNet-C
            0.4).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        low_rank: Rank of the branch for what domains share (1).
        high_rank: Rank of the branch for what is special to one (128).
        views: Augmented views over which the uncertainty is the variance (10). Fewer than two mean no uncertainty, and
            the target of the image.
        threshold: From this uncertainty on the branch of high rank counts more (CIFAR 0.05, ImageNet-C 0.2).
        allotment: Which branches the uncertainty weighs: ``both`` (paper), or only the ``low`` one, as the official
            code does by a slip: it looks for the second scale only in layers that lack the first.
        target: What the student learns from: the teacher's mean logits over the ``views``, as the paper's teacher sees
            augmented images, or its prediction for the ``image`` itself, as in the official code.
        beta: Decay of the teacher's average (0.999).
        adapter_beta: Decay of the average of the branches (CIFAR 0.999, ImageNet-C 0.8).
        restore: Probability that a trained weight returns to its first value after a step (CIFAR 0.1, the default of
            the official class, to which its scripts pass no other; ImageNet-C 0).
        loss: ``ce`` (CIFAR) or the symmetric ``sce`` (ImageNet-C).
        warm_up_images: Labelled source images, at most, on which the branches are trained before the stream, in one
            pass (10 000, ours).
        warm_up_lr: Step size of that training, by Adam (1e-3, ours).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-4
    adapter_lr: NonNegative = 0.1
    optimizer: OptimizerName = "adam"
    low_rank: Count = 1
    high_rank: Count = 128
    views: NonNegativeInt = 10
    threshold: NonNegative = 0.05
    allotment: Literal["both", "low"] = "both"
    target: Literal["views", "image"] = "views"
    beta: UnitInterval = 0.999
    adapter_beta: UnitInterval = 0.999
    restore: UnitInterval = 0.1
    loss: Literal["ce", "sce"] = "ce"
    warm_up_images: NonNegativeInt = 10_000
    warm_up_lr: NonNegative = 1e-3
    flip: bool = True


@register_method
class ViDA(Adapter):
    r"""A mean teacher whose layers have a branch of low and one of high rank, weighted by the teacher's uncertainty.

    Beside a layer W stand two branches, see `Branches`: :math:`y = Wx + s_1 U_1 D_1 x + s_2 U_2 D_2 x`. The uncertainty
    of a batch is a tenth of the variance of the teacher's logits z over views, averaged over images and classes:

    .. math:: u = \tfrac{1}{10} \operatorname{mean}_{n,c} \operatorname{var}_v z_{vnc}, \quad
        (s_1, s_2) = \begin{cases} (1 - u, 1 + u) & u \ge \theta \\ (1 + u, 1 - u) & u < \theta. \end{cases}

    The views are seen with the scales of the batch before, as in the official code. With the new ones the student, all
    of it, minimises the cross-entropy with the teacher's mean prediction over the views. Then the teacher is averaged,
    and some weights return to their first values. The teacher's prediction for the images, from before, is returned.

    Differences from the official code: both branches are weighted (``allotment``); u is at most 1, above which a branch
    would change its sign; and the target is that of the views (``target``). The official one is the teacher's
    prediction for what the student sees, too. With ``ce`` its gradient is 0 as long as both are the same network: Adam
    makes its first steps of rounding errors, and only restoration and the average, by which the two differ later, move
    anything.

    Open in public: how the branches are trained on source data before the stream. The authors say that they train them
    alone with the network frozen, and ship the result; here they minimise the cross-entropy with the labels of plain
    source images, BatchNorm using the source's statistics. Networks without attention get branches beside their
    convolutions, see `layers_to_adapt`. The paper has such a form and the official code has not, so its shape is ours,
    and the settings are those of the ViT.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = ViDA(net, ViDAConfig(views=2, high_rank=4))
        >>> adapter.prepare([(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "vida"
    summary = "mean teacher, low- and high-rank adapters weighted by uncertainty"
    card = Card(
        "ICLR 2024",
        "everything",
        "adapters, trained on labelled images",
        "N + 2 forwards, 1 backward",
        "official code",
        distributed=True,
    )
    Config = ViDAConfig
    datasets: ClassVar = {
        "cifar100": {"lr": 3e-4, "adapter_lr": 1 / 300},
        "imagenet": {
            "lr": 5e-7,
            "adapter_lr": 0.4,
            "optimizer": "sgd",
            "threshold": 0.2,
            "adapter_beta": 0.8,
            "restore": 0.0,
            "loss": "sce",
        },
        "digits": {"lr": 1e-2, "beta": 0.98, "adapter_beta": 0.98, "views": 4, "restore": 0.01, "flip": False},
    }
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher, with branches as they were after the training on source data."""
        add_branches(model, self.config.low_rank, self.config.high_rank)
        self.runtime.place(model)
        with torch.no_grad():
            for name, branch in branch_parameters(model).items():
                branch.copy_(self.prepared.get(name, branch))
        self.networks = student_and_teacher(model)
        parameters = dict(model.named_parameters())
        branches = branch_parameters(model)
        scales = [self.config.adapter_lr if name in branches else 1.0 for name in parameters]
        self.make_optimizer(parameters.values(), self.config.optimizer, self.config.lr, scales)
        self.memory["scales"] = torch.ones(2, dtype=self.runtime.dtype, device=self.runtime.device)

    @torch.enable_grad()
    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The branches, trained on labelled images with the network frozen."""
        student, left = self.networks["student"].requires_grad_(False), self.config.warm_up_images
        branches = branch_parameters(student)
        self._use(self.memory["scales"])
        self.make_optimizer([branch.requires_grad_() for branch in branches.values()], "adam", self.config.warm_up_lr)
        for images, labels in source if left else ():
            logits = self.logits(student, images[:left], batch_statistics=False)
            check_labels(labels, len(images), logits.shape[-1])
            self.minimise(F.cross_entropy(logits, labels[:left].long()))
            left -= len(images)
            if left <= 0:
                break
        return {name: branch.detach() for name, branch in branches.items()}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student towards it, then average and restore."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        scales, of_views = self._look_at_views(images)
        self._use(scales)
        with torch.no_grad():
            prediction = self.logits(teacher, images).log_softmax(-1)
        target = prediction if of_views is None or config.target == "image" else of_views.log_softmax(-1)
        log_probs = self.logits(student, images).log_softmax(-1)
        distance = cross_entropy if config.loss == "ce" else symmetric_cross_entropy
        done = self.minimise(distance(target, log_probs).mean())
        branches = branch_parameters(student)
        update_teacher(teacher, student, config.beta, done, named=lambda name: name not in branches)
        update_teacher(teacher, student, config.adapter_beta, done, named=branches.__contains__)
        originals = dict(self.start.named_parameters()) | self.prepared
        restored = {name: tensor for name, tensor in student.named_parameters() if name in originals}
        restore_tensors(restored.values(), [originals[name] for name in restored], config.restore, done)
        self.memory["scales"] = torch.where(done, scales, self.memory["scales"])
        return prediction

    def _use(self, scales: Tensor) -> None:
        for network in self.networks.values():
            set_scales(network, scales)

    @torch.no_grad()
    def _look_at_views(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scales of the branches of low and of high rank, (2,), and the teacher's mean logits over views."""
        config, before = self.config, self.memory["scales"]
        uncertainty, mean = torch.zeros_like(before[0]), None
        if config.views > 1:
            self._use(before)
            views = random_views(images, config.views, flip=config.flip)
            logits = self.logits_of_views(self.networks["teacher"], views)
            variance, mean = logits.var(0).mean(), logits.mean(0)
            uncertainty = torch.where(variance.isfinite(), 0.1 * variance, uncertainty).clamp_max(1)
        self.note(uncertainty=uncertainty)
        high = torch.where(uncertainty >= config.threshold, uncertainty, -uncertainty)
        scales = torch.stack([1 - high, 1 + high if config.allotment == "both" else torch.ones_like(high)])
        return scales, mean
