"""The hook that layers and methods call for what concerns a whole batch, which several processes may share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

__all__ = ["Sharing", "current", "use_sharing"]


class Sharing:
    """One process that computes every batch alone: each operation is torch's own.

    `vcotta.nn.distributed` overrides these operations for processes that share a batch. Code that looks beyond one
    image, or draws noise for one, calls them on `current()`.
    """

    is_shared: bool = False

    def split(self, forward: Callable[[Tensor], Tensor], images: Tensor, views: int = 1) -> Tensor:
        """Compute ``forward(images)``, one row per image, of which every process computes its own rows.

        ``views`` follow one another in the batch. The output is the whole batch's in every process; its gradient,
        averaged over processes by `average`, is that of the whole batch.
        """
        return forward(images)

    def whole_batch(self, rows: Tensor) -> Tensor:
        """Inside `split`: gather (rows, ...) of all processes, with the gradient."""
        return rows

    def whole_length(self, rows: Tensor) -> int:
        """Inside `split`: the number of rows of the whole batch, given those of this process."""
        return len(rows)

    def noise_like(self, x: Tensor) -> Tensor:
        """Inside `split`: draw from N(0, 1) in the shape of ``x``; an image's noise is the same in any process."""
        return torch.randn_like(x)

    def var_mean(
        self, x: Tensor, dims: list[int], *, correction: int = 1, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Inside `split`: ``torch.var_mean`` over the whole batch, given this process's rows, with the gradient."""
        return torch.var_mean(x, dims, correction=correction, keepdim=keepdim)

    def average(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Average gradients over the processes; each holds the part that came through its rows, times their number."""
        return list(gradients)


_ALONE = Sharing()
_CURRENT: ContextVar[Sharing] = ContextVar("sharing", default=_ALONE)


def current() -> Sharing:
    """Return the hook in force in this thread; compiled code, which is never shared, always gets the default."""
    return _ALONE if torch.compiler.is_compiling() else _CURRENT.get()


@contextmanager
def use_sharing(sharing: Sharing) -> Iterator[None]:
    """Let `current` return ``sharing`` inside the block, in this thread."""
    token = _CURRENT.set(sharing)
    try:
        yield
    finally:
        _CURRENT.reset(token)
