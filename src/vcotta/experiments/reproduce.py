"""Runs an experiment and writes its table, picture and page."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vcotta._util.errors import unknown_name
from vcotta._util.files import read_json, sha256, write_json, write_text
from vcotta._util.progress import Progress
from vcotta.bayes import is_warmed_file
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.grid import run_specs
from vcotta.experiments.launch import Launcher, LocalLauncher
from vcotta.experiments.outcome import Row, outcome, rows_as_csv, rows_as_json, table
from vcotta.experiments.outcome_page import listed, outcome_page
from vcotta.experiments.paper.experiment import Experiment, ExperimentOptions
from vcotta.experiments.pictures import draw
from vcotta.methods import configure
from vcotta.report.groups import check_same_stream
from vcotta.report.page import html_page
from vcotta.report.tables import Grid
from vcotta.runs.run import SUMMARY, Manifest, Run
from vcotta.runs.spec import RunSpec

__all__ = ["OUTCOME", "Reproduced", "outcome_name", "reproduce", "scaled"]

OUTCOME = "outcome.json"
_QUICK: dict[str, tuple[int, tuple[int, ...]]] = {"digits": (100, (0, 1, 2))}  # images of a corruption, seeds
_QUICK_VIEWS = 4
_LONGEST_NAME = 150  # of a folder; file systems end at 255 bytes


@dataclass(frozen=True)
class Reproduced:
    """The result of an experiment.

    Attributes:
        rows: Its rows.
        table: The rows as a table.
        folder: Folder of its files: ``outcome.json``, ``outcome.md`` with its ``picture.png``, ``picture.pdf``,
            ``table.csv``, and ``report.html`` if all runs followed one stream.
        runs: Number of its runs.
        ran: Number of runs that were not finished before.
    """

    rows: list[Row]
    table: Grid
    folder: Path
    runs: int
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
) -> ExperimentOptions:
    """Return the options of an experiment at a scale.

    ``quick`` uses shorter grids, at most 4 views, and 100 images of each corruption and three seeds on digits, 500 and
    one elsewhere; ``full`` the whole grids, all images, every method's own number of views, and three seeds.

    Example:
        >>> scaled("digits").limit, scaled("cifar10").seeds, scaled("cifar10", "full").seeds
        (100, (0,), (0, 1, 2))
    """
    if scale not in ("quick", "full"):
        raise unknown_name("scale", scale, ("quick", "full"))
    configure("vcotta", preset=preset)  # raises before any run if there is no such preset
    quick = scale == "quick"
    images, usual = _QUICK.get(dataset, (500, (0,))) if quick else (None, (0, 1, 2))
    return ExperimentOptions(
        dataset,
        preset,
        usual if seeds is None else tuple(dict.fromkeys(seeds)),
        images if limit is None else limit,
        _QUICK_VIEWS if quick else None,
        quick,
        None if methods is None else tuple(methods),
        None if values is None else tuple(values),
    )


def outcome_name(name: str, chosen: ExperimentOptions) -> str:
    """Return the name of an outcome's folder, with all options that are not the usual ones.

    So other options, for example fewer images, overwrite nothing.

    Example:
        >>> outcome_name("main", scaled("digits"))
        'main-digits'
        >>> outcome_name("main", scaled("cifar10", "full", limit=2000, methods=["bn", "vcotta"]))
        'main-cifar10-full-methods=bn,vcotta-limit=2000'
    """
    usual = scaled(chosen.dataset, "quick" if chosen.quick else "full")
    words = [name, chosen.dataset] if chosen.quick else [name, chosen.dataset, "full"]
    for option in ("preset", "seeds", "methods", "values", "limit", "views"):
        said, expected = (listed(getattr(one, option)) for one in (chosen, usual))
        if said != expected:
            words.append(f"{option}={said}")
    whole = "-".join(words)
    if len(whole) <= _LONGEST_NAME:
        return whole
    return f"{whole[:_LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def reproduce(
    experiment: Experiment,
    chosen: ExperimentOptions,
    out: Path,
    *,
    launcher: Launcher | None = None,
    weights: Path | None = None,
    warmed: Path | None = None,
    network: str | None = None,
    source: str | None = None,
    device: str = "cpu",
    report: Progress | None = None,
) -> Reproduced:
    """Run an experiment, or what is missing of it, and write its results.

    Args:
        experiment: The experiment.
        chosen: Data set, preset, seeds and size.
        out: Folder of the runs, which experiments share, and of their results.
        launcher: Where the runs are done, see `run_specs`.
        weights: File of the source network; None to train one where the data set is that small.
        warmed: File of that network warmed up, for runs that start so with the preset's own warm-up; None to warm up
            here.
        network: Name of the network; None for the data set's own.
        source: Data set that methods learn from before testing; None for the data set's own training images.
        device: Where to compute.
        report: Called with the progress, see `run_specs`.

    Raises:
        ValueError: The experiment does not have what was chosen, a file is of the wrong kind, or runs in ``out`` were
            made with other settings.
    """
    find_benchmark(chosen.dataset)
    _check_files(weights, warmed)
    given: dict[str, Any] = {"device": device, "network": network, "source": source}
    specs = [
        replace(spec, weights=_start_file(spec, weights, warmed), **given) for spec in experiment.all_specs(chosen)
    ]
    folders = {out / "runs" / spec.key for spec in specs}
    missing = sum(not (folder / SUMMARY).exists() for folder in folders)
    before = _clocks()
    runs = run_specs(specs, out / "runs", launcher=launcher, report=report)
    cost = {clock: now - then for (clock, now), then in zip(_clocks().items(), before.values(), strict=True)}
    if not isinstance(launcher or LocalLauncher(), LocalLauncher):
        cost.pop("cpu_seconds")  # other processes than ours did the work
    rows = outcome(experiment, chosen.dataset, specs, runs)
    folder = out / outcome_name(experiment.name, chosen)
    networks = {kind: sha256(path) for kind, path in (("source", weights), ("warmed", warmed)) if path is not None}
    facts = _facts(experiment, chosen, networks, rows, runs[0].manifest, cost | {"ran": missing, "cells": len(folders)})
    facts |= {"source": source} if source else {}
    if not missing:
        facts["cost"] = _earlier_cost(folder, facts)
    _write(experiment, facts, specs, runs, rows, folder)
    return Reproduced(rows, table(experiment, rows), folder, len(folders), missing)


def _check_files(weights: Path | None, warmed: Path | None) -> None:
    for path in (weights, warmed):
        if path is not None and not path.is_file():
            raise FileNotFoundError(f"Expected the file of a network, but there is no file {path}. Check the path.")
    if weights is not None and is_warmed_file(weights):
        raise ValueError(f"Expected `weights` of a source network, but {weights} is warmed up. Give it as `warmed`.")
    if warmed is not None and not is_warmed_file(warmed):
        raise ValueError(
            f"Expected `warmed` to be a file of `vcotta warmup`, but {warmed} is none. Give a plain network as "
            "`weights`: it is warmed up here."
        )


def _start_file(spec: RunSpec, weights: Path | None, warmed: Path | None) -> Path | None:
    """The file of the network that a run starts from; a warmed one only if the warm-up is the usual one."""
    start = spec.resolved_start
    if warmed is not None and start == "warmed" and not spec.warm_up and spec.whole_source:
        return warmed
    return None if start == "scratch" else weights


def _facts(
    experiment: Experiment,
    chosen: ExperimentOptions,
    networks: Mapping[str, str],
    rows: Sequence[Row],
    manifest: Manifest,
    cost: Any,
) -> dict[str, Any]:
    """The content of ``outcome.json``, from which tables and pages are made."""
    stream = manifest["stream"]
    return {
        "experiment": experiment.name,
        "asked": asdict(chosen),
        "networks": dict(networks),
        "stream": {key: stream.get(key) for key in ("images_per_domain", "pixels", "severity_table")},
        "network": manifest["network"],
        "frost": stream.get("frost"),
        "runtime": manifest["runtime"],
        "hardware": manifest["hardware"],
        "versions": manifest["versions"],
        "cost": cost,
        "rows": rows_as_json(rows),
    }


def _write(
    experiment: Experiment,
    facts: dict[str, Any],
    specs: Sequence[RunSpec],
    runs: Sequence[Run],
    rows: Sequence[Row],
    folder: Path,
) -> None:
    write_json(folder / OUTCOME, facts)
    write_text(folder / "table.csv", rows_as_csv(experiment, rows))
    draw(experiment, specs, runs, rows, folder)
    write_text(folder / "outcome.md", outcome_page(facts))
    _write_report({spec.key: run for spec, run in zip(specs, runs, strict=True)}, folder / "report.html")


def _write_report(runs: Mapping[str, Run], path: Path) -> None:
    """Write the page of `vcotta report`, unless the runs followed different streams."""
    try:
        check_same_stream(runs)
    except ValueError:
        return
    write_text(path, html_page(runs))


def _earlier_cost(folder: Path, facts: dict[str, Any]) -> Any:
    """The cost of the same runs when they were made, if it is known."""
    path = folder / OUTCOME
    if path.exists():
        before, now = read_json(path), json.loads(json.dumps(facts))
        if all(before[key] == now[key] for key in ("asked", "networks")):
            return before["cost"]
    return facts["cost"]


def _clocks() -> dict[str, float]:
    """The wall clock, and the processor time of this process and its finished child processes."""
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    return {"seconds": time.perf_counter(), "cpu_seconds": cpu}
