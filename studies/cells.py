"""Rows of a table that runs fill in one by one, so that a study continues where it was stopped."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from studies.files import portable
from vcotta._util.files import read_json, write_json
from vcotta._util.locks import locked
from vcotta._util.progress import display
from vcotta.experiments.grid import run_spec
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

Row = dict[str, Any]
Plan = Callable[[list[Row]], Iterator["Cell"]]
"""Yields the cells of a table in order, given the rows so far, which may decide what comes next."""


@dataclass(frozen=True)
class Cell:
    """A row to come.

    Attributes:
        facts: What identifies the row.
        spec: Its run.
    """

    facts: Row
    spec: RunSpec


def key_of(row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
    """Return what identifies a row."""
    return tuple(row[key] for key in keys)


def print_missing(plan: Plan, keys: Sequence[str], path: Path) -> None:
    """Print what identifies each row that the file does not have, and how many there are."""
    rows: list[Row] = read_json(path) if path.exists() else []
    there = {key_of(row, keys) for row in rows}
    missing = [key for cell in plan(rows) if (key := key_of(cell.facts, keys)) not in there]
    print(*(" ".join(map(str, key)) for key in missing), f"{len(missing)} rows are missing", sep="\n")


def fill(plan: Plan, keys: Sequence[str], path: Path, work: Path, minutes: float, scores: Callable[[Run], Row]) -> bool:
    """Run the cells that the file has no row of, and write each row as soon as it is there.

    Several processes may fill one file, which keeps a GPU busy that waits for the host: each runs cells that no other
    is running. A killed run is resumed from its checkpoint in ``work``, written every two minutes: that of a large
    network has more than a gigabyte. NAME-manifests.json gets the manifest of each run.

    Args:
        plan: The cells.
        keys: Entries of a row that identify it.
        path: File of the rows.
        work: Folder of the runs.
        minutes: Begin no run after this time.
        scores: What a finished run adds to its row.

    Returns:
        Whether all rows are there.
    """
    rows: list[Row] = read_json(path) if path.exists() else []
    end, elsewhere = time.monotonic() + 60 * minutes, 0
    for cell in plan(rows):
        key = key_of(cell.facts, keys)
        try:
            with locked(work / "claims" / f"{cell.spec.key}.lock", busy="Another process runs this cell."):
                rows[:] = read_json(path) if path.exists() else []
                if key in (key_of(row, keys) for row in rows):
                    continue
                if time.monotonic() > end:
                    print(f"{minutes:g} minutes are over; the same command continues.")
                    return False
                _run(cell, key, path, work, rows, scores)
        except BlockingIOError:
            elsewhere += 1
    if elsewhere:
        print(f"{elsewhere} rows are being made by other processes.")
    return not elsewhere


def _run(
    cell: Cell, key: tuple[Any, ...], path: Path, work: Path, rows: list[Row], scores: Callable[[Run], Row]
) -> None:
    """Run a cell, and add its row and manifest to the files, in which other processes may have written meanwhile."""
    with display() as task:
        out = work / "runs" / cell.spec.key
        run = run_spec(cell.spec, out, task=task, resume=True, checkpoint_every=50, checkpoint_seconds=120)
    row, manifests_path = cell.facts | scores(run), path.with_name(f"{path.stem}-manifests.json")
    with locked(path.with_name(f".{path.name}.lock")):
        rows[:] = [*(read_json(path) if path.exists() else []), row]
        manifests: Row = read_json(manifests_path) if manifests_path.exists() else {}
        manifests["/".join(map(str, key))] = portable(dict(run.manifest))
        write_json(path, rows)
        write_json(manifests_path, manifests)
    print(f"{' '.join(map(str, key))}: {row['error']} %", flush=True)
    del run
    gc.collect()  # the next run has the memory to itself
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def scores_of(run: Run) -> Row:
    """Return the scores and cost of a run, and where it was made."""
    summary, manifest = run.summary(), run.manifest
    mean, domains = summary["mean"], summary["domains"]
    return {
        "error": round(100 * mean["error"], 2),
        "nll": round(mean["nll"], 4),
        "brier": round(mean["brier"], 4),
        "ece": round(mean["ece"], 4),
        "domains": [domain["domain"] for domain in domains],
        "errors": [round(100 * domain["error"], 2) for domain in domains],
        "seconds_per_corruption": round(summary["seconds"] / len(domains), 3),
        "peak_gib": round(summary["peak_memory"] / 2**30, 2),
        "batch_size": manifest["stream"]["batch_size"],
        "weights_file_sha256": manifest["weights_file_sha256"],
        "hardware": manifest["hardware"],
        "torch": manifest["versions"]["torch"],
        "precision": manifest["runtime"]["precision"],
    }


def start_of(method_is_variational: bool, warmed: bool) -> str:
    """Return the ``start`` of a `RunSpec` from the plain or the warmed network."""
    if warmed:
        return "warmed"
    return "unwarmed" if method_is_variational else "source"
