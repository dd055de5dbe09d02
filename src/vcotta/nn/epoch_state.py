"""Checkpoints of a training or a warm-up between epochs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from vcotta._util.errors import differences
from vcotta._util.signals import interrupt_held_back
from vcotta._util.tensorfile import read_state, write_state
from vcotta._util.warn import warn
from vcotta.nn.inputs import other_shape
from vcotta.nn.optim import load_optimizer

__all__ = ["EpochState", "Stateful"]

_PAUSE = 30.0  # seconds between two checkpoints, at least
_SHARE = 10  # and at least so many times as long as writing one takes
_GRACE = 10.0  # seconds that Ctrl-C waits for the end of an epoch


@runtime_checkable
class Stateful(Protocol):
    """What can be saved and restored: networks, optimisers, loaders, random numbers."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: Any) -> Any:
        """Restore a state."""


class EpochState:
    """A checkpoint file of a training, written after epochs, at most every half a minute.

    Args:
        path: The file; None writes nothing.
        kind: Kind of the file, as for `write_state`.
        parts: What is saved and restored; ``model``, the network, is checked first.
        facts: Settings, plain values, that must be the same when the training is resumed.

    Example:
        >>> import tempfile
        >>> from torch import nn
        >>> state = EpochState(Path(tempfile.mkdtemp()) / "state", "example-1", {"model": nn.Linear(2, 2)}, {"lr": 0.1})
        >>> state.save(3, now=True), state.resume()
        (True, 3)
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, kind: str, parts: Mapping[str, Stateful], facts: Mapping[str, Any]
    ) -> None:
        self.path = None if path is None else Path(path)
        self.kind, self.parts, self.facts = kind, parts, dict(facts)
        self._next = time.monotonic() + _PAUSE
        self._in_file = 0  # epochs whose result is in the file
        self._interrupted: Callable[[], bool] = lambda: False
        self._stop_at: float | None = None

    def resume(self) -> int:
        """Restore every part, if there is a file, and return the number of finished epochs.

        Raises:
            ValueError: The file is damaged, or belongs to another network or other settings.
        """
        if self.path is None or not self.path.exists():
            return 0
        try:
            state = read_state(self.path, self.kind)
        except ValueError as error:
            raise ValueError(f"{error} Move it away.") from error
        if other := differences(self.facts, {name: state.get(name) for name in self.facts}):
            raise ValueError(
                f"The checkpoint {self.path} was made with other settings: {', '.join(other)}. Use those, or move it "
                "away to start anew."
            )
        if odd := (state.keys() - self.facts.keys() - {"epochs"}) ^ self.parts.keys():
            raise ValueError(
                f"The checkpoint {self.path} was made with other parts: {', '.join(sorted(odd))} is on one side only. "
                "Move it away."
            )
        try:
            if differing := other_shape(self.parts["model"].state_dict(), state["model"]):
                raise ValueError(differing)
            for name, part in [*self.parts.items()][::-1]:  # the network last: if another part fails, it is unchanged
                if isinstance(part, torch.optim.Optimizer):
                    load_optimizer(part, state[name])
                else:
                    part.load_state_dict(state[name])
        except (RuntimeError, KeyError, ValueError) as error:
            raise ValueError(
                f"The checkpoint {self.path} belongs to another network or other data: {error}. Move it away."
            ) from error
        self._in_file = int(state["epochs"])
        return self._in_file

    @contextmanager
    def interruptible(self, epochs: int) -> Iterator[Callable[[int], None]]:
        """Let Ctrl-C wait a little for the end of the epoch, if there is a file; a second Ctrl-C stops at once.

        Yields a function to call after each epoch with the number finished. It saves the parts now and then and after
        the last of the ``epochs``, and raises `KeyboardInterrupt` if Ctrl-C was pressed. Call `after_batch` too: it
        does not wait for the end of a long epoch.
        """
        message = f"Interrupted: stops with this epoch or in about {_GRACE:.0f} s; press again to stop at once."
        with interrupt_held_back(self.path is not None, message) as interrupted:
            self._interrupted, self._stop_at = interrupted, None

            def after(done: int) -> None:
                saved = self.save(done, now=interrupted() or done == epochs)
                if interrupted() and done < epochs:
                    how = "are saved: run the same command to continue" if saved else "were done and could not be saved"
                    raise KeyboardInterrupt(f"{done} of {epochs} epochs {how}.")

            yield after

    def after_batch(self, done: int, epochs: int) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed a while ago and all ``done`` epochs are in the file.

        If they are not, epochs are shorter than the pause between two checkpoints, and the end of this one is near.
        """
        if not self._interrupted():
            return
        now = time.monotonic()
        self._stop_at = now + _GRACE if self._stop_at is None else self._stop_at
        if now >= self._stop_at and done == self._in_file:
            saved = f"{done} of {epochs} epochs are saved: run the same command to continue"
            kept = saved if done else "Nothing is saved"
            raise KeyboardInterrupt(f"{kept}. Epoch {done + 1} was not finished and is not kept.")

    def save(self, epochs: int, *, now: bool = False) -> bool:
        """Write the checkpoint, unless the last one is recent and ``now`` is false; return whether it was written."""
        began, saved = time.monotonic(), True
        if self.path is None or not (now or began >= self._next):
            return False
        parts = {name: dict(part.state_dict()) for name, part in self.parts.items()}
        try:
            write_state(self.path, self.kind, {**self.facts, "epochs": epochs, **parts})
        except OSError as error:
            saved = False
            warn(f"The state after {epochs} epochs could not be saved: {error}. The work continues.")
        self._in_file = epochs if saved else self._in_file
        ended = time.monotonic()
        self._next = ended + max(_PAUSE, _SHARE * (ended - began))
        return saved
