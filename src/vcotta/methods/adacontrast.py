"""AdaContrast: refined pseudo-labels and contrastive learning (Chen, Wang, Darrell and Ebrahimi, CVPR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.batch_norm import batch_norms
from vcotta.fields import check_fields
from vcotta.methods.adacontrast_views import strong_view, weak_view
from vcotta.methods.base import Adapter
from vcotta.methods.facts import Facts
from vcotta.methods.features import classifier
from vcotta.methods.mean_teacher import update_teacher
from vcotta.methods.snapshot import Snapshot

__all__ = ["AdaContrast", "AdaContrastConfig"]


@dataclass(frozen=True)
class AdaContrastConfig:
    """Settings of AdaContrast for continual adaptation, from the re-implementation in the TTA benchmark of RMT.

    The published comparisons use them for CIFAR10-C, CIFAR100-C and ImageNet-C alike.

    Attributes:
        lr: Step size (2e-4, re-implementation and official code; there with cosine decay over 15 epochs).
        weight_decay: Of the SGD with Nesterov momentum 0.9 (1e-4, re-implementation and official code).
        queue: Images remembered, both as negatives of the contrastive loss and as neighbours (16384,
            re-implementation).
        temperature: Of the contrastive loss (0.07, official code).
        neighbours: Neighbours whose predictions a pseudo-label averages (10, official code).
        refine_after: Images to be seen before labels are refined by neighbours (1024, re-implementation; the official
            code first passes over all test data).
        contrast: Weight of the contrastive loss (1, official code).
        diversity: Weight of the diversity loss (1, official code).
        beta: Decay of the key encoder's average (0.999, official code).
        flip: Whether views may mirror the image (official code: yes).
    """

    lr: float = 2e-4
    weight_decay: float = 1e-4
    queue: int = 16384
    temperature: float = 0.07
    neighbours: int = 10
    refine_after: int = 1024
    contrast: float = 1.0
    diversity: float = 1.0
    beta: float = 0.999
    flip: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("lr", "weight_decay", "refine_after", "contrast", "diversity"):
            if getattr(self, name) < 0:
                raise ValueError(f"Expected `{name}` to be at least 0, but got {getattr(self, name)}.")
        for name in ("queue", "neighbours"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected `{name}` to be at least 1, but got {getattr(self, name)}.")
        if self.temperature <= 0:
            raise ValueError(f"Expected `temperature` to be above 0, but got {self.temperature}.")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"Expected `beta` to lie in [0, 1], but got {self.beta}.")


class AdaContrast(Adapter):
    r"""Learn strong views from the labels that the neighbours of weak views agree on, and tell images apart.

    Of each image there are a weak view w and two strong ones, q and k. The pseudo-label y is the argmax of the mean
    prediction of the nearest neighbours of w, in cosine, among the images seen before; of the prediction for w until
    ``refine_after`` images were seen. With unit features :math:`v_q` of the student and :math:`v_k` of the teacher (the
    key encoder), :math:`M_j` the queue of former keys and :math:`y_j` their labels, all weights minimise

    .. math:: L = CE(y, z_q) - \lambda_c \log \frac{\exp(v_q^\top v_k / t)}
        {\exp(v_q^\top v_k / t) + \sum_{j: y_j \ne y} \exp(v_q^\top M_j / t)} + \lambda_d \sum_c \bar p_c \log \bar p_c,

    :math:`\bar p` being the mean prediction of the batch for q. The teacher averages the student; its keys go into the
    queue, and its features and predictions of w among the neighbours.

    Unlike the other methods, the passes of training move the running statistics of BatchNorm, with the layers' own
    momentum, and the prediction returned is made **after** the update, by the student with these statistics. A single
    image has no statistics of its own: all passes then use the running ones, which stay.

    The paper adapts for many epochs to one domain; as in the published comparisons of continual methods, here each
    batch is seen once, strong views are not cropped, neighbours start empty and the step size is constant. Differs from
    both published codes in that a key leaves the queue together with its label, where theirs give the leaving keys the
    newcomers' labels for one step; in that the teacher averages after a step instead of before the next, the same
    sequence; in that it looks at w before k, which only the order of its running statistics tells, and they matter to a
    single image alone; and in that exactly ``queue`` neighbours are kept, where theirs may be up to one batch more.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = AdaContrast(net.append(nn.Linear(4, 2)), AdaContrastConfig(queue=16))
        >>> _ = adapter(torch.rand(4, 3, 8, 8))
        >>> adapter.last["forwards"], adapter.last["backwards"]
        (5, 1)
    """

    name = "adacontrast"
    summary = "neighbour-refined pseudo-labels and contrastive learning"
    facts = Facts("CVPR 2022", "everything", "nothing", "5 forwards, 1 backward", "re-implementation", distributed=True)
    Config = AdaContrastConfig
    datasets: ClassVar = {"digits": {"lr": 2e-3, "queue": 1024, "refine_after": 256, "flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher, a queue of random keys and an empty bank of neighbours."""
        teacher = copy.deepcopy(model).requires_grad_(False)
        student = model.requires_grad_(True)
        self.networks = {"student": student, "teacher": teacher}
        self.make_optimizer(student.parameters(), "sgd", self.config.lr)
        assert self.optimizer is not None
        self.optimizer.param_groups[0]["weight_decay"] = self.config.weight_decay
        size, layer, device = self.config.queue, classifier(model), self.runtime.device
        dtype = self.runtime.dtype
        self.memory = {
            "keys": F.normalize(torch.randn(size, layer.in_features, device=device, dtype=dtype), dim=-1),
            "labels": torch.randint(layer.out_features, (size,), device=device),
            "features": torch.zeros(size, layer.in_features, device=device, dtype=dtype),
            "probabilities": torch.zeros(size, layer.out_features, device=device, dtype=dtype),
            "seen": torch.zeros((), dtype=torch.long, device=device),
        }

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """One step on the batch, then predict it."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        weak = weak_view(images, flip=config.flip)
        norms = (norm for net in (student, teacher) for norm in batch_norms(net))
        before = Snapshot(buffer for norm in norms for buffer in norm.buffers())
        with _moving_statistics(student), _moving_statistics(teacher):
            with torch.no_grad():
                features, weak_logits = self.features_and_logits(student, weak)
                neighbours, neighbour_logits = self.features_and_logits(teacher, weak)
                # Many small operations, once for both views and while a GPU is still busy with the two passes.
                query, key = strong_view(torch.cat([images, images]), flip=config.flip).chunk(2)
                keys, _ = self.features_and_logits(teacher, key)
            query_features, query_logits = self.features_and_logits(student, query)
        labels, keys = self._labels(features, weak_logits), F.normalize(keys, dim=-1)
        loss = F.cross_entropy(query_logits, labels) + config.diversity * diversity_loss(query_logits)
        if config.contrast:
            loss = loss + config.contrast * instance_loss(
                F.normalize(query_features, dim=-1),
                keys,
                self.memory["keys"],
                labels.unsqueeze(1) == self.memory["labels"],
                config.temperature,
            )
        sound = weak_logits.isfinite().all() & neighbour_logits.isfinite().all()  # what labels and memory rest on
        done = self.minimise(torch.where(sound, loss, torch.nan))
        before.restore(unless=done)
        self._remember(
            done,
            keys=keys,
            labels=labels,
            features=F.normalize(neighbours, dim=-1),
            probabilities=neighbour_logits.softmax(-1),
        )
        update_teacher(teacher, student, config.beta, done)
        with torch.no_grad():
            return self.logits(student, images, batch_statistics=False).log_softmax(-1)

    @torch.no_grad()
    def _labels(self, features: Tensor, logits: Tensor) -> Tensor:
        """Pseudo-labels by vote of the nearest neighbours, or the prediction's own while there are too few."""
        bank, config = self.memory, self.config
        empty = torch.arange(config.queue, device=features.device) >= bank["seen"]
        similarity = (F.normalize(features, dim=-1) @ bank["features"].T).masked_fill(empty, -torch.inf)
        nearest = similarity.topk(min(config.neighbours, config.queue), -1).indices
        votes = bank["probabilities"][nearest].sum(1)  # empty places vote for nothing
        refined = bank["seen"] >= max(config.refine_after, 1)
        return torch.where(refined, votes.argmax(-1), logits.argmax(-1))

    @torch.no_grad()
    def _remember(self, done: Tensor, **batch: Tensor) -> None:
        """Write the batch over the oldest places of queue and bank, if ``done``."""
        count = min(len(batch["labels"]), self.config.queue)
        places = (self.memory["seen"] + torch.arange(count, device=done.device)) % self.config.queue
        for name, new in batch.items():
            self.memory[name][places] = torch.where(done, new[-count:], self.memory[name][places])
        self.memory["seen"] += count * done


def instance_loss(queries: Tensor, keys: Tensor, negatives: Tensor, same: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of telling a query's own key from the negatives, those of the same class left out.

    Args:
        queries: Unit vectors, (batch, dimensions).
        keys: Their own keys, of the same shape.
        negatives: Unit vectors, (queue, dimensions).
        same: Which negatives have the class of which query, (batch, queue).
        temperature: Divides the cosines.

    Example:
        >>> axes = torch.eye(2)
        >>> instance_loss(axes[:1], axes[:1], axes, torch.tensor([[True, False]]), temperature=1.0)
        tensor(0.3133)
    """
    own = (queries * keys).sum(-1, keepdim=True)
    others = (queries @ negatives.T).masked_fill(same, -torch.inf)
    return -(torch.cat([own, others], 1) / temperature).log_softmax(-1)[:, 0].mean()


def diversity_loss(logits: Tensor) -> Tensor:
    """Negative entropy of the batch's mean prediction: -log C where all classes are equally frequent, 0 for one class.

    Example:
        >>> diversity_loss(torch.tensor([[99.0, 0.0], [0.0, 99.0]]))
        tensor(-0.6931)
    """
    mean = logits.softmax(-1).mean(0)
    return (mean * (mean + 1e-8).log()).sum()


@contextmanager
def _moving_statistics(net: nn.Module) -> Iterator[None]:
    """Let the BatchNorm layers move their running statistics, in passes that use those of the batch."""
    norms = [norm for norm in batch_norms(net) if norm.running_mean is not None]
    for norm in norms:
        norm.track_running_stats = True
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = False
