"""The slowly averaged copy of a student, and the student's own way back to the source."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.bayes import inverse_softplus, variational_parameters
from vcotta.fused import alike, flat, fused, shaped

__all__ = ["restore_randomly", "update_teacher"]


@torch.no_grad()
def update_teacher(
    teacher: nn.Module, student: nn.Module, beta: float, done: Tensor | None = None, *, compiled: bool = False
) -> None:
    r"""Exponential moving average, in place: teacher <- beta * teacher + (1 - beta) * student (paper, Eq. update_tea).

    Means and point parameters are averaged as they are. Of a variational network the **standard deviation** is
    averaged, not rho: :math:`\bar\sigma \leftarrow \beta\bar\sigma + (1-\beta)\sigma`. Buffers are left alone.

    Args:
        teacher: The average.
        student: What is averaged.
        beta: Decay.
        done: Whether to do it at all, a scalar on the networks' device that the host need not know; None for yes.
        compiled: Compile the arithmetic of standard deviations, which pays on a GPU (``Runtime.compile``).

    Example:
        >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
        >>> update_teacher(teacher, student, beta=0.75)
        >>> teacher.weight.item()
        0.25
    """
    if beta == 1:
        return  # rho would drift by rounding
    rhos = {id(rho) for _, _, rho in variational_parameters(teacher)}
    pairs: list[tuple[Tensor, Tensor]] = list(zip(teacher.parameters(), student.parameters(), strict=True))
    olds = [old for old, _ in pairs if id(old) not in rhos]
    averages = [*torch._foreach_lerp(olds, [new for old, new in pairs if id(old) not in rhos], 1 - beta)]
    for old, new in pairs:
        if id(old) in rhos:
            olds.append(old)
            if compiled and alike(old, new):
                averages.append(shaped(fused(_average_rho)(flat(old), flat(new), beta), old))
            else:
                averages.append(_average_rho(old, new, beta))
    if done is not None:
        averages = [torch.where(done, average, old) for average, old in zip(averages, olds, strict=True)]
    torch._foreach_copy_(olds, averages)


def _average_rho(old: Tensor, new: Tensor, beta: float) -> Tensor:
    """The rho whose standard deviation is the average of two others'."""
    return inverse_softplus(torch.lerp(F.softplus(old), F.softplus(new), 1 - beta))


@torch.no_grad()
def restore_randomly(student: nn.Module, source: nn.Module, share: float, done: Tensor) -> None:
    """Put each element of the student's parameters back to the source's with probability ``share`` (CoTTA).

    Args:
        student: What is restored, in place.
        source: Where to.
        share: The probability, drawn for every element by itself.
        done: Whether to do it at all, a scalar on the networks' device that the host need not know.

    Example:
        >>> student, source = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> restore_randomly(student, source, 1.0, torch.tensor(True))
        >>> torch.equal(student.weight, source.weight)
        True
    """
    if share:
        for parameter, original in zip(student.parameters(), source.parameters(), strict=True):
            mask = torch.rand_like(parameter, dtype=torch.float32) < share
            parameter.copy_(torch.where(mask & done, original, parameter))
