"""The adapter behind the server: a step succeeds as a whole, or it is undone.

To undo a step the engine keeps no copy of the state. It goes back to a restore point, which is the adapter's start or
its latest checkpoint, and repeats the batches since then from a journal of their images. The state is then what it
was: bit for bit on a CPU, on a GPU as far as its kernels repeat their results. When the journal is full, a new
checkpoint becomes the restore point.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vcotta.methods import Adapter
from vcotta.methods.guard import DiversityWarning
from vcotta.methods.io import save
from vcotta.methods.state import state_bytes
from vcotta.serve.adapters import Adapters
from vcotta.serve.logs import hold_warnings
from vcotta.serve.state_store import StateStore

__all__ = ["Answer", "Engine", "StateLostError"]

_log = logging.getLogger("vcotta.serve")
_LOST = (
    "A step failed and could not be undone (see the server's log), so the model's state is unknown. "
    "Reset the model with POST /v1/reset, or restart the server to continue from its latest checkpoint."
)

_UNREADABLE = (
    "The state of this stream cannot be read from the disk (see the server's log). Restore its folder and restart the "
    "server, or begin anew: reset the stream."
)


class StateLostError(RuntimeError):
    """A failed step could not be undone; nothing is served until a reset or a restart."""


@dataclass(frozen=True)
class Answer:
    """The predictions of a batch, one row an image, on the CPU.

    Attributes:
        probabilities: (images, classes).
        entropy: Entropy of the prediction in nats, (images,).
        more: Further values for each image by name: ``predictive_entropy``, ``expected_entropy``,
            ``mutual_information``, ``alpha``, ``abstain``.
        notes: `Adapter.last` of the step, as plain JSON values.
        adapted: Whether an update of the networks was taken.
        warned: Texts of the step's warnings of low class diversity that are not in the log yet.
    """

    probabilities: Tensor
    entropy: Tensor
    more: dict[str, Tensor]
    notes: dict[str, Any]
    adapted: bool = False
    warned: tuple[str, ...] = ()

    def part(self, start: int, stop: int) -> Answer:
        """Return the rows of one request in a pooled batch."""
        rows = slice(start, stop)
        more = {name: values[rows] for name, values in self.more.items()}
        return replace(self, probabilities=self.probabilities[rows], entropy=self.entropy[rows], more=more)


class Engine:
    """An adapter whose failed steps are undone, and whose state can be put to disk while nobody needs it.

    Args:
        adapters: Builds the adapter.
        store: Where checkpoints are saved; None for a temporary folder.
        journal_batches: Batches the journal may hold, which bounds the time to undo a step.
        journal_bytes: Bytes the journal may hold; None for the size of the network, but at least 256 MiB.

    Attributes:
        changes: State version: counts updates and resets, survives restarts.
        steps: Batches since the start or the latest reset; None while a state on disk was not loaded yet.
        skipped: Skipped updates among them.
        lost: Why the state cannot be used, None if it can.
    """

    def __init__(
        self,
        adapters: Adapters,
        *,
        store: StateStore | None = None,
        journal_batches: int = 256,
        journal_bytes: int | None = None,
    ) -> None:
        self.store = StateStore(None, adapters.bundle) if store is None else store
        self.changes = self.store.newest()
        self.steps: int | None = None if self.changes else 0
        self.skipped = 0
        self.lost: str | None = None
        self._adapters = adapters
        self._adapter: Adapter | None = None
        self._resumed = self._can_undo = False
        self._journal: list[Tensor] = []
        self._journal_batches = journal_batches
        self._journal_bytes = max(adapters.source_bytes, 256 * 2**20) if journal_bytes is None else journal_bytes
        self._state_bytes = 0

    def resume(self) -> None:
        """Continue from the newest checkpoint, if there is one; for errors see `StateStore.resume`."""
        adapter = self._adapters.build()
        self.changes = self.store.resume(adapter)
        self._resumed = self._can_undo = True
        self._hold(adapter)

    @property
    def adapter(self) -> Adapter:
        """The adapter, which is loaded from the disk if it is there.

        Raises:
            StateLostError: If the state on the disk cannot be read.
        """
        if self._adapter is None:
            try:
                if self._resumed:
                    adapter = self._adapters.build()
                    self.store.restore(adapter)
                    self._hold(adapter)
                else:
                    self.resume()
            except (OSError, ValueError) as error:
                _log.exception("A state could not be loaded")
                raise StateLostError(_UNREADABLE) from error
        assert self._adapter is not None
        return self._adapter

    @property
    def awake(self) -> bool:
        """Whether the adapter is in memory."""
        return self._adapter is not None

    @property
    def nbytes(self) -> int:
        """Bytes in memory: the state, without the source network, and the images of the journal."""
        return self._state_bytes + sum(batch.nbytes for batch in self._journal)

    def sleep(self) -> bool:
        """Put the state to disk and free its memory; return whether that succeeded."""
        if self.lost is None and (self._journal or not self._can_undo) and self.awake and not self.save():
            return False
        self._adapter, self._state_bytes = None, 0
        self._journal.clear()
        return True

    def adapt(self, images: Tensor, finish: Callable[[Answer], object] = lambda _: None) -> Answer:
        """Predict a batch and adapt to it; if the step fails, or ``finish`` with its answer, it is undone.

        Raises:
            StateLostError: If a failed step, this one or an earlier one, could not be undone.
        """
        self._load()
        try:
            answer = self._step(images)
            kept = _compact(images)
            finish(answer)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # frees the activations of the failed step
            self._undo()
            raise
        self.changes += 1
        self._journal.append(kept)
        self._count()
        full = len(self._journal) >= self._journal_batches
        if full or sum(batch.nbytes for batch in self._journal) >= self._journal_bytes:
            self._can_undo = self.save()
            self._journal.clear()
        return answer

    def try_out(self, images: Tensor) -> Answer:
        """Take a step and undo it, whether it fails or not; errors as for `adapt`."""
        self._load()
        if self._journal or not self._can_undo:
            self.save()  # so that undoing repeats no batch
        try:
            answer = self._step(images)
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # frees the activations of the failed step
            self._undo()
            raise
        self._undo()
        return answer

    def predict(self, images: Tensor, coverage: float | None = None) -> Answer:
        """Predict a batch without adapting to it; ``coverage`` is the share of images that do not abstain.

        Raises:
            StateLostError: If an earlier step failed and could not be undone.
        """
        return predicted(self._load(), images, coverage)

    def predict_as_source(self, images: Tensor, coverage: float | None = None) -> Answer:
        """Predict a batch as the source network does; the state is not needed and does not change."""
        return predicted(self._adapters.source, images, coverage)

    def predict_normalised(self, images: Tensor) -> Answer | None:
        """Predict as the source network normalised by the batch; None if it has no BatchNorm."""
        adapter = self._adapters.normalised
        return None if adapter is None else predicted(adapter, images)

    def export(self, path: Path) -> None:
        """Write the adapter to a file that `vcotta.load` reads; errors as for `predict`."""
        save(self._load(), path)

    def reset(self) -> None:
        """Return to the adapter's start; a state that cannot be read is replaced."""
        if self._adapter is None:
            self.store.begin()
            self._hold(self._adapters.build())
        else:
            self._adapter.reset()
            self._count()
        self.store.start_anew()
        self._journal.clear()
        self.changes = max(self.changes, self.store.newest()) + 1
        self._resumed = True
        self._can_undo, self.lost = True, None
        if not self.saved:
            self.save()  # or a kill would bring the state from before the reset back

    def save(self) -> bool:
        """Write a checkpoint, which becomes the restore point; return whether that succeeded."""
        if self.lost is not None or not self.store.save(self.adapter, self.changes):
            return False
        self._journal.clear()
        self._can_undo = True
        return True

    def checkpoint(self) -> Path | None:
        """Return the file with the current state, which is written if need be; None for the adapter's start.

        Raises:
            OSError: It cannot be written.
            StateLostError: As for `predict`.
        """
        if self.lost is not None:
            raise StateLostError(self.lost)
        if self.awake and (self._journal or not self._can_undo) and not self.save():
            raise OSError("see the server's log")
        return None if self.steps == 0 else self.store.current()

    def write_next(self, state: dict[str, Any]) -> bool:
        """Write a state, made from that of `checkpoint`, as the next one; return whether that succeeded.

        `drop_next` or `continue_with_next` must follow before anything else.
        """
        return self.store.save(state, self.changes + 1)

    def drop_next(self, path: Path) -> None:
        """Remove what `write_next` wrote; ``path`` is the file that `checkpoint` returned."""
        self.store.go_back(path, self.changes)

    def continue_with_next(self) -> None:
        """Continue with what `write_next` wrote, as one change; it is loaded when it is needed."""
        self.changes += 1
        self._adapter, self._state_bytes = None, 0
        self._journal.clear()
        self._resumed = self._can_undo = True

    @property
    def saved(self) -> bool:
        """Whether the current state is on disk, or need not be."""
        return self.lost is None and self.store.has(self.changes)

    @property
    def saved_changes(self) -> int | None:
        """The state version that a killed process would continue from; None if states need not survive."""
        return self.store.saved_changes

    @property
    def saves_each_step(self) -> bool:
        """Whether each step must be on disk before it is answered."""
        return self.store.every == 0

    def due(self) -> float | None:
        """Seconds until a checkpoint is due, None if there is nothing to save."""
        return None if self.lost is not None else self.store.due(self.changes)

    def _hold(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._count()

    def _count(self) -> None:
        assert self._adapter is not None
        self.steps, self.skipped = self._adapter.steps, self._adapter.skipped
        self._state_bytes = state_bytes(self._adapter)

    def _step(self, images: Tensor) -> Answer:
        with hold_warnings(DiversityWarning) as held:  # the log gets them only if the step is not undone
            log_probs = self.adapter(images)
        answer = _answer(log_probs, _plain(self.adapter.last))
        return replace(answer, adapted=_took_update(self.adapter), warned=tuple(held))

    def _undo(self) -> None:
        """Go back to the restore point and repeat the batches since then."""
        try:
            if not self._can_undo:
                raise RuntimeError("the latest checkpoint could not be written")
            self.store.restore(self.adapter)
            for images in self._journal:
                self._step(_expanded(images))
        except Exception as error:
            _log.exception("A failed step could not be undone")
            self.lost = _LOST
            raise StateLostError(self.lost) from error

    def _load(self) -> Adapter:
        """Return the adapter if its state can be used."""
        if self.lost is not None:
            raise StateLostError(self.lost)
        return self.adapter


def predicted(adapter: Adapter, images: Tensor, coverage: float | None = None) -> Answer:
    """Let an adapter predict a batch without adapting to it."""
    seen = adapter.predict(images, coverage=coverage)
    names = ("predictive_entropy", "expected_entropy", "mutual_information", "alpha", "abstain")
    more = {name: values.cpu() for name in names if (values := getattr(seen, name)) is not None}
    return _answer(seen.probabilities.log(), {}, **more)


def _took_update(adapter: Adapter) -> bool:
    """Whether the latest step changed the networks and the guard left the change in place."""
    last = adapter.last
    action = (last.get("guard") or {}).get("action", "note")
    if last["skipped"] or not adapter.networks:
        return False
    if "updated" in last:
        return bool(last["updated"]) and action != "restart"
    return action == "note" and (adapter.optimizer is None or bool(last["backwards"]))


def _compact(images: Tensor) -> Tensor:
    """Return images as bytes if those give exactly the same floats again, which takes a quarter of the memory."""
    pixels = images.mul(255).round().to(torch.uint8)
    return pixels if torch.equal(_expanded(pixels), images) else images


def _expanded(images: Tensor) -> Tensor:
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def _answer(log_probs: Tensor, notes: dict[str, Any], **more: Tensor) -> Answer:
    probabilities = log_probs.double().exp().cpu()
    if not bool(probabilities.isfinite().all()):
        raise FloatingPointError("Expected finite outputs of the network, but some are NaN or infinite.")
    return Answer(probabilities, torch.special.entr(probabilities).sum(-1), more, notes)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it; NaN and infinity become None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
