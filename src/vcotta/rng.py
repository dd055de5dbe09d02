"""Randomness of one's own: torch's global generators are borrowed for a block and given back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["OwnRng"]


class OwnRng:
    """A seeded stream of random numbers for the CPU and, if there is one, the CUDA device in use.

    Inside ``with rng.scope():`` every torch call draws from this stream; outside nobody notices it exists. The whole
    state is a pair of byte tensors, so that saving and resuming is a copy.

    Example:
        >>> rng = OwnRng(0)
        >>> before = torch.get_rng_state()
        >>> with rng.scope():
        ...     first = torch.rand(2)
        >>> torch.equal(before, torch.get_rng_state())
        True
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
        """Draw from this stream within the block and restore the global generators after it."""
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
        """Go on from a saved state; a stream saved on another kind of device keeps what both have."""
        self._states |= {kind: states[kind].clone() for kind in self._states if kind in states}
