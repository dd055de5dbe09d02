"""Private random streams: a block of code draws from a seeded stream instead of torch's global one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["OwnRng"]

_TURN = threading.RLock()  # held by the thread whose stream torch's global generators have at the moment


class OwnRng:
    """A seeded stream of random numbers for the CPU and, if there is one, the CUDA device in use.

    Inside ``with rng.scope():`` every torch call draws from this stream; afterwards torch's global generators are as
    they were. Since torch has one generator per device for all threads, a thread waits while another is inside a scope:
    adapters in several threads give exactly what each gives alone, but their steps do not overlap.

    Example:
        >>> with OwnRng(0).scope():
        ...     first = torch.rand(2)
        >>> with OwnRng(0).scope():
        ...     torch.equal(first, torch.rand(2))
        True
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise ValueError(f"Expected `seed` to be a whole number of at least 0, but got {seed!r}.")
        self.device = torch.device(device)
        self.seed = seed
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if self.device.type == "cuda":
            self._states["cuda"] = torch.Generator(self.device).manual_seed(seed).get_state()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Draw from this stream within the block, in this thread's turn; then restore the global generators."""
        with _TURN:
            outer = self._swap(self._states)
            try:
                yield
            finally:
                self._states = self._swap(outer)

    def _swap(self, states: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {"cpu": torch.get_rng_state()}
        torch.set_rng_state(states["cpu"])
        if "cuda" in states:
            found["cuda"] = torch.cuda.get_rng_state(self.device)
            torch.cuda.set_rng_state(states["cuda"], self.device)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """The state as byte tensors."""
        return {kind: state.clone() for kind, state in self._states.items()}

    def load_state_dict(self, states: dict[str, Tensor]) -> None:
        """Continue from a saved state; one saved on another kind of device gives the parts both have."""
        self._states |= {kind: states[kind].clone() for kind in self._states if kind in states}
