"""Which of several streams learned something else than the others: how far each is from them, and in what direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["agreements", "distances", "outliers"]

Networks = Mapping[str, Mapping[str, Tensor]]
"""The networks of a state by role, with the source as ``start``; each has its tensors by name."""

LIMIT = 5.0
"""Refused is what is this many times as far from the median as the others are."""
LEAST_AGREEMENT = 0.1
"""Refused is what agrees less than this share of what the others do."""
RELATED = 0.1
"""Agreement of the others from which that is judged."""


def distances(states: Sequence[Networks]) -> list[float]:
    r"""Return how far each state is from the median of all, in standard deviations of the source.

    The median is taken number by number over the states, of means, point parameters and logarithms of standard
    deviations. For each tensor of a network the distance is the root of the mean, over its numbers, of

    .. math:: \left(\frac{\mu_k - \tilde\mu}{\sigma_0}\right)^2 + 2 \left(\log\frac{\sigma_k}{\tilde\sigma}\right)^2

    or either term of it, which is twice the divergence to second order. A point parameter has no :math:`\sigma_0`;
    its unit is the source's usual ratio of :math:`\sigma_0` to the size of weights times its own size. A state's
    distance is that of its farthest tensor in any network, so that nothing hides among millions of other weights. It
    is infinite where a number is not finite.
    """
    far = [0.0] * len(states)
    for role in states[0].keys() - {"start"}:
        for own, middle, unit in _compared([state[role] for state in states], states[0]["start"]):
            apart = ((own - middle) / unit).square().flatten(1).mean(1).sqrt()
            far = [max(a, b) if math.isfinite(b) else math.inf for a, b in zip(far, apart.tolist(), strict=True)]
    return far


def agreements(states: Sequence[Networks]) -> list[float]:
    r"""Return the cosine between what each stream learned and what the others did on average, -1 to 1.

    What stream k learned is :math:`u_k`, the change of its means and point parameters since the source in the units of
    `distances`, divided by its length, so that long streams do not outweigh others. The agreement is the cosine of
    :math:`u_k` and :math:`\sum_{j \neq k} u_j`. NaN for a stream that learned nothing.

    Example:
        >>> start, ours = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 1.0])
        >>> others = [torch.tensor([3.0, 1.0]), torch.tensor([1.0, 2.0])]
        >>> nets = [{"start": {"w": start}, "teacher": {"w": w}} for w in (ours, *others)]
        >>> [round(one, 2) for one in agreements(nets)]
        [0.71, 0.71, 0.0]
    """
    products = torch.zeros(len(states), len(states), dtype=torch.float64)
    start = states[0]["start"]
    for name in _numbers(states[0]["teacher"]):
        if _is_rho(name, start):
            continue
        moves = torch.stack([state["teacher"][name].double() - start[name].double() for state in states])
        moved = (moves / _unit(start, name)).flatten(1)
        products += moved @ moved.T
    lengths = products.diagonal().sqrt()
    cosines = products / lengths.outer(lengths)
    found = []
    for place in range(len(states)):
        others = [other for other in range(len(states)) if other != place and lengths[other] > 0]
        together = cosines[others][:, others].sum().clamp_min(0).sqrt()
        found.append(float(cosines[place, others].sum() / together))
    return found


def outliers(states: Sequence[Networks], limit: float | None = LIMIT) -> tuple[list[int], list[float], list[float]]:
    """Return the places of outliers, from 0, and `distances` and `agreements` of all.

    A state that is not finite is one. So is, of three or more, one ``limit`` times as far from the median as the
    others' median; and one whose agreement is below `LEAST_AGREEMENT` times the median of the others', if that is
    `RELATED` or more. With None only states that are not finite are.
    """
    far, agree = distances(states), [math.nan] * len(states)
    broken = [place for place, one in enumerate(far) if not math.isfinite(one)]
    fine = [place for place in range(len(states)) if place not in broken]
    if len(fine) < 2:
        return broken, far, agree
    for place, one in zip(fine, agreements([states[place] for place in fine]), strict=True):
        agree[place] = one
    if limit is None or len(fine) < 3:
        return broken, far, agree
    found = []
    for place in fine:
        apart, along = ([many[other] for other in fine if other != place] for many in (far, agree))
        usual = _median([one for one in along if not math.isnan(one)])
        unrelated = usual >= RELATED and agree[place] < LEAST_AGREEMENT * usual
        if far[place] > limit * _median(apart) or unrelated:
            found.append(place)
    return sorted(broken + found), far, agree


def _compared(nets: Sequence[Mapping[str, Tensor]], start: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """For each tensor: its numbers in every network, their median, and the unit of distance."""
    for name in _numbers(nets[0]):
        own = torch.stack([net[name].double() for net in nets])
        unit = _unit(start, name)
        if _is_rho(name, start):
            own, unit = 2**0.5 * F.softplus(own).log(), torch.ones(())
        ranked = own.nan_to_num(0.0).sort(0).values
        yield own, (ranked[(len(own) - 1) // 2] + ranked[len(own) // 2]) / 2, unit


def _unit(start: Mapping[str, Tensor], name: str) -> Tensor:
    """The standard deviation of a weight in the source, or what stands for it."""
    if (rho := start.get(f"{name}_rho")) is not None:
        return F.softplus(rho.double())
    ratios = [
        F.softplus(start[f"{other}_rho"].double()).mean() / _size(tensor)
        for other, tensor in start.items()
        if tensor.ndim > 1 and f"{other}_rho" in start
    ]
    ratio = torch.stack(ratios).mean() if ratios else torch.ones(())
    return ratio * _size(start[name])


def _size(tensor: Tensor) -> Tensor:
    """Root mean square, at least 1e-3: a shift may be zero in the source."""
    return tensor.double().square().mean().sqrt().clamp_min(1e-3)


def _is_rho(name: str, net: Mapping[str, Tensor]) -> bool:
    return name.endswith("_rho") and name.removesuffix("_rho") in net


def _numbers(net: Mapping[str, Tensor]) -> Iterator[str]:
    """The names of tensors that hold numbers to learn, and not counts."""
    return (name for name, tensor in net.items() if tensor.is_floating_point())


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values).quantile(0.5)) if values else math.nan
