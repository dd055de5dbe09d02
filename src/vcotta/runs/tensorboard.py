"""A run's records as scalars for TensorBoard."""

from __future__ import annotations

import os
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vcotta.runs.run import Record, Run

__all__ = ["TensorBoardLog"]


class TensorBoardLog:
    """Writes the error, the scores and the adapter's own numbers of each batch to a folder of event files.

    Give it as ``log`` to `vcotta.run_stream`. A resumed run is written again from its first batch; TensorBoard then
    drops what the folder had before.

    Args:
        folder: Folder of the event files, created if it does not exist.

    Raises:
        ValueError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise ValueError(
                "Expected TensorBoard to be installed, but it is not. Install it: pip install tensorboard."
            ) from error
        self._open, self._folder = SummaryWriter, Path(folder)
        self._writer: Any = None
        self._written = self._wrong = self._seen = 0

    def __call__(self, run: Run) -> None:
        """Write the records that are not written yet."""
        if self._writer is None:
            self._writer = self._open(str(self._folder), purge_step=0)
        for record in run.records[self._written :]:
            self._write(record)
        self._written = len(run.records)

    def _write(self, record: Record) -> None:
        self._wrong, self._seen = self._wrong + record["errors"], self._seen + record["n"]
        scalars = {
            "error/batch": record["errors"] / record["n"],
            "error/so_far": self._wrong / self._seen,
            "score/nll": record["nll"],
            "score/brier": record["brier"],
            **{f"adapter/{name}": value for name, value in record["last"].items()},
        }
        for name, value in scalars.items():
            if isinstance(value, Real):  # a score that is not finite is None
                self._writer.add_scalar(name, float(value), record["batch"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()
