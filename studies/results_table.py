"""The table of results in README.md: three benchmarks, each method from the plain and from the warmed network."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from studies.files import read_result
from studies.headline.table import headline_rows
from studies.markdown import listed, table
from studies.scores import Row
from vcotta.experiments.paper.values import PAPER
from vcotta.methods import VCoTTAConfig

METHODS = {
    "source": "no adaptation",
    "bn": "BN",
    "tent": "TENT",
    "eata": "EATA",
    "roid": "ROID",
    "cotta": "CoTTA",
    "rmt": "RMT",
    "santa": "SANTA",
    "palm": "PALM",
    "tca": "TCA",
    "vcotta": "**VCoTTA**",
}
STARTS = ("plain", "warmed")
TITLES = {"cifar10": "CIFAR10-C", "cifar100": "CIFAR100-C", "imagenet": "ImageNet-C"}
Errors = dict[tuple[str, str], float]
"""Error by method and start."""


def results_text() -> str:
    """Return the errors, what they were measured on, and how VCoTTA compares with the best other method."""
    errors = {"cifar10": _equal_terms(), "cifar100": _headline(), "imagenet": _imagenet()}
    rows = []
    for method, label in METHODS.items():
        cells = [found.get((method, start)) for found in errors.values() for start in STARTS]
        rows.append((label, *("" if error is None else f"{error:.1f}" for error in cells)))
    headings = ["Error %", *(f"{title}, {start}" for title in TITLES.values() for start in STARTS)]
    return "\n\n".join([table(headings, rows), _measured(), _compared(errors)])


def _equal_terms() -> Errors:
    rows = read_result("equal-terms", "cifar10c.json")
    return _means(_as_many(rows))


def _imagenet() -> Errors:
    return _means(_as_many(read_result("imagenet", "imagenetc.json")))


def _as_many(rows: list[Row]) -> list[Row]:
    """Return the rows of as many images as BN's, VCoTTA's with its default settings."""
    (count,) = {row["images"] for row in rows if row["method"] == "bn"}
    return [row for row in rows if row["images"] == count and _is_default(row)]


def _is_default(row: Row) -> bool:
    return row["method"] != "vcotta" or (row["preset"], row["views"]) == ("best", VCoTTAConfig().views)


def _headline() -> Errors:
    rows = [row for row in headline_rows("headline", "cifar100") if row["preset"] in (None, "best")]
    warmed = ("bn-warmed", "vcotta-best")
    names = [row | {"start": "warmed" if row["name"] in warmed else "plain"} for row in rows]
    return _means([row | {"method": row["method"].removesuffix("-warmed")} for row in names])


def _means(rows: list[Row]) -> Errors:
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["start"]), []).append(row["error"])
    return {key: statistics.fmean(values) for key, values in found.items()}


def _measured() -> str:
    """Say what the numbers were measured on."""
    cifar, photographs = (
        next(row for row in read_result(study, f"{part}.json") if row["method"] == "bn")
        for study, part in (("equal-terms", "cifar10c"), ("imagenet", "imagenetc"))
    )
    published = listed([f"{PAPER['main'][name]['vcotta']:g}" for name in TITLES])
    return (
        f"Mean of fifteen corruptions at severity 5, mostly one run each: {cifar['images']} images of each on "
        f"CIFAR10-C (WRN-28-10) and {photographs['images']} on ImageNet-C (ResNet-50), 10000 on CIFAR100-C "
        f"(ResNeXt-29, VCoTTA with 32 views); {cifar['hardware']}. `plain` is the network as it was trained, `warmed` "
        "the same after "
        "VCoTTA's warm-up on source images, from which any method may start. An empty cell was not measured. The "
        "networks for CIFAR were trained here, and our own generator made the pixels (with procedural frost "
        f"textures), so published numbers are only roughly comparable: the paper has {published} % for VCoTTA."
    )


def _compared(errors: dict[str, Errors]) -> str:
    """Say how VCoTTA compares with the best other method, from the same network where that was measured."""
    parts = []
    for name, title in TITLES.items():
        ours = errors[name]["vcotta", "warmed"]
        warmed = {key: error for key, error in errors[name].items() if key[1] == "warmed" and key[0] != "vcotta"}
        learn = {key for key in warmed if key[0] != "bn"}
        rivals = warmed if learn else {key: error for key, error in errors[name].items() if key[0] != "vcotta"}
        method, start = min(rivals, key=rivals.__getitem__)
        best, words = rivals[method, start], "the same network" if learn else f"the {start} network"
        order = "less" if ours < best else "more"
        name = METHODS.get(method, method)
        parts.append(f"on {title} {ours:.1f} %, {abs(ours - best):.1f} points {order} than {name} from {words}")
    said = f"VCoTTA, with {VCoTTAConfig().views} views, has {listed(parts)}."
    plain = {title: errors[name].get(("vcotta", "plain")) for name, title in TITLES.items()}
    if without := [f"{error:.1f} % on {title}" for title, error in plain.items() if error is not None]:
        said += f" Without the warm-up it has {listed(without)}."
    rows = read_result("equal-terms", "cifar10c.json")
    full = _means([row for row in rows if row["images"] is None and _is_default(row)]).get(("vcotta", "warmed"))
    return said if full is None else f"{said} On all images of CIFAR10-C it has {full:.1f} %."


TABLES: dict[str, Callable[[], str]] = {"results": results_text}
