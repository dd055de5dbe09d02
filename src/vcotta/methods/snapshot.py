"""A way back for tensors that a step moves before it is known whether the step is taken."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Snapshot"]


class Snapshot:
    """Tensors as they are now, kept in one piece for each type, so that fifty cost a GPU no more launches than one.

    Example:
        >>> statistics = [torch.zeros(2), torch.ones(1)]
        >>> before = Snapshot(statistics)
        >>> _ = statistics[0].fill_(5.0)
        >>> before.restore(unless=torch.tensor(False))
        >>> statistics
        [tensor([0., 0.]), tensor([1.])]
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        self._kept = [(together, _joined(together)) for together in kinds.values()]

    @torch.no_grad()
    def restore(self, unless: Tensor) -> None:
        """Put the tensors back, in place, unless a scalar on their device, which the host need not know, is true."""
        for tensors, before in self._kept:
            values = torch.where(unless, _joined(tensors), before)
            parts = values.split([tensor.numel() for tensor in tensors])
            torch._foreach_copy_(tensors, [part.view_as(t) for part, t in zip(parts, tensors, strict=True)])


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])
