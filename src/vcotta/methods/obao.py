"""OBAO: a buffer of confident test images and the preservation of class relations (ECCV 2024)."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.fields import check_fields
from vcotta.methods.base import Adapter, OptimizerName
from vcotta.methods.facts import Facts
from vcotta.methods.features import classifier
from vcotta.methods.losses import entropy, symmetric_cross_entropy
from vcotta.methods.mean_teacher import update_teacher
from vcotta.methods.prototypes import class_sums, cosine_similarities, source_prototypes
from vcotta.views import random_view

__all__ = ["OBAO", "OBAOConfig"]


@dataclass(frozen=True)
class OBAOConfig:
    """Settings of OBAO; defaults for CIFAR10-C from the official code.

    Attributes:
        lr: Step size (CIFAR 1e-3, ImageNet-C 0.01; official code).
        optimizer: ``adam`` for CIFAR, ``sgd`` for ImageNet-C (official code).
        beta: Decay of the teacher's average (0.999, official code).
        margin: Share of log C below which an entropy counts as confident (CIFAR 0.1, ImageNet-C 0.2; official code).
        buffer: Number of test images kept (1000, CIFAR100-C 200; official code).
        replayed: How many of them are replayed with each batch (200, ImageNet-C 64: the size of its batches; official
            code).
        replay: Weight of their cross-entropy (1, ImageNet-C 0.5; official code).
        relation: Weight of the class relations (1, CIFAR100-C 200; official code).
        flip: Whether views may mirror the image (official code: yes).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    beta: float = 0.999
    margin: float = 0.1
    buffer: int = 1000
    replayed: int = 200
    replay: float = 1.0
    relation: float = 1.0
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "margin", "replay", "relation"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        for name in ("buffer", "replayed"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected `{name}` to be at least 1, but got {getattr(self, name)}.")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"Expected `beta` to lie in [0, 1], but got {self.beta}.")


class OBAO(Adapter):
    r"""A symmetric mean teacher that replays confident test images and keeps the classes related as in the source.

    With p and p~ the student's predictions for an image and one random view of it, q the teacher's for the image, and
    (x_m, y_m) a random batch of the buffer with its pseudo-labels, all weights but the classifier's minimise

    .. math:: L = \tfrac12 SCE(p, q) + \tfrac12 SCE(\tilde p, q) + \lambda_m CE(x_m, y_m)
        - \lambda_r \frac{\sum S \odot S_0}{\sqrt{\sum S^2 \sum S_0^2}},

    where S holds the cosines between the mean features of the classes present in the batch of the buffer, and
    :math:`S_0` those between the same classes' source prototypes. Then images whose entropy H(p) is below
    ``margin`` log C go into the buffer, labelled by the argmax of the summed logits of student and teacher: free places
    first, then in place of what has the highest entropy there, whether or not the newcomer's is lower. The teacher
    averages the student. Returned is the mean of both's logits, from before the step; the official code returns their
    sum, of the same argmax.

    Differs from the official code where the buffer runs full or has fewer places than the batch has confident images:
    images of one batch never replace each other, and those beyond the last place are dropped. The projector that the
    official code creates but never uses is left out, and so is its switch to classifier rows in place of prototypes.
    The official code takes CIFAR-100's prototypes from clean test images; here they are of the source data, always.
    One wait for the device a batch tells how full the buffer is: the replayed images are normalised by their own
    statistics, so they must be those and no others.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = OBAO(net.append(nn.Linear(4, 2)), OBAOConfig(margin=1.1))
        >>> adapter.prepare([(torch.rand(6, 3, 8, 8), torch.arange(6) % 2)])
        >>> for _ in range(2):
        ...     _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["replayed"]
        (4, 4)
    """

    name = "obao"
    summary = "mean teacher, replay of confident images, class relations"
    facts = Facts(
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
        teacher = copy.deepcopy(model).requires_grad_(False)
        student = model.requires_grad_(True)
        classifier(student).requires_grad_(False)
        self.networks = {"student": student, "teacher": teacher}
        trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
        self.make_optimizer(trained, self.config.optimizer, self.config.lr)

    def learn_source(self, source: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """How the classes are related: the cosines between their prototypes."""
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
        """The two losses of a random batch of the buffer; 0 while it is empty or of images of another shape."""
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
        features, logits = self.features_and_logits(self.networks["student"], batch)
        replay = F.cross_entropy(logits, labels)
        relation = relation_loss(features, labels, self.prepared["relations"])
        loss: Tensor = config.replay * replay + config.relation * relation
        return loss

    @torch.no_grad()
    def _store(self, images: Tensor, labels: Tensor, entropies: Tensor, done: Tensor) -> None:
        """Write the confident images over the places of highest entropy, free ones counting as infinite."""
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
    """Minus the correlation, about zero, of the classes' cosines with ``relations``, over the classes among ``labels``.

    Args:
        features: (batch, dimensions).
        labels: Their classes.
        relations: The cosines to keep, (classes, classes).

    Example:
        >>> relation_loss(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1]), torch.eye(3))
        tensor(-0.8165)
    """
    sums, counts = class_sums(features, labels, len(relations))
    present = (counts > 0).float()
    both = present.unsqueeze(0) * present.unsqueeze(1)
    now, then = cosine_similarities(sums) * both, relations * both
    return -(now * then).sum() / (now.square().sum() * then.square().sum()).sqrt()
