"""The tables of docs/step-sizes.md: what starts that compute the same do to a method, and what TENT makes of them."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

from vcotta.corruptions import STANDARD
from vcotta.experiments.paper_rows import BY_CORRUPTION, MEANS

RESULTS = Path(__file__).parent / "results"
# The layer that a public copy of RobustBench's `Standard`, cut off after 0.8 MB, holds four fifths of, and its size.
PUBLISHED_LAYER = ("block1.layer.2.conv2", 0.0138)


def tent_again_text() -> str:
    """How far starts that should not matter carry TENT."""
    rows = json.loads((RESULTS / "tent-starts.json").read_text())
    (slower,) = (row for row in rows if row["options"])
    same = [row for row in rows if not row["options"]]
    (usual,) = (row for row in same if row["start"]["kernel"] == "fused" and not row["start"]["noise"])
    noisy = [row for row in same if row["start"]["noise"]]
    others = [row for row in same if row["start"]["kernel"] != "fused"]
    errors = {name: _listed([row["error"] for row in part]) for name, part in (("noisy", noisy), ("others", others))}
    return (
        f"TENT amplifies rounding. On the same network it has {usual['error']:.1f} % with Adam's fused kernel, "
        f"{errors['others']} % with the two kernels that round in another order, and {errors['noisy']} % with the "
        f"fused kernel and relative noise of {noisy[0]['start']['noise']:g} on the weights (`benchmarks/starts.py`). "
        "The first three corruptions are nearly the same in all of them; from the fourth on they part. With the step "
        f"size at {slower['options']['lr']:g} one run has {slower['error']:.1f} %. (A forerunner of the script "
        "made these rows; it did not keep the NLL.)"
    )


def _listed(errors: list[float]) -> str:
    """Numbers in ascending order, as a sentence has them."""
    return _joined([f"{error:.1f}" for error in sorted(errors)])


def decay_again_text() -> str:
    """What a second network of the lower weight decay gives, as a sentence."""
    found = []
    for method in ("bn", "tent", "obao"):
        first, second = (
            json.loads((RESULTS / folder / method / "summary.json").read_text())["mean"]["error"]
            for folder in ("cifar10c-decay", "cifar10c-decay-again")
        )
        found.append(f"{method.upper()} has {100 * second:.1f} instead of {100 * first:.1f} %")
    cold = json.loads((RESULTS / "cifar10c-decay" / "rmt-cold" / "summary.json").read_text())["mean"]["error"]
    return (
        "A second network of 30 epochs and a decay of 1e-4, made by the same command with the same seed, differs: on "
        f"it {', '.join(found)}. On the first, RMT without its warm-up has {100 * cold:.1f} %."
    )


def sizes_text() -> str:
    """Table of how large the weights of our networks are, beside what is known of the published ones."""
    rows = json.loads((RESULTS / "weight-sizes.json").read_text())
    lines = [
        "| Network | root mean square of a convolution | scales of a BatchNorm layer |",
        "|:--|--:|--:|",
    ]
    for row in rows:
        cells = [
            f"{row[kind]['median']:.3f} ({row[kind]['smallest']:.3f} to {row[kind]['largest']:.3f})"
            for kind in ("convolutions", "scales")
        ]
        lines.append(f"| {row['network']}, {row['called']} | {' | '.join(cells)} |")
    layer, published = PUBLISHED_LAYER
    ours = _joined([f"{row['layers'][layer]:.4f} ({row['called']})" for row in rows if layer in row["layers"]])
    told = (
        f"Medians over the layers, with the smallest and the largest (`benchmarks/sizes.py`). The published WRN-28-10 "
        f"is known in one convolution only, `{layer}`: {published}, where ours have {ours}."
    )
    return "\n".join([*lines, "", told])


def scaled_text(name: str, kind: str = "scale") -> str:
    """Table of methods from a network and from the same one with its weights multiplied."""
    rows = json.loads((RESULTS / f"{name}.json").read_text())
    scales = sorted({row["start"][kind] for row in rows}, key=lambda scale: (scale != 1, -scale))
    heads = " | ".join("as it is" if scale == 1 else f"times {scale:g}" for scale in scales)
    lines = [f"| Method | {heads} |", "|:--" + "|--:" * len(scales) + "|"]
    for method, options in dict.fromkeys((row["method"], json.dumps(row["options"])) for row in rows):
        same = [row for row in rows if (row["method"], json.dumps(row["options"])) == (method, options)]
        found = {row["start"][kind]: f"{row['error']:.2f} / {row['nll']:.3f}" for row in same}
        given = "".join(f", `{name}={value}`" for name, value in json.loads(options).items())
        lines.append(f"| {method}{given} | {' | '.join(found.get(scale, '-') for scale in scales)} |")
    told = f"Error % / NLL, {rows[0]['images']} images of each of the four extra corruptions at severities 3 to 5"
    return "\n".join([*lines, "", f"{told}; {rows[0]['hardware']} (`benchmarks/starts.py`)."])


def obao_starts_text() -> str:
    """OBAO on each of the fifteen corruptions, by the size of the weights it starts from, beside its published row."""
    rows = json.loads((RESULTS / "obao-starts.json").read_text())
    lines = [f"| | {' | '.join(n.replace('_', ' ') for n in STANDARD)} | mean |", "|:--" + "|--:" * 16 + "|"]
    for row in rows:
        scale = row["start"]["scale"]
        cells = " | ".join(f"{error:.1f}" for error in (*row["errors"], row["error"]))
        lines.append(f"| {'as it is' if scale == 1 else f'times {scale:g}'} | {cells} |")
    published = (*BY_CORRUPTION["main"]["cifar10"]["obao"], MEANS["main"]["cifar10"]["obao"])
    lines.append(f"| as published, 10000 images each | {' | '.join(map(str, published))} |")
    return "\n".join([*lines, "", f"{rows[0]['images']} images each; {rows[0]['hardware']} (`benchmarks/starts.py`)."])


def tca_forms_text() -> str:
    """TCA with directions and with features, on held-out corruptions, as a sentence."""
    unit, raw = sorted(json.loads((RESULTS / "tca-forms.json").read_text()), key=lambda row: not row["options"]["unit"])
    return (
        f"On the WRN-28-10 and the four extra corruptions at severities 3 to 5, {unit['images']} images each and "
        f"{unit['options']['views']} views, TCA has {unit['error']:.2f} % (NLL {unit['nll']:.3f}) by directions and "
        f"{raw['error']:.2f} % ({raw['nll']:.3f}) by features as they are. On the first of the twelve the features are "
        f"ahead ({raw['errors'][0]:.1f} against {unit['errors'][0]:.1f} %), on the last the directions "
        f"({unit['errors'][-1]:.1f} against {raw['errors'][-1]:.1f} %)."
    )


def tca_steps_text() -> str:
    """Table of TCA by its step size and the size of the weights it starts from."""
    rows = json.loads((RESULTS / "tca-steps.json").read_text())
    scales = sorted({row["start"]["scale"] for row in rows}, reverse=True)
    heads = " | ".join("as it is" if scale == 1 else f"times {scale:g}" for scale in scales)
    lines = [f"| `lr` | {heads} |", "|--:" + "|--:" * len(scales) + "|"]
    for step in sorted({row["options"]["lr"] for row in rows}):
        found = {row["start"]["scale"]: row for row in rows if row["options"]["lr"] == step}
        cells = (f"{found[scale]['error']:.2f} / {found[scale]['nll']:.3f}" for scale in scales)
        lines.append(f"| {step:g} | {' | '.join(cells)} |")
    told = (
        f"ResNet-20 from outside, {rows[0]['options']['views']} views, {rows[0]['images']} images of each of the four"
    )
    return "\n".join(
        [*lines, "", f"Error % / NLL; {told} extra corruptions at severities 3 to 5; {rows[0]['hardware']}."]
    )


def small_network_text() -> str:
    """What some methods reach on a ResNet-20 from outside, as a sentence."""
    folder = RESULTS / "cifar10c-resnet20"
    runs = {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))}
    carried = json.loads((RESULTS / "cifar10c-carried.json").read_text())
    beside = {row["name"]: row for row in carried if row["network"] == "resnet-20"}
    ours = _joined([f"{_shown(name)} has {100 * run['mean']['error']:.1f} %" for name, run in runs.items()])
    theirs = " and ".join(
        f"{shown} has {beside[name]['error']:.1f}" for name, shown in (("bn", "BN"), ("cotta", "CoTTA"))
    )
    images = json.loads((folder / "tca" / "manifest.json").read_text())["stream"]["images_per_domain"]
    return (
        f"On the ResNet-20 from outside, {images} images of each of the fifteen, {ours}, where {theirs} "
        "([headline](headline.md#networks-that-nobody-here-trained))."
    )


def _shown(name: str) -> str:
    """A method, with its step where the folder is named by one."""
    method, _, step = name.partition("-")
    return method.upper() + (f" (`lr={step}`)" if step else "")


def obao_official_text() -> str:
    """OBAO here and by its official code on the same network and pixels, as a sentence."""
    found = json.loads((RESULTS / "obao-official.json").read_text())
    errors = {
        (row["images"], row["draws"], row["code"]): statistics.mean(row["errors"].values()) for row in found["rows"]
    }
    drawn = {"the same": "the same random draws", "its own": "draws of their own"}
    pairs = [
        f"{errors[images, draws, 'ours']:.2f} against {errors[images, draws, 'official']:.2f} % "
        f"({images} images of each of the fifteen, {drawn[draws]})"
        for images, draws in dict.fromkeys((images, draws) for images, draws, _ in errors)
    ]
    return f"On the ResNet-20 from outside OBAO has here and by its official code {_joined(pairs)}."


def _joined(words: list[str]) -> str:
    """Words as a sentence has them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


STEP_SIZES: dict[str, Callable[[], str]] = {
    "tent-again": tent_again_text,
    "decay-again": decay_again_text,
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
