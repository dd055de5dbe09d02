"""The slowly averaged copy of a student."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.bayes import inverse_softplus, variational_parameters

__all__ = ["update_teacher"]


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, beta: float) -> None:
    r"""Exponential moving average, in place: teacher <- beta * teacher + (1 - beta) * student (paper, Eq. update_tea).

    Means and point parameters are averaged as they are. Of a variational network the **standard deviation** is
    averaged, not rho: :math:`\bar\sigma \leftarrow \beta\bar\sigma + (1-\beta)\sigma`. Buffers are left alone.

    Example:
        >>> teacher, student = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(teacher.weight), nn.init.ones_(student.weight)
        >>> update_teacher(teacher, student, beta=0.75)
        >>> teacher.weight.item()
        0.25
    """
    rhos = {id(rho) for net in (teacher, student) for _, _, rho in variational_parameters(net)}
    averaged: tuple[list[Tensor], list[Tensor]] = ([], [])
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        if id(old) in rhos:
            sigma = F.softplus(old).lerp_(F.softplus(new), 1 - beta)
            old.copy_(inverse_softplus(sigma))
        else:
            averaged[0].append(old)
            averaged[1].append(new)
    torch._foreach_lerp_(averaged[0], averaged[1], 1 - beta)
