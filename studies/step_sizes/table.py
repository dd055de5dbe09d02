"""The tables of step sizes: starts that compute the same, and the size of weights."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result, results_of
from studies.markdown import listed, table
from vcotta.corruptions import STANDARD
from vcotta.experiments.paper.values import BY_CORRUPTION, MEANS

# The layer that a public copy of RobustBench's `Standard`, cut off after 0.8 MB, holds four fifths of, and its size.
PUBLISHED_LAYER = ("block1.layer.2.conv2", 0.0138)
HELD_OUT = "images of each of the four extra corruptions at severities 3 to 5"


def sizes_text() -> str:
    """Return how large the weights of our networks are, beside what is known of the published ones."""
    rows = read_result("step_sizes", "weight-sizes.json")
    shown = [
        (f"{row['network']}, {row['called']}", *(_size(row[kind]) for kind in ("convolutions", "scales")))
        for row in rows
    ]
    layer, published = PUBLISHED_LAYER
    ours = listed([f"{row['layers'][layer]:.4f} ({row['called']})" for row in rows if layer in row["layers"]])
    note = (
        f"Medians over the layers, with the smallest and the largest (`studies/step_sizes/run_sizes.py`). The "
        f"published WRN-28-10 is known in one convolution only, `{layer}`: {published}, where ours have {ours}."
    )
    headings = ["Network", "root mean square of a convolution", "scales of a BatchNorm layer"]
    return f"{table(headings, shown)}\n\n{note}"


def _size(found: dict[str, float]) -> str:
    return f"{found['median']:.3f} ({found['smallest']:.3f} to {found['largest']:.3f})"


def scaled_text(name: str, kind: str = "scale") -> str:
    """Return errors of methods from a network and from the same one with its weights multiplied."""
    rows = read_result("step_sizes", f"{name}.json")
    scales = sorted({row["start"][kind] for row in rows}, key=lambda scale: (scale != 1, -scale))
    shown = []
    for method, options in dict.fromkeys((row["method"], json.dumps(row["options"])) for row in rows):
        same = [row for row in rows if (row["method"], json.dumps(row["options"])) == (method, options)]
        found = {row["start"][kind]: _scores(row) for row in same}
        given = "".join(f", `{name}={value}`" for name, value in json.loads(options).items())
        shown.append((f"{method}{given}", *(found.get(scale, "-") for scale in scales)))
    note = f"Error % / NLL, {rows[0]['images']} {HELD_OUT}; {rows[0]['hardware']} (`studies/step_sizes/run.py`)."
    return f"{table(['Method', *map(_times, scales)], shown)}\n\n{note}"


def _times(scale: float) -> str:
    return "as it is" if scale == 1 else f"times {scale:g}"


def _scores(row: dict[str, Any]) -> str:
    return f"{row['error']:.2f} / {row['nll']:.3f}"


def obao_starts_text() -> str:
    """Return OBAO's error on each of the fifteen, by the size of the weights it starts from, and the published row."""
    rows = read_result("step_sizes", "obao-starts.json")
    shown: list[tuple[object, ...]] = [
        (_times(row["start"]["scale"]), *(f"{error:.1f}" for error in (*row["errors"], row["error"]))) for row in rows
    ]
    published = (*BY_CORRUPTION["main"]["cifar10"]["obao"], MEANS["main"]["cifar10"]["obao"])
    shown.append(("as published, 10000 images each", *published))
    note = f"{rows[0]['images']} images each; {rows[0]['hardware']} (`studies/step_sizes/run.py`)."
    return f"{table(['', *(name.replace('_', ' ') for name in STANDARD), 'mean'], shown)}\n\n{note}"


def tca_forms_text() -> str:
    """Compare TCA with directions and with features on held-out corruptions, in two sentences."""
    unit, raw = sorted(read_result("step_sizes", "tca-forms.json"), key=lambda row: not row["options"]["unit"])
    return (
        f"On the WRN-28-10 and the four extra corruptions at severities 3 to 5, {unit['images']} images each and "
        f"{unit['options']['views']} views, TCA has {unit['error']:.2f} % (NLL {unit['nll']:.3f}) by directions and "
        f"{raw['error']:.2f} % ({raw['nll']:.3f}) by features as they are. On the first of the twelve the features are "
        f"ahead ({raw['errors'][0]:.1f} against {unit['errors'][0]:.1f} %), on the last the directions "
        f"({unit['errors'][-1]:.1f} against {raw['errors'][-1]:.1f} %)."
    )


def tca_steps_text() -> str:
    """Return TCA's error by its step size and the size of the weights it starts from."""
    rows = read_result("step_sizes", "tca-steps.json")
    scales = sorted({row["start"]["scale"] for row in rows}, reverse=True)
    shown = []
    for step in sorted({row["options"]["lr"] for row in rows}):
        found = {row["start"]["scale"]: row for row in rows if row["options"]["lr"] == step}
        shown.append((f"{step:g}", *(_scores(found[scale]) for scale in scales)))
    note = (
        f"Error % / NLL; ResNet-20 from outside, {rows[0]['options']['views']} views, {rows[0]['images']} {HELD_OUT}; "
        f"{rows[0]['hardware']}."
    )
    return f"{table(['`lr`', *map(_times, scales)], shown, left=0)}\n\n{note}"


def small_network_text() -> str:
    """Say what some methods reach on a ResNet-20 from outside."""
    folder = results_of("step_sizes") / "cifar10c-resnet20"
    runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))}
    carried = read_result("headline", "cifar10c-carried.json")
    beside = {row["name"]: row for row in carried if row["network"] == "resnet-20"}
    ours = listed([f"{_shown(name)} has {100 * run['mean']['error']:.1f} %" for name, run in runs.items()])
    theirs = " and ".join(
        f"{shown} has {beside[name]['error']:.1f}" for name, shown in (("bn", "BN"), ("cotta", "CoTTA"))
    )
    images = json.loads((folder / "tca" / "manifest.json").read_text())["stream"]["images_per_domain"]
    return (
        f"On the ResNet-20 from outside, {images} images of each of the fifteen, {ours}, where {theirs} "
        "([headline](../headline/page.md#networks-that-nobody-here-trained))."
    )


def _shown(name: str) -> str:
    """Return a method, with its step where the folder is named by one."""
    method, _, step = name.partition("-")
    return method.upper() + (f" (`lr={step}`)" if step else "")


def obao_official_text() -> str:
    """Compare OBAO here and by its official code on the same network and pixels, in a sentence."""
    found = read_result("step_sizes", "obao-official.json")
    errors = {
        (row["images"], row["draws"], row["code"]): statistics.mean(row["errors"].values()) for row in found["rows"]
    }
    drawn = {"the same": "the same random draws", "its own": "draws of their own"}
    pairs = [
        f"{errors[images, draws, 'ours']:.2f} against {errors[images, draws, 'official']:.2f} % "
        f"({images} images of each of the fifteen, {drawn[draws]})"
        for images, draws in dict.fromkeys((images, draws) for images, draws, _ in errors)
    ]
    return f"On the ResNet-20 from outside OBAO has here and by its official code {listed(pairs)}."


TABLES: dict[str, Callable[[], str]] = {
    "obao-starts": obao_starts_text,
    "sizes": sizes_text,
    "scaled": functools.partial(scaled_text, "scaled-starts"),
    "scaled-norms": functools.partial(scaled_text, "scaled-norms", "norm_scale"),
    "scaled-wrn": functools.partial(scaled_text, "scaled-starts-wrn"),
    "tca-forms": tca_forms_text,
    "tca-steps": tca_steps_text,
    "small-network": small_network_text,
    "obao-official": obao_official_text,
}
