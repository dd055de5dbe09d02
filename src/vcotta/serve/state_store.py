"""The checkpoints of a server's adapter."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vcotta._util.files import read_json, sync_folder, write_json
from vcotta._util.tensorfile import read_state
from vcotta.methods import Adapter
from vcotta.runs.checkpoints import CHECKPOINTS, KIND, newest_checkpoint, restore, save_checkpoint
from vcotta.serve.bundle import Bundle

__all__ = ["StateStore"]

_log = logging.getLogger("vcotta.serve")
_RETRY_SECONDS = 1.0  # after a step that could not be saved, where each must be


class StateStore:
    """A folder with ``manifest.json``, which names the bundle, and the newest two checkpoints of the adapter.

    A damaged checkpoint is skipped with a warning. If one cannot be written, the server continues without it.

    Args:
        folder: Folder of the checkpoints; None for a temporary one, so that the state is lost at the end.
        bundle: The bundle that is served.
        every: Seconds between two checkpoints; 0 for one after each step.
        on_failure: Called whenever a checkpoint cannot be written.
    """

    def __init__(
        self, folder: Path | None, bundle: Bundle, every: float = 30.0, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self.every, self.on_failure = folder, every, on_failure
        self.manifest: dict[str, Any] = {"bundle": bundle.sha256, "method": bundle.method}
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._restore_point: Path | None = None  # None for the adapter's start
        self._saved, self._tried = self.newest(), time.monotonic()

    def resume(self, adapter: Adapter) -> int:
        """Load the newest good checkpoint, if there is one; return its state version.

        Raises:
            ValueError: If the folder belongs to another bundle, or none of its checkpoints can be used.
            OSError: If a checkpoint cannot be read.
        """
        if self.folder is None:
            return 0
        self.begin()
        place = restore(self.folder, self.manifest, adapter)
        if place is None:
            if any((self.folder / CHECKPOINTS).glob("*.safetensors")):
                raise ValueError(
                    f"Expected a usable checkpoint in {self.folder / CHECKPOINTS}, but there is none (see the warnings "
                    "above). Choose another --state folder, or remove this one."
                )
            return 0
        self._saved = place.batches
        self._restore_point = _checkpoint(self.folder, place.batches)
        return self._saved

    def begin(self) -> None:
        """Make the folder, if there is none; raise ValueError if it belongs to another bundle."""
        if self.folder is not None:
            path = self.folder / "manifest.json"
            if path.exists():
                self._check_manifest(path)
            else:
                write_json(path, self.manifest)
                for folder in (self.folder.parent, self.folder.parent.parent):  # a power cut must not lose the name
                    sync_folder(folder)

    @property
    def saved_changes(self) -> int | None:
        """The state version on disk, 0 for the start; None if the state need not survive."""
        return None if self.folder is None else self._saved

    def newest(self) -> int:
        """Return the state version of the newest checkpoint in the folder, good or not; 0 if there is none."""
        return 0 if self.folder is None else newest_checkpoint(self.folder)

    def due(self, changes: int) -> float | None:
        """Return the seconds until the next checkpoint, 0 or less if it is due; None if there is nothing to save."""
        return None if self.has(changes) else self._tried + (self.every or _RETRY_SECONDS) - time.monotonic()

    def has(self, changes: int) -> bool:
        """Return whether this state version is on disk, or need not be."""
        return self.folder is None or changes == self._saved

    def save(self, adapter: Adapter | Mapping[str, Any], changes: int) -> bool:
        """Write a checkpoint and make it the restore point; log a failure, and return whether it succeeded.

        ``adapter`` is an adapter, or a state of one.
        """
        self._tried = time.monotonic()
        try:
            folder = self.folder
            if folder is None:
                self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="vcotta-serve-")
                folder = Path(self._temporary.name)
            save_checkpoint(folder, self.manifest, adapter, changes, {})
        except Exception as error:  # a full disk, no memory: the server must continue whatever the reason
            self.on_failure()
            _log.exception("The state after %d changes could not be saved; the server continues: %s", changes, error)
            return False
        self._saved, self._restore_point = changes, _checkpoint(folder, changes)
        return True

    def current(self) -> Path | None:
        """Return the file of the restore point, or of the newest checkpoint if none was used; None for the start."""
        if self._restore_point is None and self.folder is not None and (newest := self.newest()):
            return _checkpoint(self.folder, newest)
        return self._restore_point

    def go_back(self, path: Path, changes: int) -> None:
        """Remove the checkpoint that was just written; the one before it is the restore point again.

        If it cannot be removed, that is logged, and the next checkpoint is written over it.
        """
        newest, self._restore_point, self._saved = self._restore_point, path, changes
        if newest is not None and newest != path:
            try:
                newest.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("A checkpoint of a merge that failed cannot be removed: %s", error)

    def start_anew(self) -> None:
        """Make the adapter's start the restore point."""
        self._restore_point = None

    def restore(self, adapter: Adapter) -> None:
        """Put the adapter into the state of the restore point; OSError or ValueError if its file cannot be read."""
        if self._restore_point is None:
            adapter.reset()
        else:
            adapter.load_state_dict(read_state(self._restore_point, KIND)["adapter"])

    def close(self) -> None:
        """Remove the temporary folder, if there is one."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def remove(self) -> None:
        """Remove the folder for good, even if the process is killed half-way."""
        if self.folder is not None and self.folder.exists():
            aside = self.folder.with_name(f".{self.folder.name}")
            shutil.rmtree(aside, ignore_errors=True)
            self.folder.replace(aside)
            sync_folder(self.folder.parent)
            shutil.rmtree(aside)
        self.close()

    def _check_manifest(self, path: Path) -> None:
        try:
            found = read_json(path)["bundle"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"Expected {path} to name a bundle, but got: {error}. Choose another folder.") from error
        if found != self.manifest["bundle"]:
            raise ValueError(
                f"Expected {self.folder} to hold the state of this bundle, but it is of another one "
                f"({str(found)[:12]}, not {self.manifest['bundle'][:12]}). Choose another --state folder."
            )


def _checkpoint(folder: Path, changes: int) -> Path:
    return folder / CHECKPOINTS / f"{changes}.safetensors"
