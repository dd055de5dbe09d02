"""The server's state on disk: checkpoints of the adapter, and whose they are."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from vcotta.files import write_json
from vcotta.methods import Adapter
from vcotta.resume import CHECKPOINTS, restore, save_checkpoint
from vcotta.serve.bundle import Bundle

__all__ = ["Keeper"]

_log = logging.getLogger("vcotta.serve")


class Keeper:
    """Saves the adapter now and then, and finds it again after a restart.

    The folder holds ``manifest.json``, which names the bundle, and the newest two checkpoints. One that is damaged is
    refused with a reason and the one before it used. Whatever keeps it from saving stops nothing but the saving.

    Args:
        folder: The folder; None keeps nothing.
        bundle: What is served; a folder of another bundle is refused.
        every: Seconds between two checkpoints.
    """

    def __init__(self, folder: Path | None, bundle: Bundle, every: float = 30.0) -> None:
        self.folder, self.every = folder, every
        self.manifest: dict[str, Any] = {"bundle": bundle.sha256, "method": bundle.method}
        self.failures = 0
        self._saved, self._tried = 0, time.monotonic()

    def restore(self, adapter: Adapter) -> int:
        """Put the adapter into the newest good state; return the number of changes it has seen.

        Raises:
            ValueError: If the folder belongs to another bundle, or none of its checkpoints can be used.
            OSError: If one cannot be read.
        """
        if self.folder is None:
            return 0
        path = self.folder / "manifest.json"
        if path.exists():
            self._check(path)
        else:
            write_json(path, self.manifest)
        place = restore(self.folder, self.manifest, adapter)
        if place is None and any((self.folder / CHECKPOINTS).glob("*.safetensors")):
            raise ValueError(
                f"Expected a good checkpoint in {self.folder / CHECKPOINTS}, but none can be used (see above). "
                "Give another --state folder, or remove it."
            )
        self._saved = 0 if place is None else place.batches
        return self._saved

    def due(self, changes: int) -> float | None:
        """Seconds until the next checkpoint is due, 0 or less if it is; None if there is nothing new to save."""
        if self.has(changes):
            return None
        return self._tried + self.every - time.monotonic()

    def has(self, changes: int) -> bool:
        """Whether the state after so many changes is on disk, or none is to be."""
        return self.folder is None or changes == self._saved

    def save(self, adapter: Adapter, changes: int) -> None:
        """Write a checkpoint unless the newest one is of this state; if that fails, say so and count it."""
        if self.folder is None or changes == self._saved:
            return
        self._tried = time.monotonic()
        try:
            save_checkpoint(self.folder, self.manifest, adapter, changes, {})
        except Exception as error:  # a full disk, no memory for the copy: whatever it is, serving goes on
            self.failures += 1
            _log.exception("The state after %d changes could not be saved, serving goes on: %s", changes, error)
        else:
            self._saved = changes

    def _check(self, path: Path) -> None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["bundle"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"Expected the manifest of a server's state in {path}, but got: {error}") from error
        if found != self.manifest["bundle"]:
            raise ValueError(
                f"Expected {self.folder} to hold the state of this bundle, but it is of another one "
                f"({str(found)[:12]}, not {self.manifest['bundle'][:12]}). Give another --state folder, or remove it."
            )
