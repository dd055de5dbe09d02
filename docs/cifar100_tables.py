"""The tables on CIFAR-100's held-out corruptions and on the length of its network's training."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from typing import Any

from benchmark_tables import PUBLISHED
from headline_tables import RESULTS, headline_rows


def second_text() -> str:
    """One sentence for the README: mean errors over the seeds beside the published ones."""
    rows, told = headline_rows("headline", "cifar100"), []
    shown = {"Source": "source", "BN": "bn", "ROID": "roid", "CoTTA": "cotta", "**VCoTTA**": "vcotta"}
    for label, method in shown.items():
        errors = [row["error"] for row in rows if row["method"] == method and row["preset"] != "paper"]
        told.append(f"{label} {statistics.mean(errors):.1f} ({PUBLISHED['cifar100c'][method]})")
    return (
        "On CIFAR100-C, with the same preset, a ResNeXt-29 trained on AugMix images and a warm-up of its own (in "
        f"brackets, as published): {', '.join(told)} %."
    )


def tuned_cifar100_text() -> str:
    """Table of what `vcotta tune` found on CIFAR-100's held-out corruptions with the network of 28 epochs."""
    lines = ["| Method | Options | Severities | Error % | NLL |", "|:--|:--|:--|--:|--:|"]
    for path in sorted(
        (RESULTS / "tune" / "cifar100").glob("*.json"), key=lambda path: ("-severity" in path.stem, path.stem)
    ):
        found, method = json.loads(path.read_text()), path.stem.split("-severity")[0]
        severities = ", ".join(map(str, found["severities"]))
        for trial in found["trials"]:
            options = ", ".join(f"`{name}={value}`" for name, value in trial["options"].items())
            lines.append(f"| {method} | {options} | {severities} | {trial['error']:.2f} | {trial['nll']:.3f} |")
    return "\n".join(
        [*lines, "", "1000 images of each corruption and severity, one seed (`vcotta tune --limit 1000`)."]
    )


def tuned_longer_text() -> str:
    """Table of what `vcotta tune` found with the network of 100 epochs, and a larger step's fifteen.

    The files are named by the images of each corruption and severity.
    """
    lines = ["| Images | Options | Error % | NLL |", "|--:|:--|--:|--:|"]
    for path in sorted((RESULTS / "tune" / "cifar100-longer").glob("*.json")):
        for trial in json.loads(path.read_text())["trials"]:
            options = ", ".join(f"`{name}={value}`" for name, value in trial["options"].items())
            images = path.stem.removeprefix("vcotta-")
            lines.append(f"| {images} | {options} | {trial['error']:.2f} | {trial['nll']:.3f} |")
    larger = json.loads((RESULTS / "cifar100c-step" / "vcotta" / "summary.json").read_text())["mean"]
    step = json.loads((RESULTS / "cifar100c-step" / "vcotta" / "manifest.json").read_text())["config"]["lr"]
    same = _fifteen("vcotta-views-5")
    told = (
        "Images of each corruption and severity (3, 4 and 5), one seed. On the fifteen, 10 000 images each and 32 "
        f"views, `lr={step}` has {100 * larger['error']:.2f} % (NLL {larger['nll']:.3f}), the preset's step "
        f"{same['error']:.2f} ({same['nll']:.3f}). All from a warm-up of 5 epochs with views."
    )
    return "\n".join([*lines, "", told])


def training_length_text() -> str:
    """Table of what was run on the network of 28 epochs beside that of 100, both warmed up with views."""
    longer = {row["name"]: row for row in headline_rows("headline", "cifar100") if row["seed"] == 0}
    longer |= {"bn-warmed": _fifteen("bn-views-5"), "vcotta-best": _fifteen("vcotta-views-5")}
    shorter = {row["name"]: row for row in headline_rows("headline-28", "cifar100") if row["seed"] == 0}
    columns = "28 epochs: error %, NLL | 100 epochs: error %, NLL | 28 epochs: s a corruption"
    lines = [f"| | {columns} |", "|:--|--:|--:|--:|"]
    for name, before in shorter.items():
        cells = " | ".join(f"{row['error']:.2f}, {row['nll']:.3f}" for row in (before, longer[name]))
        lines.append(f"| {name} | {cells} | {before['seconds_per_corruption']:.2f} |")
    return "\n".join(lines)


def warmups_cifar100_text() -> str:
    """Table of what BN and VCoTTA make of the network of 100 epochs by how it was warmed up."""
    found = json.loads((RESULTS / "warmups-cifar100.json").read_text())
    held = {_kind(row["config"]): row for row in found}
    assert len(held) == len(found), "two warm-ups that the columns do not tell apart"
    own = {(row["name"], row["seed"]): row for row in headline_rows("headline", "cifar100")}
    fifteen = {
        (5, False, 0.3): (_fifteen("bn-views-5"), _fifteen("vcotta-views-5")),
        (5, True, 0.3): (None, _fifteen("vcotta-augmix-5")),
        (10, True, 0.3): (own["bn-warmed", 0], own["vcotta-best", 0]),
    }
    columns = "held out: BN | held out: VCoTTA | the fifteen: BN | the fifteen: VCoTTA"
    lines = [f"| epochs | shown | r | {columns} |", "|--:|:--|--:|--:|--:|--:|--:|"]
    for kind in sorted({*held, *fifteen}):
        row = held.get(kind, {})
        scores = [row.get("bn"), row.get("vcotta"), *fifteen.get(kind, (None, None))]
        cells = " | ".join("-" if one is None else f"{one['error']:.2f}, {one['nll']:.3f}" for one in scores)
        epochs, mixed, ratio = kind
        shown = ("views, by AugMix" if mixed else "views") if epochs else "-"
        lines.append(f"| {epochs} | {shown} | {ratio if epochs else '-'} | {cells} |")
    told = (
        f"Error %, NLL; one seed. Held out: {found[0]['images']} images of each corruption and severity (3, 4 and 5), "
        f"VCoTTA with 8 views (`benchmarks/warmups.py`); the fifteen: 10 000 images each, 32 views. "
        f"{found[0]['hardware']}, torch {found[0]['versions']['torch']}, {found[0]['runtime']['precision']}."
    )
    return "\n".join([*lines, "", told])


def warmups_resnet20_text() -> str:
    """One sentence on twice the epochs for a network that nobody here trained, on CIFAR-10."""
    rows = json.loads((RESULTS / "warmups-resnet20.json").read_text())
    told = [
        f"with {row['config']['epochs']} epochs BN has {row['bn']['error']:.2f} % ({row['bn']['nll']:.3f}) and VCoTTA "
        f"{row['vcotta']['error']:.2f} % ({row['vcotta']['nll']:.3f})"
        for row in rows
    ]
    return (
        f"On CIFAR-10 and the ResNet-20 from outside, {rows[0]['images']} images of each held-out corruption and "
        f"severity, 8 views, one seed, {' and '.join(told)}; in brackets the NLL ({rows[0]['hardware']}, "
        f"{rows[0]['runtime']['precision']}, `benchmarks/warmups.py`)."
    )


def _kind(config: dict[str, Any] | None) -> tuple[int, bool, float]:
    """Epochs, AugMix and r of a warm-up, in which the table's rows differ; no epochs where there was none."""
    return (0, False, 0.0) if config is None else (config["epochs"], config["augmix"], config["sigma_ratio"])


def _fifteen(name: str) -> dict[str, Any]:
    """Scores on the fifteen from a warm-up that the headline does not use, kept as METHOD-SHOWN-EPOCHS."""
    mean = json.loads((RESULTS / "cifar100c-warmups" / name / "summary.json").read_text())["mean"]
    return mean | {"error": 100 * mean["error"]}


CIFAR100: dict[str, Callable[[], str]] = {
    "second": second_text,
    "tuned-cifar100": tuned_cifar100_text,
    "tuned-longer": tuned_longer_text,
    "training-length": training_length_text,
    "warmups-cifar100": warmups_cifar100_text,
    "warmups-resnet20": warmups_resnet20_text,
}
