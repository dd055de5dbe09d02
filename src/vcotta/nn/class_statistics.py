"""BatchNorm's statistics inferred from the source's, the batch's, and those of recent batches, class by class.

A camera shows classes in clumps, and the statistics of a batch of two classes say more about these classes than about
the weather. So evidence counts classes, not images: sums over images are kept by class, and every class counts alike.
The source's statistics are the prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vcotta.nn.batch_norm import Correction
from vcotta.nn.pooled_statistics import Known, Pool

__all__ = ["ClassStatistics", "Look", "class_diversity", "expected_entropy", "share_in_random_order"]

PRIOR_IMAGES = 8
"""Images that the source's statistics count as, see `share_in_random_order`."""
ENOUGH = 200
"""Images, of all classes together, with which a batch needs no memory."""
ENOUGH_RANDOM = 32
"""The same where labels come in random order: more of the memory made short domains worse. Beside more images the
source's statistics soon count for nothing."""
SMALL = 8
"""Fewest images whose classes say whether a batch holds few."""
MEMORY = 1000
"""Images over which the memory forgets (by a factor e)."""
CAUTIOUS = 0.1
"""Largest share of the batch in the pass that looks for its classes."""
CHANGE = 3.0
"""Inverse of the shift, in variances between images, by which a new domain is recognised."""
GROUPS = 100
"""Most groups of classes; of more classes, neighbours share one."""


@lru_cache(maxsize=64)
def expected_entropy(images: int, classes: int) -> float:
    """Expected entropy of the class shares of so many images drawn uniformly, in nats; exact."""
    if classes < 2:
        return 0.0
    total, chance = 0.0, 1 / classes
    log_rest = math.log1p(-chance)
    for count in range(1, images + 1):
        ways = math.lgamma(images + 1) - math.lgamma(count + 1) - math.lgamma(images - count + 1)
        share = count / images
        total -= math.exp(ways + count * math.log(chance) + (images - count) * log_rest) * share * math.log(share)
    return classes * total


@dataclass
class Look:
    """What was inferred of one batch.

    Attributes:
        log_probs: The classes of its images, as far as the first look tells, (batch, classes).
        logits: What the source network says with the inferred statistics, (batch, classes).
        diversity: How many classes it holds, as a share of those in random order, 0 to 1. A scalar on the device.
        mixed: The probability that the stream's labels come in random order. A scalar on the device.
        share: The share of batch and memory in the last layer's statistics; the rest is the source's. A scalar on the
            device.
        correction: What other networks do after they normalised the batch by its own statistics.
        memory: The memory with this batch in it.
    """

    log_probs: Tensor
    logits: Tensor
    diversity: Tensor
    mixed: Tensor
    share: Tensor
    correction: Correction
    memory: Tensor


class ClassStatistics:
    r"""The memory of a stream, by class, and the inference of BatchNorm's statistics from it.

    On each batch the source network runs twice. A cautious first pass tells the responsibilities :math:`r_{ic}` of the
    classes for the images. With the sums by class of the images' means :math:`S_c = \sum_i r_{ic} m_i` and the counts
    :math:`N_c` of batch and memory together (the memory adds what the batch lacks of T images), the second pass has

    .. math:: \mu = (1-s)\mu_S + s\,\frac{\sum_c S_c / (N_c + T)}{\sum_c \omega_c}, \qquad
        \omega_c = \frac{N_c}{N_c + T}

    and likewise for second moments. In the last layer the share is :math:`s = D n / (n + 8)`, with the diversity D of
    :math:`\omega`, the number of classes as a share of those in random order, and the effective number n of images. All
    classes: the statistics of the batch. One class: those of the source. As far as labels come in random order, which
    the label prior tells, each image counts alike instead, and the share is that of `share_in_random_order`: which
    classes a network finds there says more about the network than about the batch.

    Early layers see style and late ones classes, so the share rises from layer L to the first one, in both passes, to
    :math:`s_B`, the share of a batch of B images in random order (`share_in_random_order`):

    .. math:: s_l = s + \frac{L - l}{L - 1} \left(s_B - s\right)_+

    Without it a batch of few classes from a strongly shifted domain, a camera at night, looks to the first pass like
    one class whatever it holds, and confirms itself.

    The memory is scaled by :math:`e^{-(3z)^2}` first, where z is the shift of the images' statistics in the first
    layer between memory and batch, class by class, in units of the variance between images of a class, less what
    chance explains. So it ends with its domain.

    What the two passes found is the `Correction` of all other networks: on the source it gives the inferred
    statistics exactly. Not in the paper. All numbers stay on the device.

    Attributes:
        memory: Sums over images, (groups of classes, columns): number, first and second moments of all channels, and
            the first layer's features with their squares. None at the start.
        known: Of all channels, first and second moments in the source, and how early their layer is, from 1, the first,
            to 0, the last; (3, channels). None at the start.
    """

    def __init__(self) -> None:
        self.memory: Tensor | None = None
        self.known: Tensor | None = None

    @torch.no_grad()
    def infer(
        self,
        forward: Callable[[], Tensor],
        label: Callable[[Tensor], tuple[Tensor, Tensor]],
        images: int,
        *,
        begins: bool = False,
    ) -> Look:
        """Look at a batch; the memory stays as it is, see `Look.memory`.

        Args:
            forward: The logits of the source network for the batch, (batch, classes); BatchNorm in eval mode.
            label: Gives, for log-probabilities of the network, those with the label prior, and the probability that the
                stream's labels come in random order.
            images: The size of the batch.
            begins: Whether the stream has just begun; labels of a batch of few classes do not seem shuffled then.
        """
        if self.known is None:
            with Known() as source:
                forward()
            self.known = source.known()
        first = self._first_pool(self.known, images)
        with first:
            log_probs, mixed = label(forward().log_softmax(-1))
        who = _in_groups(log_probs.exp().nan_to_num(0.0))
        rows = first.rows
        before = who.new_zeros(who.shape[1], rows.shape[1]) if self.memory is None else self.memory
        memory = before * _keep(before, who.T @ rows, first.features)
        diversity = class_diversity(who.mean(0), images)
        if begins and images >= SMALL:  # nothing else is known, and the first class must not be taken for the domain
            mixed = mixed * (2 * diversity).clamp_max(1)
        per_image, by_class, share = _weights(who, memory[:, 0], mixed)
        pool = Pool(per_image, self._shares(share, images), by_class @ memory, self.known)
        with pool:
            logits = forward()
        new = math.exp(-images / MEMORY) * memory + who.T @ pool.rows
        sound = log_probs.isfinite().all() & new.isfinite().all()  # a broken batch is not remembered
        memory = torch.where(sound, new, before)
        return Look(log_probs, logits, diversity, mixed, share, pool.correction(), memory)

    def _first_pool(self, known: Tensor, images: int) -> Pool:
        """The batch with a cautious share, and the memory for the rest as far as its classes are balanced."""
        most = min(CAUTIOUS, share_in_random_order(images))
        if self.memory is None:
            return Pool(
                known.new_full((images,), 1 / images), self._shares(known.new_tensor(most), images), None, known
            )
        counts = self.memory[:, 0]
        enough = max(images, ENOUGH)
        weight = counts / (counts + enough / len(counts))
        total = weight.sum().clamp_min(1e-9)
        seen = counts.sum().clamp_max(enough)
        trust = (1 - most) * class_diversity(weight / total, enough) * seen / (seen + PRIOR_IMAGES)
        share = most + trust
        each = trust / share / (counts + enough / len(counts)) / total
        return Pool((most / share / images).expand(images), self._shares(share, images), each @ self.memory, known)

    def _shares(self, last: Tensor, images: int) -> Tensor:
        """The share of images and memory for each channel, given that in the last layer."""
        assert self.known is not None
        shares: Tensor = last + self.known[2] * (share_in_random_order(images) - last).clamp_min(0)
        return shares

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a resumed stream needs."""
        return {} if self.memory is None or self.known is None else {"memory": self.memory, "known": self.known}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str) -> None:
        """Continue from a `state_dict`."""
        found = (state.get(name) for name in ("memory", "known"))
        self.memory, self.known = (None if one is None else one.to(device, copy=True) for one in found)


def _in_groups(probabilities: Tensor) -> Tensor:
    """Sum the probabilities of neighbouring classes so that there are at most `GROUPS`."""
    classes = probabilities.shape[1]
    size = -(-classes // GROUPS)
    padded = F.pad(probabilities, (0, -classes % size))
    grouped: Tensor = padded.unflatten(1, (-1, size)).sum(-1)
    return grouped


def class_diversity(shares: Tensor, images: int) -> Tensor:
    r"""How many classes there are beyond one, as a share of those of so many images in random order, 0 to 1.

    With k the exponential of the entropy of the classes' shares, and k' the same for n images drawn uniformly from the
    classes (`expected_entropy`), it is :math:`(k - 1) / (k' - 1)`. One class, or one image, gives 0.

    Example:
        >>> class_diversity(torch.tensor([0.25, 0.25, 0.25, 0.25]), images=4)
        tensor(1.)
        >>> class_diversity(torch.tensor([0.0, 0.0, 1.0, 0.0]), images=4)
        tensor(0.)
    """
    if images < 2:
        return torch.zeros_like(shares[0])
    entropy = torch.special.entr(shares).sum()
    return (torch.expm1(entropy) / max(math.expm1(expected_entropy(images, len(shares))), 1e-9)).clamp(0, 1)


def share_in_random_order(images: Any) -> Any:
    r"""Share of so many images, a number or a tensor, in the statistics where labels come in random order.

    :math:`s_B = B / (B + 8 \min(1, (32 / B)^2))`: the source's statistics count as eight images, and as fewer where
    there are more than 32, so that large batches have their own statistics, as published methods do.

    Example:
        >>> [round(share_in_random_order(images), 3) for images in (1, 8, 32, 64, 200)]
        [0.111, 0.5, 0.8, 0.97, 0.999]
    """
    prior = PRIOR_IMAGES * ENOUGH_RANDOM**2 / images**2
    prior = prior.clamp_max(PRIOR_IMAGES) if isinstance(prior, Tensor) else min(PRIOR_IMAGES, prior)
    return images / (images + prior)


def _weights(who: Tensor, remembered: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the batch's images and of the memory's classes, which sum to 1, and their share beside the source."""
    images, classes = who.shape
    enough = max(images, ENOUGH)
    target, present = enough / classes, who.sum(0)
    used = ((target - present).clamp_min(0) / remembered.clamp_min(1e-6)).clamp_max(1)
    counts = present + used * remembered
    weight = counts / (counts + target)
    total = weight.sum().clamp_min(1e-9)
    each = 1 / (counts + target) / total
    effective = total.square() / (weight.square() / counts.clamp_min(1e-6)).sum().clamp_min(1e-9)
    effective = torch.minimum(effective, counts.sum())
    share = class_diversity(weight / total, enough) * effective / (effective + PRIOR_IMAGES)
    # In random order every image counts alike; the memory may be older and is used evenly.
    lacking = remembered.clamp_max(max(0, ENOUGH_RANDOM - images) / classes)
    all_images = images + lacking.sum()
    alike = (1 / all_images).expand(images)
    from_memory = lacking / remembered.clamp_min(1e-6) / all_images
    most = share_in_random_order(all_images)
    return (who @ each).lerp(alike, mixed), (used * each).lerp(from_memory, mixed), share.lerp(most, mixed)


def _keep(memory: Tensor, batch: Tensor, features: int) -> Tensor:
    """The share of the memory that belongs to the batch's domain, by the first layer's features."""
    before, now = memory[:, 0], batch[:, 0]
    both = before * now / (before + now).clamp_min(1e-6)
    shares = both / both.sum().clamp_min(1e-6)

    def mean(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        tail = sums[:, sums.shape[1] - 2 * features :] / counts.clamp_min(1e-6).unsqueeze(1)
        return tail[:, :features], tail[:, features:]

    first, second = mean(memory + batch, before + now)
    variance = (shares @ (second - first.square())).clamp_min(1e-6)
    shift = (shares @ (mean(batch, now)[0] - mean(memory, before)[0])).square() / variance
    chance = (shares.square() / both.clamp_min(1e-6)).sum()
    beyond = (shift.mean() - 3 * chance).clamp_min(0)
    kept, comparable = torch.exp(-(CHANGE * beyond).square()), (both.sum() > 0.3).to(beyond.dtype)
    return comparable * kept + (1 - comparable)
