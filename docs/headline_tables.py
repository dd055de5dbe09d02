"""The tables of docs/headline.md, drawn from what benchmarks/headline.py, benchmarks/adapt.py and the search left."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vcotta.corruptions import STANDARD
from vcotta.experiments.paper_rows import BY_CORRUPTION, MEANS

RESULTS = Path(__file__).parent / "results"
NOT_YET = "Not measured yet."
SCORES = (("error", 2), ("nll", 3))


def headline_text(dataset: str = "cifar10") -> str:
    """The main table: mean over the seeds, and the range of the error."""
    rows = headline_rows("headline", dataset)
    if not rows:
        return NOT_YET
    lines = [
        "| Method | Preset | Error % | over seeds | NLL | Brier | ECE | s a corruption | peak GiB |",
        "|:--|:--" + "|--:" * 7 + "|",
    ]
    for (method, preset), same in _by_method(rows).items():
        mean = {name: statistics.mean(row[name] for row in same) for name in ("error", "nll", "brier", "ece")}
        errors = [row["error"] for row in same]
        seconds = statistics.mean(row["seconds_per_corruption"] for row in same)
        lines.append(
            f"| {method} | {preset or ''} | {mean['error']:.2f} | {_spread(errors)} | {mean['nll']:.3f} "
            f"| {mean['brier']:.3f} | {mean['ece']:.3f} | {seconds:.2f} | {max(row['peak_gib'] for row in same):.2f} |"
        )
    return "\n".join([*lines, "", *_settings(f"{dataset}c-headline"), *_other_starts(f"{dataset}c-headline")])


def _other_starts(name: str) -> list[str]:
    """Which rows start from another warmed network than BN on the warmed network does, if any."""
    manifests = json.loads((RESULTS / f"{name}-manifests.json").read_text()).values()
    starts = {one["cell"]["name"]: one["weights_sha256"] for one in manifests if one["cell"]["warmed"]}
    others = [row for row, start in starts.items() if start != starts["bn-warmed"]]
    return ["", f"Started from another warm-up than the others: {', '.join(others)}."] if others else []


def by_corruption_text(dataset: str = "cifar10") -> str:
    """Error on each corruption, mean over the seeds, and the paper's beside VCoTTA's and CoTTA's."""
    rows = headline_rows("headline", dataset)
    if not rows:
        return NOT_YET
    names = [name.replace("_", " ") for name in STANDARD]
    lines = [f"| | {' | '.join(names)} | mean |", "|:--" + "|--:" * 16 + "|"]
    for (method, preset), same in _by_method(rows).items():
        means = [statistics.mean(errors) for errors in zip(*(row["errors"] for row in same), strict=True)]
        cells = [f"{error:.1f}" for error in (*means, statistics.mean(means))]
        lines.append(f"| {method}{f' ({preset})' if preset else ''} | {' | '.join(cells)} |")
    for method in ("cotta", "vcotta"):
        published = [*BY_CORRUPTION["main"][dataset][method], MEANS["main"][dataset][method]]
        lines.append(f"| {method}, as published | {' | '.join(map(str, published))} |")
    return "\n".join(lines)


def carried_text() -> str:
    """The same settings on other networks: mean error over the seeds, and NLL."""
    rows = headline_rows("carried")
    if not rows:
        return NOT_YET
    networks = list(dict.fromkeys(row["network"] for row in rows))
    lines = [f"| | {' | '.join(f'{name}: error %, NLL' for name in networks)} |", "|:--" + "|--:" * len(networks) + "|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = []
        for network in networks:
            same = [row for row in rows if row["network"] == network and row["name"] == name]
            cells.append(", ".join(f"{statistics.mean(row[key] for row in same):.{digits}f}" for key, digits in SCORES))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", " ".join(_settings("cifar10c-carried"))])


def _settings(name: str) -> list[str]:
    """What the runs of a part have in common, a sentence for each network."""
    found = {}
    for manifest in json.loads((RESULTS / f"{name}-manifests.json").read_text()).values():
        stream = manifest["stream"]
        what = f"15 x {stream['images_per_domain']} images, severity 5, batches of {stream['batch_size']}"
        where = f"{manifest['hardware']}, torch {manifest['versions']['torch']}, {manifest['runtime']['precision']}"
        found.setdefault(manifest["network"], f"{manifest['network']}, {what}; {where}.")
    return list(found.values())


def warmups_text() -> str:
    """Table of warm-ups, scored by BN on the result."""
    found = json.loads((RESULTS / "headline" / "warmups.json").read_text())
    lines = [
        "| kappa | r | lr | epochs | images | held out: error %, NLL | clean error % | the fifteen: error %, NLL |",
        "|--:" * 8 + "|",
    ]
    for row in found["rows"]:
        lr = "" if row["lr"] is None else f"{row['lr']:g}{' relative' * ('relative' in row['optimizer'])}"
        standard = "" if row["standard_error"] is None else f"{row['standard_error']:.1f}, {row['standard_nll']:.3f}"
        clean = "" if row["clean_error"] is None else f"{row['clean_error']:.2f}"
        kappa, ratio = ("-" if row[key] is None else f"{row[key]:g}" for key in ("kl_weight", "sigma_ratio"))
        lines.append(
            f"| {kappa} | {ratio} | {lr} | {row['epochs']} | {row['images']} "
            f"| {row['heldout_error']:.2f}, {row['heldout_nll']:.3f} | {clean} | {standard} |"
        )
    return "\n".join(
        [*lines, "", f"{found['what']} {found['hardware']}, torch {found['torch']}, {found['precision']}."]
    )


def trials_text(place: int) -> str:
    """Table of one set of trials."""
    found = json.loads((RESULTS / "headline" / "trials.json").read_text())["sets"][place]
    columns = {"source": "source", "teacher": "teacher", "image": "mixture", "anchored": "anchored", "pooled": "pooled"}
    columns |= {"half_source": "pooled, half of it the source's"}
    columns = {key: title for key, title in columns.items() if any(key in row for row in found["rows"])}
    lines = [f"| Options | {' | '.join(columns.values())} |", "|:--" + "|--:" * len(columns) + "|"]
    for row in found["rows"]:
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        cells = " | ".join(f"{row[key][0]:.2f} / {row[key][1]:.3f}" if key in row else "-" for key in columns)
        lines.append(f"| {options} | {cells} |")
    return "\n".join([*lines, "", f"{found['images']} images a corruption and severity, {found['views']} views."])


def step_times_text() -> str:
    """Table of what one step is made of."""
    found = json.loads((RESULTS / "headline" / "step-times.json").read_text())
    lines = ["| What | | ms |", "|:--|:--|--:|"]
    lines += [f"| {row['what']} | {row['when']} | {row['ms']:g} |" for row in found["rows"]]
    where = f"{found['hardware']}, torch {found['torch']}, cuDNN {found['cudnn']}, {found['precision']}"
    return "\n".join([*lines, "", f"{where}; a large bf16 matrix product reaches {found['ceiling_tflops']} TFLOP/s."])


def decomposition_text() -> str:
    """Table of what each ingredient adds to those above it."""
    rows = headline_rows("decomposition")
    lines = ["| | Error % | NLL |", "|:--|--:|--:|"]
    lines += [f"| {row['name']} | {row['error']:.2f} | {row['nll']:.3f} |" for row in rows]
    return "\n".join(lines) if rows else NOT_YET


def loops_text() -> str:
    """Table of the error in every round through the fifteen corruptions."""
    rows = headline_rows("loops")
    if not rows:
        return NOT_YET
    errors = rows[0]["errors"]
    rounds = [statistics.mean(errors[start : start + 15]) for start in range(0, len(errors), 15)]
    numbers, means = range(1, len(rounds) + 1), (f"{error:.2f}" for error in rounds)
    return "\n".join(
        [
            f"| Round | {' | '.join(map(str, numbers))} |",
            "|:--" + "|--:" * len(rounds) + "|",
            f"| Error % | {' | '.join(means)} |",
        ]
    )


def precision_text() -> str:
    """Table of the fast path beside float32."""
    rows = headline_rows("precision")
    lines = ["| | Error %, by seed | mean | NLL |", "|:--|--:|--:|--:|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        same = [row for row in rows if row["name"] == name]
        errors = [row["error"] for row in same]
        nll, by_seed = statistics.mean(row["nll"] for row in same), ", ".join(f"{error:.2f}" for error in errors)
        lines.append(f"| {name} | {by_seed} | {statistics.mean(errors):.2f} | {nll:.3f} |")
    return "\n".join(lines) if rows else NOT_YET


def adapt_text() -> str:
    """Table of what adaptation costs on the fast path and on the plain one."""
    path = RESULTS / "adapt-benchmark.json"
    if not path.exists():
        return NOT_YET
    found = json.loads(path.read_text())
    ways = list(found["setting"]["ways"])
    columns = "s a corruption | TFLOP/s | of the ceiling | peak GiB"
    lines = [
        f"| | {' | '.join(f'{way}: {columns}' for way in ways)} | times faster |",
        "|:--" + "|--:" * (4 * len(ways) + 1) + "|",
    ]
    for name in dict.fromkeys(row["method"] for row in found["rows"]):
        rows = {row["way"]: row for row in found["rows"] if row["method"] == name}
        cells = [_cost(rows[way]) for way in ways]
        gain = rows[ways[-1]]["seconds"] / rows[ways[0]]["seconds"]
        lines.append(f"| {name} | {' | '.join(cells)} | {gain:.1f} |")
    setting = found["setting"]
    told = ", ".join(f"{key} {value}" for key, value in setting.items() if isinstance(value, str))
    warm = "; ".join(f"{way}: {row['epoch_seconds']:.1f} s" for way, row in zip(ways, found["warm_up"], strict=False))
    ceiling = f"The ceiling is {found['ceiling']['tflops']:.0f} TFLOP/s ({found['ceiling']['product']})."
    return "\n".join([*lines, "", f"{ceiling} An epoch of the warm-up: {warm or 'not measured'}. {told}."])


def _cost(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.2f} | {row['tflops']:.0f} | {100 * row['share']:.0f} % | {row['peak_gib'] or 0:.2f}"


def _spread(errors: list[float]) -> str:
    """The range of the error over the seeds, in words."""
    if len(errors) == 1:
        return "1 run"
    low, high = min(errors), max(errors)
    return f"{low:.2f} to {high:.2f} ({len(errors)})" if low < high else f"the same ({len(errors)})"


def _by_method(rows: list[dict[str, Any]]) -> dict[tuple[str, str | None], list[dict[str, Any]]]:
    """Rows by method and preset, all seeds of one together, the largest error first."""
    keys = dict.fromkeys((row["method"], row["preset"]) for row in sorted(rows, key=lambda row: -row["error"]))
    return {key: [row for row in rows if (row["method"], row["preset"]) == key] for key in keys}


def headline_rows(part: str, dataset: str = "cifar10") -> list[dict[str, Any]]:
    """What benchmarks/headline.py collected of one of its parts; nothing if it has not been run."""
    path = RESULTS / f"{dataset}c-{part}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return rows


HEADLINE: dict[str, Callable[[], str]] = {
    "headline": headline_text,
    "by-corruption": by_corruption_text,
    "headline-cifar100": functools.partial(headline_text, "cifar100"),
    "by-corruption-cifar100": functools.partial(by_corruption_text, "cifar100"),
    "carried": carried_text,
    "decomposition": decomposition_text,
    "loops": loops_text,
    "precision": precision_text,
    "adapt": adapt_text,
    "warmups": warmups_text,
    **{f"trials-{place}": functools.partial(trials_text, place) for place in range(6)},
    "step-times": step_times_text,
}
