"""One experiment from its name to its table, its picture and its page."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vcotta._messages import unknown_name
from vcotta.experiments.benchmark import find_benchmark
from vcotta.experiments.cells import Cell
from vcotta.experiments.entry import Asked, Entry
from vcotta.experiments.grid import run_cells
from vcotta.experiments.launch import Launcher, LocalLauncher
from vcotta.experiments.networks import Weights
from vcotta.experiments.outcome import Row, outcome, rows_as_csv, rows_as_json, table
from vcotta.experiments.outcome_page import listed, outcome_page
from vcotta.experiments.pictures import draw
from vcotta.files import write_json, write_text
from vcotta.methods import configure
from vcotta.report.domains import check_same_stream
from vcotta.report.page import html_page
from vcotta.report.progress import Report
from vcotta.report.tables import Grid
from vcotta.runs import SUMMARY, Run

__all__ = ["OUTCOME", "Reproduced", "outcome_name", "reproduce", "scaled"]

OUTCOME = "outcome.json"
_QUICK: dict[str, tuple[int, tuple[int, ...]]] = {"digits": (100, (0, 1, 2))}  # images of a corruption, seeds
_QUICK_VIEWS = 4
_LONGEST_NAME = 150  # of a folder; file systems end at 255 bytes


@dataclass(frozen=True)
class Reproduced:
    """What an experiment gave.

    Attributes:
        rows: Its rows.
        table: The same as a table.
        folder: Where the files are: ``outcome.json``, ``outcome.md`` with its ``picture.png``, ``picture.pdf``,
            ``table.csv``, and ``report.html`` where all runs followed one stream.
        cells: How many runs it is made of.
        ran: How many of them were not there, finished, before.
    """

    rows: list[Row]
    table: Grid
    folder: Path
    cells: int
    ran: int


def scaled(
    dataset: str,
    scale: str = "quick",
    *,
    preset: str = "best",
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    methods: Sequence[str] | None = None,
    values: Sequence[float] | None = None,
) -> Asked:
    """What is asked for at a scale.

    ``quick`` uses shorter grids, at most 4 views, and 100 images of each corruption and three seeds on digits, 500 and
    one elsewhere; ``full`` the whole grids, all images, every method's own number of views, and three seeds.

    Example:
        >>> scaled("digits").limit, scaled("cifar10").seeds, scaled("cifar10", "full").seeds
        (100, (0,), (0, 1, 2))
    """
    if scale not in ("quick", "full"):
        raise unknown_name("scale", scale, ("quick", "full"))
    configure("vcotta", preset=preset)  # a slip is told now, not when the first VCoTTA has its turn
    quick = scale == "quick"
    images, usual = _QUICK.get(dataset, (500, (0,))) if quick else (None, (0, 1, 2))
    return Asked(
        dataset,
        preset,
        usual if seeds is None else tuple(dict.fromkeys(seeds)),
        images if limit is None else limit,
        _QUICK_VIEWS if quick else None,
        quick,
        None if methods is None else tuple(methods),
        None if values is None else tuple(values),
    )


def outcome_name(name: str, asked: Asked) -> str:
    """Return the name of an outcome's folder: all that was asked for beyond the usual, in the words of the command.

    So whoever asks for something else, fewer images say, overwrites nothing.

    Example:
        >>> outcome_name("main", scaled("digits"))
        'main-digits'
        >>> outcome_name("main", scaled("cifar10", "full", limit=2000, methods=["bn", "vcotta"]))
        'main-cifar10-full-methods=bn,vcotta-limit=2000'
    """
    usual = scaled(asked.dataset, "quick" if asked.quick else "full")
    words = [name, asked.dataset] if asked.quick else [name, asked.dataset, "full"]
    for option in ("preset", "seeds", "methods", "values", "limit", "views"):
        said, expected = (listed(getattr(one, option)) for one in (asked, usual))
        if said != expected:
            words.append(f"{option}={said}")
    whole = "-".join(words)
    if len(whole) <= _LONGEST_NAME:
        return whole
    return f"{whole[:_LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def reproduce(
    entry: Entry,
    asked: Asked,
    out: Path,
    *,
    workers: int = 2,
    launcher: Launcher | None = None,
    weights: Weights | None = None,
    device: str = "cpu",
    report: Report | None = None,
) -> Reproduced:
    """Run an experiment, or what is missing of it, and write what came out.

    Args:
        entry: The experiment.
        asked: Data set, preset, seeds and size.
        out: Folder of the runs, which experiments share, and of their results.
        workers: Processes of this machine.
        launcher: Runs the cells elsewhere, see `run_cells`.
        weights: Networks that were made elsewhere.
        device: Where to compute.
        report: Called as the work goes on, see `run_cells`.

    Raises:
        ValueError: Something was asked for that the experiment does not have, or the runs that are already in ``out``
            started from other networks or were made with other settings.
    """
    find_benchmark(asked.dataset)
    cells = entry.all_cells(asked)
    networks = (weights or Weights()).hashes()
    folders = {out / "runs" / cell.key for cell in cells}
    missing = sum(not (folder / SUMMARY).exists() for folder in folders)
    before = _clocks()
    with _same_networks(out / f"networks-{asked.dataset}.json", networks, folders):
        runs = run_cells(
            cells, out / "runs", workers=workers, launcher=launcher, weights=weights, device=device, report=report
        )
    spent = {clock: now - then for (clock, now), then in zip(_clocks().items(), before.values(), strict=True)}
    rows = outcome(entry, asked.dataset, cells, runs)
    folder = out / outcome_name(entry.name, asked)
    if not isinstance(launcher or LocalLauncher(), LocalLauncher):
        spent.pop("cpu_seconds")  # the work was done by processes that are not ours
    cost = spent | {"ran": missing, "cells": len(folders)}
    told = _told(entry, asked, networks, rows, runs[0].manifest, cost)
    if not missing:
        told["cost"] = _earlier_cost(folder, told)
    _write(entry, told, cells, runs, rows, folder)
    return Reproduced(rows, table(entry, rows), folder, len(folders), missing)


def _told(
    entry: Entry, asked: Asked, networks: Mapping[str, str], rows: Sequence[Row], manifest: dict[str, Any], cost: Any
) -> dict[str, Any]:
    """All that is kept of an experiment, for tables and pages."""
    kept = ("network", "frost", "runtime", "hardware", "versions")
    stream = {key: manifest["stream"].get(key) for key in ("images_per_domain", "pixels", "severity_table")}
    return {
        "experiment": entry.name,
        "asked": asdict(asked),
        "networks": dict(networks),
        "stream": stream,
        **{key: manifest[key] for key in kept},
        "cost": cost,
        "rows": rows_as_json(rows),
    }


def _write(
    entry: Entry, told: dict[str, Any], cells: Sequence[Cell], runs: Sequence[Run], rows: Sequence[Row], folder: Path
) -> None:
    write_json(folder / OUTCOME, told)
    write_text(folder / "table.csv", rows_as_csv(entry, rows))
    draw(entry, cells, runs, rows, folder)
    write_text(folder / "outcome.md", outcome_page(told))
    _write_report({cell.key: run for cell, run in zip(cells, runs, strict=True)}, folder / "report.html")


def _write_report(runs: Mapping[str, Run], path: Path) -> None:
    """Write the page that `vcotta report` would, unless the runs followed different streams."""
    try:
        check_same_stream(runs)
    except ValueError:
        return
    write_text(path, html_page(runs))


@contextmanager
def _same_networks(path: Path, networks: Mapping[str, str], folders: Iterable[Path]) -> Iterator[None]:
    """Runs are known by their settings alone, so that all of a data set here have to start from the same files.

    What failed before it began a run has decided nothing.
    """
    known = path.exists()
    if known and json.loads(path.read_text(encoding="utf-8")) != networks:
        raise ValueError(
            f"Expected the networks of the runs that are in {path.parent}, but got other files (see {path}). Give "
            "the same ones, or another folder."
        )
    if not known:
        write_json(path, networks)
    try:
        yield
    except BaseException:
        if not known and not any(folder.exists() for folder in folders):
            path.unlink()
        raise


def _earlier_cost(folder: Path, told: dict[str, Any]) -> Any:
    """What the runs took when they were made, if that is known of just these."""
    path = folder / OUTCOME
    if path.exists():
        before, now = json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(told))
        if all(before[key] == now[key] for key in ("asked", "networks")):
            return before["cost"]
    return told["cost"]


def _clocks() -> dict[str, float]:
    """The wall clock, and the processor time of this process and of those it waited for."""
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    return {"seconds": time.perf_counter(), "cpu_seconds": cpu}
