"""The tables of the paper's experiments, drawn from the outcomes of `vcotta reproduce`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

from studies.files import results_of
from studies.markdown import table
from vcotta.experiments.outcome import FORMS, read_rows
from vcotta.experiments.outcome_page import outcome_section
from vcotta.experiments.paper.experiments import EXPERIMENTS

RESULTS = results_of("reproduce")


def experiment_text(name: str, dataset: str = "digits", results: Path = RESULTS) -> str:
    """Return an experiment's command, tables, cost and picture."""
    path = results / dataset / f"{name}.json"
    if not path.exists():
        return f"Not run on {dataset} yet: `vcotta reproduce {name} --dataset {dataset}`."
    outcome = json.loads(path.read_text(encoding="utf-8"))
    return outcome_section(outcome, f"results/{dataset}/{name}.png").rstrip()


def experiments_text() -> str:
    """Return a row for each experiment: what it asks, what was lowest on digits, and what it cost there."""
    rows = []
    for name, experiment in EXPERIMENTS.items():
        path = RESULTS / "digits" / f"{name}.json"
        if not path.exists():
            rows.append((f"[`{name}`](#{name})", experiment.title, "not run yet", "", "", ""))
            continue
        outcome = json.loads(path.read_text(encoding="utf-8"))
        cost, score = outcome["cost"], experiment.scores[0]
        best = min(read_rows(outcome["rows"]), key=lambda row: row.scores[score])
        heading, form, _ = FORMS[score]
        spent = f"{cost['cpu_seconds']:.0f}" if "cpu_seconds" in cost else "-"  # unknown for a cluster
        lowest = f"{best.label} ({heading} {best.scores[score]:{form}})"
        runs = f"{cost['ran']} of {cost['cells']}"
        rows.append((f"[`{name}`](#{name})", experiment.title, lowest, runs, f"{cost['seconds']:.0f}", spent))
    return table(["Experiment", "What it shows", "Lowest", "Runs", "Seconds", "CPU seconds"], rows, left=3)


def cifar10_text(results: Path = RESULTS) -> str:
    """Return the experiments that were run on CIFAR10-C, or that none was."""
    found = [name for name in EXPERIMENTS if (results / "cifar10" / f"{name}.json").exists()]
    if not found:
        return "There are no results on CIFAR10-C here yet: nothing on this page says how these experiments end there."
    sections = (f"### {name} on CIFAR10-C\n\n{experiment_text(name, 'cifar10', results)}" for name in found)
    return "\n\n".join(sections)


TABLES: dict[str, Callable[[], str]] = {
    "experiments": experiments_text,
    **{f"reproduce-{name}": functools.partial(experiment_text, name) for name in EXPERIMENTS},
    "reproduce-cifar10": cifar10_text,
}
