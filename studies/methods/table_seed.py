"""The systems that the VCoTTA paper compares with or names, the run on digits, and what a step stores."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from studies.files import read_result
from studies.markdown import table
from studies.methods.table import PUBLISHED, RECIPE, RESULTS, TRANSFORMER, errors_of
from vcotta.methods import find_method

SEED = {
    # What the paper calls each system, in its order: those of its tables, then those that it only names.
    "source": "Source",
    "bn": "BN",
    "tent": "TENT",
    "adacontrast": "AdaContrast",
    "cotta": "CoTTA",
    "eata": "EATA",
    "rotta": "RoTTA",
    "petal": "PETAL",
    "rmt": "RMT",
    "santa": "SANTA",
    "swa": "SWA",
    "dss": "DSS",
    "becotta": "BeCoTTA",
    "obao": "OBAO",
    "palm": "PALM",
    "surgeon": "SURGEON",
    "tca": "TCA",
    "vcotta": "VCoTTA",
    "vida": "ViDA (named)",
    "continual-mae": "Continual-MAE, ADMA (named)",
    "dvp": "DVP (named)",
    "ecotta": "ECoTTA (named)",
    "vcl": "VCL (named)",
}
OTHERWISE = {
    "vcl": "16.3 with the teacher as the only prior, a neighbour of this method",
    **{name: f"{TRANSFORMER[name][0]} on a ViT-B/16" for name in ("vida", "continual-mae", "dvp")},
}
"""Published errors that need a word."""


def seed_systems_text() -> str:
    """Return a row for each system: method, what it was written from, our error and where, and the published one."""
    headline = [
        row["error"] for row in read_result("headline", "cifar10c-headline.json") if row["name"] == "vcotta-best"
    ]
    recipe, usual = errors_of(RECIPE), errors_of("cifar10c") | {"vcotta": statistics.mean(headline)}
    digits, rows = errors_of("digits"), []
    for method, system in SEED.items():
        found = {"CIFAR10-C, published recipe": recipe, "CIFAR10-C, 30 epochs": usual, "**digits**": digits}
        where, errors = next((where, errors) for where, errors in found.items() if method in errors)
        published = OTHERWISE.get(method) or PUBLISHED["cifar10c"][method]
        rows.append(
            (f"`{method}`", system, find_method(method).card.provenance, f"{errors[method]:.1f}", where, published)
        )
    headings = ["Method", "System", "Written from", "Our error %", "of", "Published % (CIFAR10-C)"]
    note = (
        "CIFAR10-C: WRN-28-10, severity 5, one run each (VCoTTA's is the mean of three), on a network trained by the "
        "published recipe or for 30 epochs, the default. **Digits** are another data set, small and easy, with a small "
        "network: their errors show that a method runs, and cannot be compared with the published ones."
    )
    return f"{table(headings, rows, left=3)}\n\n{note}"


def digits_text() -> str:
    """Return the runs on digits, the lowest error first."""
    runs = {
        path.parent.name: read_result("methods", f"digits/{path.parent.name}/summary.json")
        for path in (RESULTS / "digits").glob("*/summary.json")
    }
    rows = [
        (
            f"`{method}`",
            f"{100 * run['mean']['error']:.2f}",
            f"{run['mean']['nll']:.3f}",
            f"{run['mean']['ece']:.3f}",
            f"{100 * run['domains'][-1]['error']:.1f}",
            f"{run['forwards']}, {run['backwards']}",
        )
        for method, run in sorted(runs.items(), key=lambda item: (item[1]["mean"]["error"], item[0]))
    ]
    manifest = read_result("methods", "digits/bn/manifest.json")
    stream = manifest["stream"]
    note = (
        f"Digits (another data set than the published errors'), {stream['images_per_domain']} images of each of the "
        f"fifteen corruptions, severity {stream['severities'][0]}, batches of {stream['batch_size']}, one seed, "
        f"the network of digits, {manifest['runtime']['precision']}, CPU, torch {manifest['versions']['torch']}."
    )
    headings = ["Method", "Error %", "NLL", "ECE", "last corruption, %", "forwards, backwards"]
    return f"{table(headings, rows)}\n\n{note}"


def collapse_text() -> str:
    """Say how the errors of VCL accumulate along the digits, and when they do not."""
    runs = {
        name: read_result("methods", f"digits/{name}/summary.json")
        for name in ("vcl", "vcotta-no-guard", "vcl-small-step", "vcl-paper", "vcotta-paper")
    }
    errors = {name: [100 * part["error"] for part in run["domains"]] for name, run in runs.items()}
    mean = {name: f"{100 * run['mean']['error']:.1f} %" for name, run in runs.items()}
    along = ", ".join(f"{error:.0f}" for error in errors["vcl"][:5])
    return (
        f"Errors accumulate, as the paper argues: with the step size of `vcotta`, `vcl` errs on {along} % of the first "
        f"five corruptions and ends at {errors['vcl'][-1]:.0f} %, where `vcotta` without its guard has "
        f"{mean['vcotta-no-guard']} in the mean. That needs steps of some size: with a tenth of it `vcl` has "
        f"{mean['vcl-small-step']}, and with the small steps of the preset `paper` {mean['vcl-paper']} beside "
        f"{mean['vcotta-paper']} of `vcotta`."
    )


def memory_text() -> str:
    """Return the activations that a step stores for its backward pass, by method."""
    found = read_result("methods", "memory.json")
    tent = next(row["stored"] for row in found["rows"] if row["method"] == "tent")
    rows = []
    for row in found["rows"]:
        again = row.get("again")
        shown = "-" if again is None else f"{again / 2**20:.2f}"
        rows.append((f"`{row['method']}`", f"{row['stored'] / 2**20:.2f}", f"{row['stored'] / tent:.2f}", shown))
    setting = found["setting"]
    note = (
        f"{setting['network']}, float32, images of {setting['side']} x {setting['side']}, torch {setting['torch']}; "
        "counted by hooks of autograd, without weights (`studies/methods/run_memory.py`)."
    )
    headings = ["Method", "MiB stored per image", "of TENT's", "MiB more while its largest part runs again"]
    return f"{table(headings, rows)}\n\n{note}"


TABLES: dict[str, Callable[[], str]] = {
    "seed-systems": seed_systems_text,
    "seed-digits": digits_text,
    "vcl-collapse": collapse_text,
    "ecotta-memory": memory_text,
}
