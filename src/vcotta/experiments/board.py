"""How far the cells of a grid are, told by their folders, wherever their processes run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vcotta.report.progress import Report
from vcotta.runs import RECORDS, SUMMARY, read_manifest

__all__ = ["Board"]


class Board:
    """The progress of many runs, and of all of them together.

    Args:
        folders: Where the runs are written.
        report: Called with (batches done, batches known of, runs finished) as the work goes on; None for nobody.
    """

    def __init__(self, folders: Sequence[Path], report: Report | None = None) -> None:
        self._files = {folder: _Records(folder) for folder in folders}
        self._lines: dict[Path, tuple[int, int]] = {}
        self._finished: set[Path] = set()
        self._report = report

    def begin(self) -> None:
        """Tell that the work begins; the first networks may take minutes."""
        if self._report is not None:
            self._report(0, 0, 0.0)

    def line(self, folder: Path) -> Report:
        """What one run of this process is to call as it goes on."""

        def report(done: int, total: int, error: float) -> None:
            self._lines[folder] = done, total
            self._tell()

        return report

    def finish(self, folder: Path) -> None:
        """Count a run as finished."""
        self._finished.add(folder)

    def look(self) -> None:
        """Read from the folders how far the runs of other processes are."""
        if self._report is None:
            return
        for folder, records in self._files.items():
            if folder in self._finished:
                continue
            if (folder / SUMMARY).exists():
                self.finish(folder)
            if (found := records.read()) is not None:
                self._lines[folder] = found
        self._tell()

    def end(self) -> None:
        """Tell that all is done."""
        if self._report is not None and self._lines:
            total = sum(total for _, total in self._lines.values())
            self._report(total, total, float(len(self._files)))

    def _tell(self) -> None:
        if self._report is not None and self._lines:
            seen = sum(total for _, total in self._lines.values())
            waiting = (len(self._files) - len(self._lines)) * seen / len(self._lines)  # as long as the others, we guess
            done = sum(done for done, _ in self._lines.values())
            self._report(done, round(seen + waiting), float(len(self._finished)))


class _Records:
    """Counts the records of a run that another process writes; what was counted is not read again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._total = folder, 0
        self._read, self._lines = 0, 0

    def read(self) -> tuple[int, int] | None:
        """Batches done and batches in all, or None while there is no run."""
        path = self._folder / RECORDS
        try:
            self._total = self._total or int(read_manifest(self._folder)["batches"])
            if path.stat().st_size < self._read:  # the run went on from a checkpoint: what lay behind it was cut off
                self._read, self._lines = 0, 0
            with path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return None
        self._read, self._lines = self._read + len(new), self._lines + new.count(b"\n")
        return min(self._lines, self._total), self._total
