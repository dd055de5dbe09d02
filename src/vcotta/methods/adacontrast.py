"""AdaContrast: refined pseudo-labels and contrastive learning (Chen, Wang, Darrell and Ebrahimi, CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, Positive, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.layers import classifier
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.batch_norm import SavedStatistics, moving_statistics
from vcotta.nn.optim import make_optimizer
from vcotta.nn.views import strong_view, weak_view

__all__ = ["AdaContrast", "AdaContrastConfig"]


@dataclass(frozen=True)
class AdaContrastConfig(StreamSettings):
    """Settings of AdaContrast for all data sets, from the re-implementation in RMT's benchmark ("re-impl.").

    Attributes:
        lr: Step size (2e-4; the official code lets it decay over 15 epochs).
        weight_decay: Of SGD with Nesterov momentum 0.9 (1e-4).
        queue: Images kept, as negatives of the contrastive loss and as neighbours (16384, re-impl.).
        temperature: Of the contrastive loss (0.07).
        neighbours: Neighbours whose predictions a pseudo-label averages (10).
        refine_after: Images to be seen before neighbours refine labels (1024, re-impl.; the official code first passes
            over all test data).
        contrast: Weight of the contrastive loss (1).
        diversity: Weight of the diversity loss (1).
        beta: Decay of the key encoder's average (0.999).
        flip: Whether views may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 2e-4
    weight_decay: NonNegative = 1e-4
    queue: Count = 16384
    temperature: Positive = 0.07
    neighbours: Count = 10
    refine_after: NonNegativeInt = 1024
    contrast: NonNegative = 1.0
    diversity: NonNegative = 1.0
    beta: UnitInterval = 0.999
    flip: bool = True


@register_method
class AdaContrast(Adapter):
    r"""Learn strong views from the labels that neighbours of weak views agree on, and tell images apart.

    Each image has a weak view w and two strong views, q and k. The pseudo-label y is the argmax of the mean prediction
    of the nearest neighbours of w, in cosine, among the images seen before; until ``refine_after`` images were seen, of
    the prediction for w itself. With unit features :math:`v_q` of the student and :math:`v_k` of the teacher (the key
    encoder), :math:`M_j` the queue of former keys and :math:`y_j` their labels, all weights minimise

    .. math:: L = CE(y, z_q) - \lambda_c \log \frac{\exp(v_q^\top v_k / t)}
        {\exp(v_q^\top v_k / t) + \sum_{j: y_j \ne y} \exp(v_q^\top M_j / t)} + \lambda_d \sum_c \bar p_c \log \bar p_c,

    with :math:`\bar p` the batch's mean prediction for q. The teacher averages the student; its keys enter the queue,
    and its features and predictions of w the bank of neighbours.

    Unlike in the other methods, training passes move BatchNorm's running statistics, with the layers' own momentum, and
    the prediction returned is made **after** the update, by the student with these statistics. A single image has no
    statistics of its own: all passes then use the running ones, which stay.

    The paper adapts for many epochs to one domain. As in the published comparisons of continual methods, here each
    batch is seen once, strong views are not cropped, the bank starts empty and the step size is constant. Differs from
    both published codes: a key leaves the queue together with its label (there leaving keys have the newcomers' labels
    for one step); the teacher sees w before k; exactly ``queue`` neighbours are kept (there up to one batch more).

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> adapter = AdaContrast(net.append(nn.Linear(4, 2)), AdaContrastConfig(queue=16))
        >>> adapter(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "adacontrast"
    summary = "neighbour-refined pseudo-labels and contrastive learning"
    card = Card("CVPR 2022", "everything", "nothing", "5 forwards, 1 backward", "re-implementation", distributed=True)
    Config = AdaContrastConfig
    datasets: ClassVar = {"digits": {"lr": 2e-3, "queue": 1024, "refine_after": 256, "flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Make student and teacher, a queue of random keys and an empty bank of neighbours."""
        config, layer, device, dtype = self.config, classifier(model), self.runtime.device, self.runtime.dtype
        self.networks, size = student_and_teacher(model), config.queue
        self.optimizer = make_optimizer(model.parameters(), "sgd", config.lr, weight_decay=config.weight_decay)
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
        before = SavedStatistics(student, teacher)
        with moving_statistics(student, teacher):
            with torch.no_grad():
                features, weak_logits = self.features_and_logits(student, weak)
                neighbours, neighbour_logits = self.features_and_logits(teacher, weak)
                # Many small operations, once for both views, while a GPU is still busy with the two passes.
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
        sound = weak_logits.isfinite().all() & neighbour_logits.isfinite().all()  # labels and memory depend on both
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
            inferred = self._inferred is not None  # else the student's own statistics, which have just moved
            return self.logits(student, images, batch_statistics=inferred).log_softmax(-1)

    @torch.no_grad()
    def _labels(self, features: Tensor, logits: Tensor) -> Tensor:
        """Pseudo-labels: the vote of the nearest neighbours, or the prediction while there are too few."""
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

    All are unit vectors; ``same`` says which negatives have the class of which query, (batch, queue).
    """
    own = (queries * keys).sum(-1, keepdim=True)
    others = (queries @ negatives.T).masked_fill(same, -torch.inf)
    return -(torch.cat([own, others], 1) / temperature).log_softmax(-1)[:, 0].mean()


def diversity_loss(logits: Tensor) -> Tensor:
    """Negative entropy of the batch's mean prediction: -log C if classes are equally frequent, 0 for one class."""
    mean = logits.softmax(-1).mean(0)
    return (mean * (mean + 1e-8).log()).sum()
