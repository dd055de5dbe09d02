"""One experiment from its name to its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vcotta._messages import unknown_name
from vcotta.experiments.entries import Asked, Entry
from vcotta.experiments.grid import run_cells
from vcotta.experiments.launch import Launcher
from vcotta.experiments.outcome import Row, outcome, rows_as_csv, table
from vcotta.files import write_json
from vcotta.report.progress import Report
from vcotta.report.tables import Grid

__all__ = ["Reproduced", "reproduce", "scaled"]

_QUICK_IMAGES = {"digits": 100}
_QUICK_VIEWS = 4


@dataclass(frozen=True)
class Reproduced:
    """What an experiment gave.

    Attributes:
        rows: Its rows.
        table: The same as a table.
        folder: Where the files are: ``table.md``, ``table.csv``, ``rows.json``.
    """

    rows: list[Row]
    table: Grid
    folder: Path


def scaled(
    dataset: str,
    scale: str = "quick",
    *,
    preset: str = "best",
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
) -> Asked:
    """What is asked for at a scale.

    ``quick`` uses 100 images of each corruption on digits and 500 elsewhere, at most 4 views and one seed; ``full`` all
    images, every method's own number of views, and three seeds.

    Example:
        >>> scaled("digits").limit, scaled("digits", "full").seeds
        (100, (0, 1, 2))
    """
    if scale not in ("quick", "full"):
        raise unknown_name("scale", scale, ("quick", "full"))
    if scale == "full":
        return Asked(dataset, preset, (0, 1, 2) if seeds is None else tuple(seeds), limit)
    images = _QUICK_IMAGES.get(dataset, 500) if limit is None else limit
    return Asked(dataset, preset, (0,) if seeds is None else tuple(seeds), images, _QUICK_VIEWS)


def reproduce(
    entry: Entry,
    asked: Asked,
    out: Path,
    *,
    workers: int = 2,
    launcher: Launcher | None = None,
    weights: Path | None = None,
    device: str = "cpu",
    report: Report | None = None,
) -> Reproduced:
    """Run an experiment, or what is missing of it, and write its table.

    Args:
        entry: The experiment.
        asked: Data set, preset, seeds and size.
        out: Folder of the runs, which experiments share, and of their results.
        workers: Processes of this machine.
        launcher: Runs the cells elsewhere, see `run_cells`.
        weights: The source network, see `network_for`.
        device: Where to compute.
        report: Called as the work goes on, see `run_cells`.

    Raises:
        ValueError: If the experiment does not fit the data set.
    """
    if asked.dataset not in entry.datasets:
        raise ValueError(
            f"Expected `dataset` to be one of {', '.join(entry.datasets)} for {entry.name}, but got {asked.dataset!r}."
        )
    cells = entry.all_cells(asked)
    runs = run_cells(
        cells, out / "runs", workers=workers, launcher=launcher, weights=weights, device=device, report=report
    )
    rows = outcome(entry, asked.dataset, cells, runs)
    drawn, folder = table(entry, rows), out / f"{entry.name}-{asked.dataset}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(drawn.markdown(), encoding="utf-8")
    (folder / "table.csv").write_text(rows_as_csv(entry, rows), encoding="utf-8")
    facts = {"experiment": entry.name, "asked": asdict(asked), "runs": sorted({cell.key for cell in cells})}
    write_json(folder / "rows.json", facts | {"rows": [asdict(row) for row in rows]})
    return Reproduced(rows, drawn, folder)
