"""RMT: robust mean teacher (Doebler, Marsden and Yang, CVPR 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, Positive, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.class_features import make_projector, prototype_contrast, source_prototypes
from vcotta.methods.parts.layers import classifier
from vcotta.methods.parts.losses import symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName, load_optimizer
from vcotta.nn.views import random_view

__all__ = ["RMT", "RMTConfig"]


@dataclass(frozen=True)
class RMTConfig(StreamSettings):
    """Settings of RMT; defaults for CIFAR10-C from the official code, without source data at test time.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        consistency: Weight of the self-training loss (1).
        contrast: Weight of the contrastive loss (1).
        temperature: Of the contrastive loss (0.1).
        beta: Decay of the teacher's average (0.999).
        replay: Weight of the cross-entropy on labelled source images at test time. 0 is source-free; the official
            default is 1.
        replay_images: Labelled source images kept for the replay, a uniform sample (official code: all).
        warm_up_images: Source images, without labels, on which student and teacher are warmed up (CIFAR and ImageNet-C
            50 000).
        flip: Whether views may mirror the image (yes); not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    consistency: NonNegative = 1.0
    contrast: NonNegative = 1.0
    temperature: Positive = 0.1
    beta: UnitInterval = 0.999
    replay: NonNegative = 0.0
    replay_images: Count = 2000
    warm_up_images: NonNegativeInt = 0
    flip: bool = True


@register_method
class RMT(Adapter):
    r"""A mean teacher with the symmetric cross-entropy, whose student's features are drawn to the source's prototypes.

    With p and p~ the student's predictions for an image and one random view of it, and q the teacher's for the image,
    all weights and a projector minimise

    .. math:: L = \lambda_s \big(\tfrac12 SCE(p, q) + \tfrac12 SCE(\tilde p, q)\big)
        + \lambda_c L_{con}(\pi, h, \tilde h) + \lambda_r CE(x_r, y_r),

    where :math:`L_{con}` is `contrastive_loss` of three views of each image: its nearest source prototype, its features
    and those of the view; (x_r, y_r) is a batch of labelled source images. The teacher then averages the student. The
    prediction is the mean of both logits from before the step; the official code returns their sum.

    Here the method is source-free at test time: the replay, on in the official default, is an option, and draws from a
    bounded sample of source images (8 bits a channel). The warm-up minimises SCE between student and teacher on source
    batches, with a step size that rises linearly; `reset` returns to the state after it. Published comparisons do not
    say whether they use it.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = RMT(net.append(nn.Linear(4, 2)))
        >>> adapter.prepare([(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "rmt"
    summary = "symmetric mean teacher and prototype contrast"
    card = Card(
        "CVPR 2023",
        "everything",
        "class prototypes, a warm-up",
        "3 forwards, 1 backward; 4 forwards with replay",
        "official code",
        distributed=True,
    )
    Config = RMTConfig
    datasets: ClassVar = {
        "cifar10": {"warm_up_images": 50_000},
        "cifar100": {"warm_up_images": 50_000},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "warm_up_images": 50_000},
        "digits": {"lr": 0.01, "beta": 0.98, "flip": False},
    }
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Make student, teacher and projector, in the state after the warm-up, if there was one."""
        projector = self.runtime.place(make_projector(classifier(model).in_features))
        self.networks = student_and_teacher(model) | {"projector": projector}
        parameters = [*model.parameters(), *projector.parameters()]
        self.make_optimizer(parameters, self.config.optimizer, self.config.lr)
        self._restore_warm_up()

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The class prototypes, a sample to replay, and student, teacher and optimiser after the warm-up."""
        learned: dict[str, Tensor] = {}
        batches = _sampled(source, self.config.replay_images, learned) if self.config.replay else source
        learned["prototypes"] = source_prototypes(self, batches)
        return learned | self._warm_up(source) if self.config.warm_up_images else learned

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, one step of the student, then average."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        features, logits = self.features_and_logits(student, images)
        features_of_view, logits_of_view = self.features_and_logits(student, random_view(images, flip=config.flip))
        with torch.no_grad():
            target_logits = self.logits(teacher, images)
        target = target_logits.log_softmax(-1)
        pair = [symmetric_cross_entropy(target, output.log_softmax(-1)) for output in (logits, logits_of_view)]
        loss = config.consistency * (0.5 * pair[0] + 0.5 * pair[1]).mean()
        if config.contrast:
            loss = loss + config.contrast * prototype_contrast(
                self.networks["projector"], self.prepared["prototypes"], features, features_of_view, config.temperature
            )
        if config.replay:
            loss = loss + config.replay * self._replay_loss(len(images))
        update_teacher(teacher, student, config.beta, self.minimise(loss))
        return ((logits.detach() + target_logits) / 2).log_softmax(-1)

    def _replay_loss(self, count: int) -> Tensor:
        """Cross-entropy of ``count`` source images drawn from the sample, normalised by their own statistics."""
        images, labels = self.prepared["replay_images"], self.prepared["replay_labels"]
        drawn = torch.randperm(len(images))[:count].to(images.device, non_blocking=True)
        batch = self.runtime.place_images(images[drawn] / 255)
        return F.cross_entropy(self.logits(self.networks["student"], batch, replayed=True), labels[drawn])

    @torch.enable_grad()
    def _warm_up(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """Adapt student and teacher to about ``warm_up_images`` source images, and return their state."""
        assert self.optimizer is not None
        student, teacher = self.networks["student"], self.networks["teacher"]
        batches = _endless(source)
        images = next(batches)
        steps = self.config.warm_up_images // len(images)
        for step in range(steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr * (step + 1) / steps
            with torch.no_grad():
                target = self.logits(teacher, images).log_softmax(-1)
            log_probs = self.logits(student, images).log_softmax(-1)
            done = self.minimise(symmetric_cross_entropy(target, log_probs).mean())
            update_teacher(teacher, student, self.config.beta, done)
            if step + 1 < steps:
                images = next(batches)
        warmed = {role: self.networks[role].state_dict() for role in ("student", "teacher")}
        warmed |= {f"optimizer.{index}": values for index, values in self.optimizer.state_dict()["state"].items()}
        return {f"{name}.{key}": value for name, values in warmed.items() for key, value in values.items()}

    def _restore_warm_up(self) -> None:
        """Restore the weights and moments after the warm-up, if there was one."""
        assert self.optimizer is not None
        for role in ("student", "teacher"):
            if weights := _under(self.prepared, role):
                self.networks[role].load_state_dict(weights)
        state = self.optimizer.state_dict()
        for name, tensor in _under(self.prepared, "optimizer").items():
            index, _, key = name.partition(".")
            state["state"].setdefault(int(index), {})[key] = tensor.clone()
        load_optimizer(self.optimizer, state)


def _under(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")}


def _endless(source: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
    """The images of ``source`` over and over."""
    while True:
        for images, _ in source:
            yield images


def _sampled(
    source: Iterable[tuple[Tensor, Tensor]], size: int, sample: dict[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what ``source`` yields, and collect in ``sample`` a uniform sample of its images and labels."""
    kept: list[Tensor] = []
    for images, labels in source:
        batch = [(255 * images).round().byte(), labels.long(), torch.rand(len(labels)).to(labels.device)]
        kept = [torch.cat(parts) for parts in zip(kept, batch, strict=True)] if kept else batch
        largest = kept[2].topk(min(size, len(kept[2]))).indices  # by random keys, one per image
        kept = [tensor[largest] for tensor in kept]
        sample["replay_images"], sample["replay_labels"] = kept[0], kept[1]
        yield images, labels
