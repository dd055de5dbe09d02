"""The tables of large networks: their warm-ups, and VCoTTA with one thing changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from studies.files import read_result
from studies.markdown import listed, table
from studies.scores import Row

NETWORKS = {
    "wrn-28-10": "WRN-28-10, CIFAR-10",
    "resnet-56": "ResNet-56, CIFAR-10",
    "resnet-50-v1": "ResNet-50, ImageNet",
}


def warmups_text() -> str:
    """Return a table for each network, a row for each warm-up."""
    parts = []
    headings = ["Warm-up", "Epochs", "Clean: means", "eight draws", "BN, corrupted: means", "draws"]
    headings += ["Sigma varies by: least", "median", "Way kept", "VCoTTA"]
    for network, title in NETWORKS.items():
        rows = []
        for row in sorted(_rows(network, "warm-up"), key=lambda row: (row["warm_up"] != "none", row["epochs"] or 5)):
            cells = [_pair(row[part]) for part in ("clean", "clean_draws", "corrupted", "corrupted_draws")]
            spread = [f"{row['spread'][part]:.2f}" for part in ("least", "median")]
            epochs = "-" if row["warm_up"] == "none" else str(row["epochs"] or 5)
            rows.append((row["warm_up"], epochs, *cells, *spread, _way(row["words"]), _pair(row["adapted"])))
        parts.append(f"**{title}**\n\n{table(headings, rows)}")
    return "\n\n".join([*parts, _note()])


def variants_text() -> str:
    """Return a row for each thing that was changed, with error and NLL on each network."""
    found = {network: {row["variant"]: row for row in _from_the_default(network)} for network in NETWORKS}
    found = {network: rows for network, rows in found.items() if len(rows) > 1}
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    cells = [
        (name, *(_pair(rows[name]["adapted"]) if name in rows else "" for rows in found.values())) for name in names
    ]
    return table(["VCoTTA", *(NETWORKS[network] for network in found)], cells)


def _from_the_default(network: str) -> list[Row]:
    """The rows of the warm-up of five epochs and what was changed from it."""
    rows = _rows(network, "warm-up") + _rows(network, "variant")
    return [row for row in rows if (row["warm_up"], row["epochs"]) == ("default", None)]


def _rows(network: str, what: str) -> list[Row]:
    rows: list[Row] = read_result("posterior", "large.json")
    return [row for row in rows if (row["network"], row["what"]) == (network, what)]


def _pair(scores: Row | None) -> str:
    return "" if scores is None else f"{scores['error']:.2f} / {scores['nll']:.3f}"


def _way(words: Sequence[str]) -> str:
    """Return the share of the warm-up's way that its held-back images let it go."""
    if any("the network keeps its weights" in word for word in words):
        return "0"
    found = (re.search(r"([\d.]+) of its (?:way|change to the weights) is kept", word) for word in words)
    return next((one[1] for one in found if one), "1")


def _note() -> str:
    rows = read_result("posterior", "large.json")

    def values(key: str, dataset: str | None = None) -> str:
        found = {row[key] for row in rows if dataset in (None, row["dataset"])}
        return listed([str(value) for value in sorted(found)])

    return (
        f"Error % / NLL; {values('limit', 'cifar10')} and {values('limit', 'imagenet')} images of each extra "
        f"corruption at severity 5, VCoTTA with {values('views')} views, one seed; {values('hardware')}, torch "
        f"{values('torch')} (`studies/posterior/large.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {"posterior-large": warmups_text, "posterior-variants": variants_text}
