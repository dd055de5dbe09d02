"""Writing a whole folder so that it appears under its name complete, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replaced_folder"]


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder`` that takes its place on success and vanishes on failure.

    Raises:
        OSError: The disk is full, or the folder cannot be written; what was there before is still there.
    """
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        new, old = aside / "new", aside / "old"
        new.mkdir()
        yield new
        if folder.exists():
            folder.replace(old)
        try:
            new.replace(folder)
        except OSError:
            if old.exists():
                old.replace(folder)
            raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"Could not write {folder}: {error.strerror or error}. Nothing was changed there; free some space or "
            "choose another place",
        ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
