"""OBAO: a buffer of confident test images and the preservation of class relations (ECCV 2024)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.class_features import class_sums, cosine_similarities, source_prototypes
from vcotta.methods.parts.layers import classifier
from vcotta.methods.parts.losses import entropy, symmetric_cross_entropy
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_view

__all__ = ["OBAO", "OBAOConfig"]


@dataclass(frozen=True)
class OBAOConfig(StreamSettings):
    """Settings of OBAO; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C.
        beta: Decay of the teacher's average (0.999).
        margin: Share of log C below which an entropy counts as confident (CIFAR 0.1, ImageNet-C 0.2).
        buffer: Number of test images kept (1000, CIFAR100-C 200).
        replayed: Number of them replayed with each batch (200, ImageNet-C 64: the size of its batches).
        replay: Weight of their cross-entropy (1, ImageNet-C 0.5).
        relation: Weight of the class relations (1, CIFAR100-C 200).
        flip: Whether views may mirror the image (yes); not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    beta: UnitInterval = 0.999
    margin: NonNegative = 0.1
    buffer: Count = 1000
    replayed: Count = 200
    replay: NonNegative = 1.0
    relation: NonNegative = 1.0
    flip: bool = True


@register_method
class OBAO(Adapter):
    r"""A symmetric mean teacher that replays confident test images and keeps the classes related as in the source.

    With p and p~ the student's predictions for an image and one random view of it, q the teacher's for the image, and
    (x_m, y_m) a random batch of the buffer with its pseudo-labels, all weights but the classifier's minimise

    .. math:: L = \tfrac12 SCE(p, q) + \tfrac12 SCE(\tilde p, q) + \lambda_m CE(x_m, y_m)
        - \lambda_r \frac{\sum S \odot S_0}{\sqrt{\sum S^2 \sum S_0^2}},

    where S holds the cosines between the mean features of the classes in the buffer's batch, and :math:`S_0` those
    between the same classes' source prototypes. Then images with H(p) below ``margin`` log C enter the buffer, labelled
    by the argmax of the summed logits of student and teacher. They take free places first, then those of the highest
    entropy, even if their own is higher. The teacher averages the student. The prediction is the mean of both logits
    from before the step; the official code returns their sum.

    Differs from the official code: images of one batch never replace each other in a full buffer, and those beyond its
    last place are dropped; its unused projector and its option of classifier rows in place of prototypes are left out;
    CIFAR-100's prototypes come from source data, not from clean test images. The host waits once a batch for the number
    of images in the buffer.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = OBAO(net.append(nn.Linear(4, 2)), OBAOConfig(margin=1.1))
        >>> adapter.prepare([(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)])
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "obao"
    summary = "mean teacher, replay of confident images, class relations"
    card = Card(
        "ECCV 2024",
        "everything but the classifier",
        "class prototypes",
        "3 or 4 forwards, 1 backward",
        "official code",
        distributed=True,
    )
    Config = OBAOConfig
    datasets: ClassVar = {
        "cifar100": {"buffer": 200, "relation": 200.0},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "margin": 0.2, "replayed": 64, "replay": 0.5},
        "digits": {"lr": 0.01, "beta": 0.98, "buffer": 200, "replayed": 50, "flip": False},
    }
    needs_source = True

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher; the student's classifier stays as it is."""
        self.networks = student_and_teacher(model)
        classifier(model).requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """The relations of the classes: the cosines between their prototypes."""
        return {"relations": cosine_similarities(source_prototypes(self, source))}

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, one step of the student, then store and average."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        logits = self.logits(student, images)
        log_probs = logits.log_softmax(-1)
        log_probs_of_view = self.logits(student, random_view(images, flip=config.flip)).log_softmax(-1)
        with torch.no_grad():
            target_logits = self.logits(teacher, images)
        target = target_logits.log_softmax(-1)
        pair = [symmetric_cross_entropy(target, output) for output in (log_probs, log_probs_of_view)]
        loss = (0.5 * pair[0] + 0.5 * pair[1]).mean() + self._memory_loss(images)
        done = self.minimise(loss)
        combined = ((logits.detach() + target_logits) / 2).log_softmax(-1)
        self._store(images, combined.argmax(-1), entropy(log_probs.detach()), done)
        update_teacher(teacher, student, config.beta, done)
        return combined

    def _memory_loss(self, images: Tensor) -> Tensor:
        """The two losses of a random batch of the buffer; 0 if the buffer is empty or its images have another shape."""
        config, memory = self.config, self.memory
        if "images" in memory and memory["images"].shape[1:] != images.shape[1:]:
            memory.clear()
        count = int(memory["entropies"].isfinite().sum()) if memory else 0
        drawn = torch.randperm(count)[: config.replayed].to(images.device, non_blocking=True)
        self.note(replayed=len(drawn))
        if not len(drawn) or not (config.replay or config.relation):
            return images.new_zeros(())
        labels = memory["labels"][drawn]
        batch = self.runtime.place_images(memory["images"][drawn])
        features, logits = self.features_and_logits(self.networks["student"], batch, replayed=True)
        replay = F.cross_entropy(logits, labels)
        relation = relation_loss(features, labels, self.prepared["relations"])
        loss: Tensor = config.replay * replay + config.relation * relation
        return loss

    @torch.no_grad()
    def _store(self, images: Tensor, labels: Tensor, entropies: Tensor, done: Tensor) -> None:
        """Write the confident images over the places of highest entropy; free places count as infinite."""
        memory, size = self.memory, self.config.buffer
        if not memory:
            memory["images"] = images.new_zeros(size, *images.shape[1:])
            memory["labels"] = labels.new_zeros(size)
            memory["entropies"] = entropies.new_full((size,), torch.inf)
        confident = (entropies < self.config.margin * math.log(len(self.prepared["relations"]))) & done
        first = confident.argsort(descending=True, stable=True)[:size]  # the confident ones, in order, before the rest
        places = memory["entropies"].argsort(descending=True, stable=True)[: len(first)]
        chosen = confident[first]
        for name, new in (("images", images), ("labels", labels), ("entropies", entropies)):
            keep = chosen.view(-1, *[1] * (new.ndim - 1))
            memory[name][places] = torch.where(keep, new[first], memory[name][places])


def relation_loss(features: Tensor, labels: Tensor, relations: Tensor) -> Tensor:
    """Minus the correlation, about zero, of the classes' cosines with ``relations``, over the classes of ``labels``."""
    sums, counts = class_sums(features, labels, len(relations))
    present = (counts > 0).float()
    both = present.unsqueeze(0) * present.unsqueeze(1)
    now, then = cosine_similarities(sums) * both, relations * both
    return -(now * then).sum() / (now.square().sum() * then.square().sum()).sqrt()
