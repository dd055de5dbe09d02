"""Finding the runs to report: folders of runs, or folders that hold such folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from vcotta.runs import MANIFEST, Run

__all__ = ["find_runs"]


def find_runs(places: Sequence[str | os.PathLike[str]]) -> dict[str, Run]:
    """Return the runs in some folders, by the name of their folder.

    Args:
        places: Folders of runs, or folders that hold them at any depth. A run that is named itself has to be whole; one
            that is found on the way and is not is left out with a warning.

    Raises:
        FileNotFoundError: A folder is not there or holds no run.
        ValueError: A run is damaged or was stopped before its end.
    """
    found: dict[Path, tuple[str, Run]] = {}
    for place in map(Path, places):
        if not place.is_dir():
            raise FileNotFoundError(
                f"Expected a folder with runs, but {place} is not a folder. Give folders that `vcotta run` wrote."
            )
        runs = {place: Run.load(place)} if (place / MANIFEST).is_file() else _below(place)
        if not runs:
            raise FileNotFoundError(
                f"Expected runs in {place}, but there is no whole one. Give folders that `vcotta run` wrote."
            )
        for folder, run in runs.items():
            found.setdefault(folder.resolve(), (str(folder), run))
    if not found:
        raise ValueError("Expected at least one folder with runs, but got none.")
    return dict(found.values())


def _below(place: Path) -> dict[Path, Run]:
    runs = {}
    for manifest in sorted(place.rglob(MANIFEST)):
        try:
            runs[manifest.parent] = Run.load(manifest.parent)
        except (OSError, ValueError) as reason:
            warnings.warn(f"{manifest.parent} is left out. {reason}", stacklevel=3)
    return runs
