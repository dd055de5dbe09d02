"""The tables on CIFAR-100's held-out corruptions and on the length of its network's training."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result, results_of
from studies.headline.table import headline_rows
from studies.markdown import table
from studies.methods.table import PUBLISHED


def second_text() -> str:
    """Return one sentence: mean errors over the seeds beside the published ones."""
    rows, shown = headline_rows("headline", "cifar100"), []
    labels = {"Source": "source", "BN": "bn", "ROID": "roid", "CoTTA": "cotta", "**VCoTTA**": "vcotta"}
    for label, method in labels.items():
        errors = [row["error"] for row in rows if row["method"] == method and row["preset"] != "paper"]
        shown.append(f"{label} {statistics.mean(errors):.1f} ({PUBLISHED['cifar100c'][method]})")
    return (
        "On CIFAR100-C, with the same preset, a ResNeXt-29 trained on AugMix images and a warm-up of its own (in "
        f"brackets, as published): {', '.join(shown)} %."
    )


def tuned_cifar100_text() -> str:
    """Return what `vcotta tune` found on CIFAR-100's held-out corruptions with the network of 28 epochs."""
    names = [path.stem for path in (results_of("headline") / "tune" / "cifar100").glob("*.json")]
    shown = []
    for name in sorted(names, key=lambda name: ("-severity" in name, name)):
        found, method = read_result("headline", f"tune/cifar100/{name}.json"), name.split("-severity")[0]
        severities = ", ".join(map(str, found["severities"]))
        shown += [(method, _options(trial), severities, *_scores(trial)) for trial in found["trials"]]
    note = "1000 images of each corruption and severity, one seed (`vcotta tune --limit 1000`)."
    return f"{table(['Method', 'Options', 'Severities', 'Error %', 'NLL'], shown, left=3)}\n\n{note}"


def tuned_longer_text() -> str:
    """Return what `vcotta tune` found with the network of 100 epochs, and a larger step's errors on the fifteen.

    The files are named by the images of each corruption and severity.
    """
    shown = []
    for path in sorted((results_of("headline") / "tune" / "cifar100-longer").glob("*.json")):
        trials = read_result("headline", f"tune/cifar100-longer/{path.name}")["trials"]
        shown += [(_options(trial), path.stem.removeprefix("vcotta-"), *_scores(trial)) for trial in trials]
    larger = read_result("headline", "cifar100c-step/vcotta/summary.json")["mean"]
    step = read_result("headline", "cifar100c-step/vcotta/manifest.json")["config"]["lr"]
    same = _fifteen("vcotta-views-5")
    note = (
        "Images of each corruption and severity (3, 4 and 5), one seed. On the fifteen, 10 000 images each and 32 "
        f"views, `lr={step}` has {100 * larger['error']:.2f} % (NLL {larger['nll']:.3f}), the preset's step "
        f"{same['error']:.2f} ({same['nll']:.3f}). All from a warm-up of 5 epochs with views."
    )
    return f"{table(['Options', 'Images', 'Error %', 'NLL'], shown)}\n\n{note}"


def training_length_text() -> str:
    """Return what was run on the network of 28 epochs beside that of 100, both warmed up with views."""
    longer = {row["name"]: row for row in headline_rows("headline", "cifar100") if row["seed"] == 0}
    longer |= {"bn-warmed": _fifteen("bn-views-5"), "vcotta-best": _fifteen("vcotta-views-5")}
    shorter = {row["name"]: row for row in headline_rows("headline-28", "cifar100") if row["seed"] == 0}
    shown = [
        (name, *(", ".join(_scores(row)) for row in (before, longer[name])), f"{before['seconds_per_corruption']:.2f}")
        for name, before in shorter.items()
    ]
    headings = ["", "28 epochs: error %, NLL", "100 epochs: error %, NLL", "28 epochs: seconds per corruption"]
    return table(headings, shown)


def warmups_cifar100_text() -> str:
    """Return errors of BN and VCoTTA from the network of 100 epochs, by how it was warmed up."""
    found = read_result("headline", "warmups-cifar100.json")
    held = {_kind(row["config"]): row for row in found}
    assert len(held) == len(found), "two warm-ups that the columns do not tell apart"
    own = {(row["name"], row["seed"]): row for row in headline_rows("headline", "cifar100")}
    fifteen = {
        (5, False, 0.3): (_fifteen("bn-views-5"), _fifteen("vcotta-views-5")),
        (5, True, 0.3): (None, _fifteen("vcotta-augmix-5")),
        (10, True, 0.3): (own["bn-warmed", 0], own["vcotta-best", 0]),
    }
    rows = []
    for kind in sorted({*held, *fifteen}):
        row = held.get(kind, {})
        scores = [row.get("bn"), row.get("vcotta"), *fifteen.get(kind, (None, None))]
        epochs, mixed, ratio = kind
        images = ("views, by AugMix" if mixed else "views") if epochs else "-"
        cells = ("-" if one is None else ", ".join(_scores(one)) for one in scores)
        rows.append((images, epochs, ratio if epochs else "-", *cells))
    headings = ["images", "epochs", "r", "held out: BN", "held out: VCoTTA", "the fifteen: BN", "the fifteen: VCoTTA"]
    note = (
        f"Error %, NLL; one seed. Held out: {found[0]['images']} images of each corruption and severity (3, 4 and 5), "
        f"VCoTTA with 8 views (`studies/headline/run_warmups.py`); the fifteen: 10 000 images each, 32 views. "
        f"{found[0]['hardware']}, torch {found[0]['versions']['torch']}, {found[0]['runtime']['precision']}."
    )
    return f"{table(headings, rows)}\n\n{note}"


def warmups_resnet20_text() -> str:
    """Return one sentence on twice the epochs for a network that nobody here trained, on CIFAR-10."""
    rows = read_result("headline", "warmups-resnet20.json")
    shown = [
        f"with {row['config']['epochs']} epochs BN has {row['bn']['error']:.2f} % ({row['bn']['nll']:.3f}) and VCoTTA "
        f"{row['vcotta']['error']:.2f} % ({row['vcotta']['nll']:.3f})"
        for row in rows
    ]
    return (
        f"On CIFAR-10 and the ResNet-20 from outside, {rows[0]['images']} images of each held-out corruption and "
        f"severity, 8 views, one seed, {' and '.join(shown)}; in brackets the NLL ({rows[0]['hardware']}, "
        f"{rows[0]['runtime']['precision']}, `studies/headline/run_warmups.py`)."
    )


def _options(trial: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in trial["options"].items())


def _scores(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['error']:.2f}", f"{row['nll']:.3f}"


def _kind(config: dict[str, Any] | None) -> tuple[int, bool, float]:
    """Return epochs, AugMix and r of a warm-up, in which the table's rows differ; no epochs where there was none."""
    return (0, False, 0.0) if config is None else (config["epochs"], config["augmix"], config["sigma_ratio"])


def _fifteen(name: str) -> dict[str, Any]:
    """Return scores on the fifteen from a warm-up that the headline does not use, kept as METHOD-SHOWN-EPOCHS."""
    mean = read_result("headline", f"cifar100c-warmups/{name}/summary.json")["mean"]
    return {**mean, "error": 100 * mean["error"]}


TABLES: dict[str, Callable[[], str]] = {
    "second": second_text,
    "tuned-cifar100": tuned_cifar100_text,
    "tuned-longer": tuned_longer_text,
    "training-length": training_length_text,
    "warmups-cifar100": warmups_cifar100_text,
    "warmups-resnet20": warmups_resnet20_text,
}
