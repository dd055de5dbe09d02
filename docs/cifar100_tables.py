"""The tables on CIFAR-100's held-out corruptions and on the length of its network's training."""

from __future__ import annotations

import json
from collections.abc import Callable

from headline_tables import RESULTS, headline_rows


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
    best = next(row for row in headline_rows("headline", "cifar100") if row["preset"] == "best" and row["seed"] == 0)
    told = (
        "Images of each corruption and severity (3, 4 and 5), one seed. On the fifteen, 10 000 images each and 32 "
        f"views, `lr={step}` has {100 * larger['error']:.2f} % (NLL {larger['nll']:.3f}), the preset's step "
        f"{best['error']:.2f} ({best['nll']:.3f})."
    )
    return "\n".join([*lines, "", told])


def training_length_text() -> str:
    """Table of the headline's methods on the network of 28 epochs and on that of 100."""
    longer = {row["name"]: row for row in headline_rows("headline", "cifar100") if row["seed"] == 0}
    shorter = {row["name"]: row for row in headline_rows("headline-28", "cifar100") if row["seed"] == 0}
    columns = "28 epochs: error %, NLL | 100 epochs: error %, NLL | 28 epochs: s a corruption"
    lines = [f"| | {columns} |", "|:--|--:|--:|--:|"]
    for name, row in longer.items():
        before = shorter.get(name)
        cells = ["-" if one is None else f"{one['error']:.2f}, {one['nll']:.3f}" for one in (before, row)]
        seconds = "-" if before is None else f"{before['seconds_per_corruption']:.2f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {seconds} |")
    return "\n".join(lines)


CIFAR100: dict[str, Callable[[], str]] = {
    "tuned-cifar100": tuned_cifar100_text,
    "tuned-longer": tuned_longer_text,
    "training-length": training_length_text,
}
