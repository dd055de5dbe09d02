"""The tables of the methods: each beside its published error, and networks that others trained."""

from __future__ import annotations

import functools
import json
import re
import statistics
from collections.abc import Callable

from studies.files import read_result, results_of
from studies.markdown import listed, table

RESULTS = results_of("methods")
RECIPE = "cifar10c-recipe"
"""The runs from a network that was trained as the published one was, as far as that is known."""
PUBLISHED = {
    # Mean error in per cent, continual, severity 5: the papers' own and the test-time-adaptation benchmark's numbers;
    # those of EcoTTA are from SURGEON's paper, those of BECoTTA, SWA and DSS from VCoTTA's.
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
        "foa": "-",
        "come": "-",
        "rem": "-",
        "ecotta": "16.8",
        "becotta": "16.3",
        "swa": "15.3",
        "dss": "16.0",
        "vida": "-",
        "continual-mae": "-",
        "dvp": "-",
        "vcotta": "13.1",
        "vcl": "-",
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
        "foa": "-",
        "come": "-",
        "rem": "-",
        "ecotta": "33.3",
        "becotta": "35.5",
        "swa": "30.0",
        "dss": "30.9",
        "vida": "-",
        "continual-mae": "-",
        "dvp": "-",
        "vcotta": "28.4",
        "vcl": "-",
    },
}
TRANSFORMER = {
    # The same of a ViT-B/16, CIFAR at 384 pixels and ImageNet at 224, as later papers repeat them in their tables.
    "source": ("28.1", "35.4", "55.8"),
    "tent": ("23.5", "32.1", "51.0"),
    "cotta": ("24.6", "34.8", "54.8"),
    "rotta": ("-", "-", "48.2"),
    "sar": ("-", "-", "45.6"),
    "vida": ("20.7", "27.3", "43.4"),
    "continual-mae": ("12.6", "26.4", "42.5"),
    "dvp": ("24.1", "32.0", "50.0"),
}


def benchmark_text(name: str) -> str:
    """Return the tables of one benchmark: ours beside the published error, from one run of each method.

    A folder METHOD-FORM holds a variant of the method that has no published error; a benchmark NAME-KIND has another
    network.
    """
    order = {method: (place, text) for place, (method, text) in enumerate(PUBLISHED[name.split("-")[0]].items())}
    ran = sorted((p.parent.name for p in (RESULTS / name).glob("*/summary.json")), key=lambda m: order[m.split("-")[0]])
    runs = {method: read_result("methods", f"{name}/{method}/summary.json") for method in ran}
    rows = []
    for method, run in runs.items():
        mean, seconds = run["mean"], statistics.mean(part["seconds"] for part in run["domains"][1:])
        scores = [f"{mean[score]:.3f}" for score in ("nll", "brier", "ece")]
        cost = [f"{seconds:.2f}", f"{run['peak_memory'] / 2**30:.2f}", f"{run['forwards']}, {run['backwards']}"]
        published = order[method][1] if method in order else "-"
        rows.append((method, f"{100 * mean['error']:.1f}", published, *scores, *cost))
    headings = ["Method", "Error %", "published", "NLL", "Brier", "ECE", "seconds per corruption", "peak GiB"]
    domains = [part["domain"].replace("_", " ") for part in runs[ran[0]]["domains"]]
    by_corruption = [
        (domain, *(f"{100 * run['domains'][place]['error']:.1f}" for run in runs.values()))
        for place, domain in enumerate(domains)
    ]
    manifest = read_result("methods", f"{name}/bn/manifest.json")
    stream = manifest["stream"]
    frost = manifest.get("frost") or stream["frost"]  # earlier runs noted it beside the stream
    pixels = "of `vcotta corrupt`" if stream["pixels"] == "files" else f"generated with seed {stream['seed']}"
    note = (
        f"{stream['images_per_domain']} images of each of the fifteen corruptions, severity {stream['severities'][0]}, "
        f"batches of {stream['batch_size']}, pixels {pixels} ({frost} frost), {manifest['network']}, "
        f"{manifest['runtime']['precision']}, torch {manifest['versions']['torch']}. Seconds are the mean of the last "
        "fourteen, as the first has compilations in it; passes are over batches of the whole run."
    )
    tables = (table([*headings, "forwards, backwards"], rows), table(["Error %", *ran], by_corruption))
    return "\n\n".join([*tables, note])


def recipes_text() -> str:
    """Return errors, and gains over BN, by how the network was trained, beside the published ones."""
    folders = {"cifar10c": "30 epochs, decay 5e-4", "cifar10c-decay": "30 epochs, decay 1e-4", RECIPE: "its recipe"}
    found = {folder: errors_of(folder) for folder in folders}
    published = published_errors("cifar10c")
    rows, beside = [], {}
    for method in (method for method in PUBLISHED["cifar10c"] if method in found[RECIPE]):
        gains = [published["bn"][0] - error for error in published[method]]
        cells = [f"{PUBLISHED['cifar10c'][method]} ({' to '.join(f'{gain:.1f}' for gain in gains)})"]
        for errors in found.values():
            cells.append(f"{errors[method]:.1f} ({errors['bn'] - errors[method]:.1f})" if method in errors else "-")
        rows.append((method, *cells))
        gain = found[RECIPE]["bn"] - found[RECIPE][method]
        beside[method] = min((gain - other for other in gains), key=abs)
    adapting = {method: gap for method, gap in beside.items() if method not in ("source", "bn")}
    least, most = (choose(adapting, key=adapting.__getitem__) for choose in (min, max))
    note = (
        "Error %, and in brackets how far it is below BN's. On the last network the gains are between "
        f"{abs(adapting[least]):.2f} less ({least}) and {adapting[most]:.2f} more ({most}) than the published ones, of "
        "two the nearer."
    )
    return f"{table(['Method', 'as published', *folders.values()], rows)}\n\n{note}"


def nearest_text() -> str:
    """Say which method comes nearest to VCoTTA, on two networks."""
    usual, recipe = errors_of("cifar10c"), errors_of(RECIPE)
    near, best = (min(errors, key=errors.__getitem__) for errors in (usual, recipe))
    return (
        f"On the WRN-28-10 of 30 epochs, of {len(usual) - 2} other methods that learn {near.upper()} comes nearest "
        f"to VCoTTA, with {usual[near]:.1f} % (TCA was run there with a larger step than it has now). On a WRN-28-10 "
        f"of the published recipe {best.upper()} has {recipe[best]:.1f} % where BN has {recipe['bn']:.1f} "
        "([all of them](../methods/page.md)); [equal terms](../equal-terms/page.md) has VCoTTA beside all others on "
        "that one."
    )


def decay_again_text() -> str:
    """Say what a second network of the lower weight decay gives."""
    first, second = errors_of("cifar10c-decay"), errors_of("cifar10c-decay-again")
    found = [
        f"{method.upper()} has {second[method]:.1f} instead of {first[method]:.1f} %"
        for method in ("bn", "tent", "obao")
    ]
    return (
        "A second network of 30 epochs and a decay of 1e-4, made by the same command with the same seed, differs: on "
        f"it {', '.join(found)}. On the first, RMT without its warm-up has {first['rmt-cold']:.1f} %."
    )


def tent_again_text() -> str:
    """Say how far TENT's error moves by starts that should not matter."""
    rows = read_result("step_sizes", "tent-starts.json")
    (slower,) = (row for row in rows if row["options"])
    same = [row for row in rows if not row["options"]]
    (usual,) = (row for row in same if row["start"]["kernel"] == "fused" and not row["start"]["noise"])
    noisy = [row for row in same if row["start"]["noise"]]
    others = [row for row in same if row["start"]["kernel"] != "fused"]
    of_noise, of_kernels = (
        listed([f"{error:.1f}" for error in sorted(row["error"] for row in part)]) for part in (noisy, others)
    )
    return (
        f"TENT amplifies rounding. On the same network it has {usual['error']:.1f} % with Adam's fused kernel, "
        f"{of_kernels} % with the two kernels that round in another order, and {of_noise} % with the "
        f"fused kernel and relative noise of {noisy[0]['start']['noise']:g} on the weights "
        "(`studies/step_sizes/run.py`). The first three corruptions are nearly the same in all of them; from the "
        f"fourth on they part. With the step size at {slower['options']['lr']:g} one run has {slower['error']:.1f} %. "
        "(A forerunner of the script made these rows; it did not keep the NLL.)"
    )


def transformer_text() -> str:
    """Return the published errors on a vision transformer."""
    rows = [(method, *errors) for method, errors in TRANSFORMER.items()]
    return table(["Published error %, ViT-B/16", "CIFAR10-C", "CIFAR100-C", "ImageNet-C"], rows)


def errors_of(name: str) -> dict[str, float]:
    """Return the mean error of each method of a benchmark, in per cent."""
    paths = (RESULTS / name).glob("*/summary.json")
    return {path.parent.name: 100 * json.loads(path.read_text())["mean"]["error"] for path in paths}


def published_errors(name: str) -> dict[str, list[float]]:
    """Return the published errors of each method: none, one, or the ends of a range."""
    return {method: [float(n) for n in re.findall(r"[0-9.]+", text)] for method, text in PUBLISHED[name].items()}


def offtheshelf_text() -> str:
    """Return the errors of networks that others trained, on clean test images."""
    rows = read_result("methods", "offtheshelf.json")
    shown = [
        (
            *(row[key] for key in ("network", "dataset")),
            f"`{row['weights_sha256'][:16]}`",
            *(row[key] for key in ("images", "wrong")),
            f"{100 * row['error']:.2f}",
        )
        for row in rows
    ]
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    headings = ["Network", "Data", "SHA-256 of the weights", "Images", "Wrong", "Error %"]
    note = f"torch {versions}, float32, one CPU thread (`studies/methods/run_offtheshelf.py`)."
    return f"{table(headings, shown, left=3)}\n\n{note}"


TABLES: dict[str, Callable[[], str]] = {
    **{name: functools.partial(benchmark_text, name) for name in (*PUBLISHED, RECIPE)},
    "recipes": recipes_text,
    "transformer": transformer_text,
    "nearest": nearest_text,
    "decay-again": decay_again_text,
    "tent-again": tent_again_text,
    "offtheshelf": offtheshelf_text,
}
