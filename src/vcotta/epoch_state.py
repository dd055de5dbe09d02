"""The state of a training or a warm-up between two epochs, kept in a file to go on from."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from vcotta._messages import differences
from vcotta.interrupts import interrupt_held_back
from vcotta.optimizer_state import load_optimizer
from vcotta.state_files import read_state, write_state

__all__ = ["EpochState", "Stateful"]

_PAUSE = 30.0  # seconds, at least, between two times of saving
_SHARE = 10  # and so many times as long as saving takes, which for a large network is a while


@runtime_checkable
class Stateful(Protocol):
    """Whatever can be saved and restored: networks, optimisers, loaders, random numbers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Go on from a state."""


class EpochState:
    """Keeps parts in a file as epochs pass, every half a minute at most, and restores them from it.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> path, net = Path(tempfile.mkdtemp()) / "state", nn.Linear(2, 2)
        >>> EpochState(path, "example-1", {"model": net}, {"lr": 0.1}).save(3, now=True)
        True
        >>> EpochState(path, "example-1", {"model": net}, {"lr": 0.1}).resume()
        3
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        kind: str,
        parts: Mapping[str, Stateful],
        facts: Mapping[str, Any],
    ) -> None:
        """Name what is kept.

        Args:
            path: The file; None keeps nothing.
            kind: Kind of the file, as for `write_state`.
            parts: What is saved and restored; ``model``, the network, is checked first.
            facts: Plain values that must be the same when the work goes on, its settings.
        """
        self.path = None if path is None else Path(path)
        self.kind, self.parts, self.facts = kind, parts, dict(facts)
        self._next = time.monotonic() + _PAUSE

    def resume(self) -> int:
        """Restore every part, if there is a file, and return the epochs that are done.

        Raises:
            ValueError: The file is damaged, or belongs to another network or other settings.
        """
        if self.path is None or not self.path.exists():
            return 0
        try:
            state = read_state(self.path, self.kind)
        except ValueError as error:
            raise ValueError(f"{error}. Move it away.") from error
        if other := differences(self.facts, {name: state.get(name) for name in self.facts}):
            raise ValueError(
                f"The checkpoint {self.path} was made with other settings: {', '.join(other)}. Go on with those, or "
                "move it away to start anew."
            )
        if odd := (state.keys() - self.facts.keys() - {"epochs"}) ^ self.parts.keys():
            raise ValueError(
                f"The checkpoint {self.path} was made with other parts: {', '.join(sorted(odd))} is on one side only. "
                "Move it away."
            )
        try:
            if _shapes(self.parts["model"].state_dict()) != _shapes(state["model"]):
                raise ValueError("its tensors have other names or shapes")
            for name, part in [*self.parts.items()][::-1]:  # the network last: what others refuse leaves it as it was
                if isinstance(part, torch.optim.Optimizer):
                    load_optimizer(part, state[name])
                else:
                    part.load_state_dict(state[name])
        except (RuntimeError, KeyError, ValueError) as error:
            raise ValueError(
                f"The checkpoint {self.path} belongs to another network or other data: {error}. Move it away."
            ) from error
        return int(state["epochs"])

    @contextmanager
    def interruptible(self, epochs: int) -> Iterator[Callable[[int], None]]:
        """Let Ctrl-C wait for the end of an epoch, where there is a file to go on from; pressed again it does not wait.

        Args:
            epochs: How many there will be.

        Yields:
            A function to be called at the end of each epoch with the number of those done. It saves the parts now and
            then, after the last one in any case, and raises `KeyboardInterrupt`, with where the work can go on, if it
            was asked for.
        """
        told = "Interrupted: the work stops at the end of this epoch, to go on from there; press again to stop at once."
        with interrupt_held_back(self.path is not None, told) as interrupted:

            def after(done: int) -> None:
                saved = self.save(done, now=interrupted() or done == epochs)
                if interrupted() and done < epochs:
                    how = (
                        "are kept: the same command goes on from there" if saved else "were done and could not be kept"
                    )
                    raise KeyboardInterrupt(f"{done} of {epochs} epochs {how}.")

            yield after

    def save(self, epochs: int, *, now: bool = False) -> bool:
        """Keep the parts after so many epochs, unless it is too soon and not asked for ``now``.

        A disk that is full stops nothing: it is told, and the work goes on.

        Returns:
            Whether they were kept.
        """
        began, saved = time.monotonic(), True
        if self.path is None or not (now or began >= self._next):
            return False
        parts = {name: dict(part.state_dict()) for name, part in self.parts.items()}
        try:
            write_state(self.path, self.kind, {**self.facts, "epochs": epochs, **parts})
        except OSError as error:
            saved = False
            warnings.warn(
                f"The state after {epochs} epochs could not be kept: {error}. The work goes on.", stacklevel=2
            )
        ended = time.monotonic()
        self._next = ended + max(_PAUSE, _SHARE * (ended - began))
        return saved


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes of tensors by name; what else a network keeps has none."""
    return {name: getattr(value, "shape", None) for name, value in state.items()}
