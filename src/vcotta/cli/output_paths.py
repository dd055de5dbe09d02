"""Checks output paths before work starts."""

from __future__ import annotations

import tempfile
from pathlib import Path

__all__ = ["check_out_file", "check_out_folder", "refuse_existing"]


def check_out_folder(out: Path) -> None:
    """Raise `OSError` unless files can be written to a folder, which need not exist yet."""
    _check_place(out, out)


def check_out_file(out: Path) -> None:
    """Raise `OSError` unless a file can be written or replaced; its folder need not exist yet."""
    if out.is_dir():
        raise IsADirectoryError(f"Expected {out} to be a file, but it is a folder. Give the path of a file.")
    _check_place(out, out.absolute().parent)


def refuse_existing(out: Path, overwrite: bool) -> None:
    """Raise `FileExistsError` if the file exists, unless ``overwrite``."""
    if out.exists() and not overwrite:
        raise FileExistsError(
            f"Expected {out} not to exist yet, but it does. Choose another file, or replace it with --overwrite."
        )


def _check_place(out: Path, folder: Path) -> None:
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not place.is_dir():
        raise NotADirectoryError(f"Expected {place} to be a folder, but it is a file. Give another path.")
    try:
        with tempfile.TemporaryFile(dir=place):  # permissions are not enough, as root has them all
            pass
    except OSError as error:
        raise OSError(
            f"Expected to write {out}, but no file can be created in {place} ({error.strerror}). Give another path."
        ) from error
