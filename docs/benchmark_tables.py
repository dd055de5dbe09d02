"""The tables of docs/benchmarks.md: every method beside its published error, and what it costs."""

from __future__ import annotations

import functools
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
RECIPE = "cifar10c-recipe"
"""The runs from a network that was trained as the published one was, as far as that is known."""
PUBLISHED = {
    # Mean error in per cent, continual, severity 5: the papers' own and the test-time-adaptation benchmark's numbers.
    "cifar10c": {
        "source": "43.5",
        "bn": "20.4",
        "tent": "20.0 to 20.7",
        "adacontrast": "18.5",
        "cotta": "16.2 to 16.5",
        "eata": "17.9 to 18.7",
        "rotta": "19.3",
        "petal": "16.0 to 17.4",
        "rmt": "16.7 to 17.0",
        "santa": "16.1",
        "palm": "15.5",
        "surgeon": "16.8",
        "obao": "15.8",
        "tca": "14.7 to 14.9",
        "roid": "16.2",
        "sar": "20.4",
        "rdumb": "-",
        "cmf": "-",
        "deyo": "-",
        "vcotta": "13.1",
    },
    "cifar100c": {
        "source": "46.4",
        "bn": "35.4",
        "tent": "60.9 to 62.2",
        "adacontrast": "33.5",
        "cotta": "32.5 to 32.8",
        "eata": "32.2 to 33.6",
        "rotta": "34.8",
        "petal": "31.5 to 32.8",
        "rmt": "30.2 to 30.4",
        "santa": "30.4",
        "palm": "30.2",
        "surgeon": "31.7",
        "obao": "30.2",
        "tca": "29.7 to 29.8",
        "roid": "29.3",
        "sar": "32.0",
        "rdumb": "-",
        "cmf": "-",
        "deyo": "-",
        "vcotta": "28.4",
    },
}


def benchmark_text(name: str) -> str:
    """Table of one benchmark: ours beside the published error, from one run for each method that has been run.

    A folder METHOD-FORM holds a form of the method that has no published error; a benchmark NAME-KIND has another
    network.
    """
    order = {method: (place, text) for place, (method, text) in enumerate(PUBLISHED[name.split("-")[0]].items())}
    ran = sorted((p.parent.name for p in (RESULTS / name).glob("*/summary.json")), key=lambda m: order[m.split("-")[0]])
    published = {method: order[method][1] if method in order else "-" for method in ran}
    lines = [
        "| Method | Error % | published | NLL | Brier | ECE | s a corruption | peak GiB | forwards, backwards |",
        "|:--" + "|--:" * 8 + "|",
    ]
    runs = [json.loads((RESULTS / name / method / "summary.json").read_text()) for method in published]
    for (method, error), run in zip(published.items(), runs, strict=True):
        mean = run["mean"]
        seconds = statistics.mean(part["seconds"] for part in run["domains"][1:])
        lines.append(
            f"| {method} | {100 * mean['error']:.1f} | {error} | {mean['nll']:.3f} | {mean['brier']:.3f} "
            f"| {mean['ece']:.3f} | {seconds:.2f} | {run['peak_memory'] / 2**30:.2f} "
            f"| {run['forwards']}, {run['backwards']} |"
        )
    manifest = json.loads((RESULTS / name / "bn" / "manifest.json").read_text())
    domains = [part["domain"].replace("_", " ") for part in runs[0]["domains"]]
    lines += ["", "| Error % | " + " | ".join(published) + " |", "|:--" + "|--:" * len(runs) + "|"]
    for place, domain in enumerate(domains):
        cells = " | ".join(f"{100 * run['domains'][place]['error']:.1f}" for run in runs)
        lines.append(f"| {domain} | {cells} |")
    stream = manifest["stream"]
    pixels = "of `vcotta corrupt`" if stream["pixels"] == "files" else f"generated with seed {stream['seed']}"
    lines += [
        "",
        f"{stream['images_per_domain']} images of each of the fifteen corruptions, severity {stream['severities'][0]}, "
        f"batches of {stream['batch_size']}, pixels {pixels} ({manifest['frost']} frost), {manifest['network']}, "
        f"{manifest['runtime']['precision']}, torch {manifest['versions']['torch']}. Seconds are the mean of the last "
        "fourteen, as the first has compilations in it; passes are over batches of the whole run.",
    ]
    return "\n".join(lines)


def recipes_text() -> str:
    """Table of errors, and of what is gained over BN, by how the network was trained, beside the published ones."""
    folders = {"cifar10c": "30 epochs, decay 5e-4", "cifar10c-decay": "30 epochs, decay 1e-4", RECIPE: "its recipe"}
    found = {folder: errors_of(folder) for folder in folders}
    published = published_errors("cifar10c")
    lines = [f"| Method | as published | {' | '.join(folders.values())} |", "|:--" + "|--:" * (len(folders) + 1) + "|"]
    beside = {}
    for method in (method for method in PUBLISHED["cifar10c"] if method in found[RECIPE]):
        gains = [published["bn"][0] - error for error in published[method]]
        cells = [f"{PUBLISHED['cifar10c'][method]} ({' to '.join(f'{gain:.1f}' for gain in gains)})"]
        for errors in found.values():
            cells.append(f"{errors[method]:.1f} ({errors['bn'] - errors[method]:.1f})" if method in errors else "-")
        lines.append(f"| {method} | {' | '.join(cells)} |")
        gain = found[RECIPE]["bn"] - found[RECIPE][method]
        beside[method] = min((gain - other for other in gains), key=abs)
    adapting = {method: gap for method, gap in beside.items() if method not in ("source", "bn")}
    least, most = (choose(adapting, key=adapting.__getitem__) for choose in (min, max))
    told = (
        "Error %, and in brackets how far it is below BN's. On the last network the gains are between "
        f"{abs(adapting[least]):.2f} less ({least}) and {adapting[most]:.2f} more ({most}) than the published ones, of "
        "two the nearer."
    )
    return "\n".join([*lines, "", told])


def nearest_text() -> str:
    """Who comes nearest to VCoTTA on the network of its headline, and on that of the published recipe."""
    usual, recipe = errors_of("cifar10c"), errors_of(RECIPE)
    near, best = (min(errors, key=errors.__getitem__) for errors in (usual, recipe))
    return (
        f"Of {len(usual) - 2} rivals that learn, {near.upper()} comes nearest on that network with {usual[near]:.1f} % "
        "(TCA was run there with a larger step than it has now). On another, trained as the published one was, "
        f"{best.upper()} has {recipe[best]:.1f} % where BN has {recipe['bn']:.1f}; VCoTTA has not been run there "
        "([all of them](docs/benchmarks.md))."
    )


def errors_of(name: str) -> dict[str, float]:
    """Mean error of each method of a benchmark, in per cent."""
    paths = (RESULTS / name).glob("*/summary.json")
    return {path.parent.name: 100 * json.loads(path.read_text())["mean"]["error"] for path in paths}


def published_errors(name: str) -> dict[str, list[float]]:
    """The published errors of each method, one or the ends of a range; of some there is none."""
    return {method: [float(n) for n in re.findall(r"[0-9.]+", text)] for method, text in PUBLISHED[name].items()}


def train_step_text() -> str:
    """Table of what a training step with AugMix costs."""
    found = json.loads((RESULTS / "train-step.json").read_text())
    setting = found["setting"]
    lines = ["| | ms |", "|:--|--:|", *(f"| {row['what']} | {row['ms']:.1f} |" for row in found["rows"])]
    told = (
        f"{setting['network']}, three forms of {setting['batch_size']} images a step, compiled; {setting['hardware']}, "
        f"torch {setting['torch']}; {setting['timing']} (`benchmarks/train_step.py`)."
    )
    return "\n".join([*lines, "", told])


def offtheshelf_text() -> str:
    """Table of networks that others trained, on clean test images."""
    rows = json.loads((RESULTS / "offtheshelf.json").read_text())
    lines = ["| Network | Data | Images | Wrong | Error % | SHA-256 of the weights |", "|:--|:--|--:|--:|--:|:--|"]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['dataset']} | {row['images']} | {row['wrong']} | {100 * row['error']:.2f} "
            f"| `{row['weights_sha256'][:16]}` |"
        )
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    return "\n".join([*lines, "", f"torch {versions}, float32, one CPU thread (`benchmarks/offtheshelf.py`)."])


def times_text() -> str:
    """Table of what took how long, by the clock."""
    lines = ["| What | Command | Where | Seconds | Clean error % |", "|:--|:--|:--|--:|--:|"]
    for row in json.loads((RESULTS / "gpu-times.json").read_text()):
        where = row["device"] + (f", torch {row['torch']}" if row["torch"] else "")
        error = "" if row["clean_error"] is None else f"{100 * row['clean_error']:.2f}"
        lines.append(f"| {row['work']} | `{row['command']}` | {where} | {row['seconds']} | {error} |")
    return "\n".join([*lines, "", "Seconds by the wall clock."])


def passes_text() -> str:
    """Table of every method's step beside its passes alone."""
    path = RESULTS / "passes.json"
    if not path.exists():
        return "Not measured yet."
    found = json.loads(path.read_text())
    setting = found["setting"]
    lines = ["| Method | forwards, backwards | step, ms | its passes alone, ms | ratio |", "|:--|--:|--:|--:|--:|"]
    for row in found["rows"]:
        cells = f"{row['forwards']}, {row['backwards']} | {row['step_ms']:.1f} | {row['passes_ms']:.1f}"
        lines.append(f"| {row['method']} | {cells} | {row['ratio']:.2f} |")
    told = f"{setting['network']}, batches of {setting['batch_size']}, {setting['hardware']}, torch {setting['torch']}"
    return "\n".join([*lines, "", f"{told}; random images (`benchmarks/passes.py`)."])


BENCHMARK_TABLES: dict[str, Callable[[], str]] = {
    **{name: functools.partial(benchmark_text, name) for name in (*PUBLISHED, RECIPE)},
    "recipes": recipes_text,
    "nearest": nearest_text,
    "train-step": train_step_text,
    "offtheshelf": offtheshelf_text,
    "times": times_text,
    "passes": passes_text,
}
