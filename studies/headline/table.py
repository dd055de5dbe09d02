"""The tables of the headline and of the log of its search."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table
from vcotta.corruptions import STANDARD
from vcotta.experiments.paper.values import BY_CORRUPTION, MEANS
from vcotta.report.stats import half_width

SCORES = (("error", 2), ("nll", 3))


def headline_text(dataset: str = "cifar10") -> str:
    """Return the main table: mean over the seeds, and the range of the error."""
    shown = []
    for (method, preset), same in _by_method(headline_rows("headline", dataset)).items():
        error, nll, brier, ece = (
            statistics.mean(row[name] for row in same) for name in ("error", "nll", "brier", "ece")
        )
        seconds = statistics.mean(row["seconds_per_corruption"] for row in same)
        scores = (f"{error:.2f}", _interval([row["error"] for row in same]), f"{nll:.3f}", f"{brier:.3f}", f"{ece:.3f}")
        cost = (f"{seconds:.2f}", f"{max(row['peak_gib'] for row in same):.2f}")
        shown.append((method, preset or "", *scores, *cost))
    headings = [
        "Method",
        "Preset",
        "Error %",
        "95 % interval (runs)",
        "NLL",
        "Brier",
        "ECE",
        "seconds per corruption",
        "peak GiB",
    ]
    name = f"{dataset}c-headline"
    return "\n\n".join([table(headings, shown, left=2), "\n".join(_settings(name)), *_other_starts(name)])


def guarded_text() -> str:
    """Say what the same command reaches with VCoTTA's guard, which is on unless it is switched off."""
    row = read_result("headline", "cifar10c-guarded.json")
    acted = row["batches_with_intervention"]
    return (
        f"These rows were made with `--no-guard`. With its guard VCoTTA reaches "
        f"{row['error']:.2f} % (NLL {row['nll']:.3f}, seed {row['seed']}) on a network that was trained and warmed up "
        f"anew; the guard acted on {acted or 'none'} of the {row['batches']} batches."
    )


def _other_starts(name: str) -> list[str]:
    """Say which rows start from another warmed network than BN on the warmed network does, if any."""
    manifests = read_result("headline", f"{name}-manifests.json").values()
    starts = {one["cell"]["name"]: one["weights_sha256"] for one in manifests if one["cell"]["warmed"]}
    others = [row for row, start in starts.items() if start != starts["bn-warmed"]]
    return [f"Started from another warm-up than the others: {', '.join(others)}."] if others else []


def by_corruption_text(dataset: str = "cifar10") -> str:
    """Return the error on each corruption, mean over the seeds, and the paper's for VCoTTA and CoTTA."""
    shown = []
    for (method, preset), same in _by_method(headline_rows("headline", dataset)).items():
        means = [statistics.mean(errors) for errors in zip(*(row["errors"] for row in same), strict=True)]
        errors = (f"{error:.1f}" for error in (*means, statistics.mean(means)))
        shown.append((f"{method}{f' ({preset})' if preset else ''}", *errors))
    for method in ("cotta", "vcotta"):
        published = (*BY_CORRUPTION["main"][dataset][method], MEANS["main"][dataset][method])
        shown.append((f"{method}, as published", *published))
    return table(["", *(name.replace("_", " ") for name in STANDARD), "mean"], shown)


def carried_text() -> str:
    """Return mean error over the seeds and NLL of the same settings on other networks."""
    rows = headline_rows("carried")
    networks = list(dict.fromkeys(row["network"] for row in rows))
    shown = []
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [name]
        for network in networks:
            same = [row for row in rows if row["network"] == network and row["name"] == name]
            cells.append(", ".join(f"{statistics.mean(row[key] for row in same):.{digits}f}" for key, digits in SCORES))
        shown.append(cells)
    headings = ["", *(f"{name}: error %, NLL" for name in networks)]
    return f"{table(headings, shown)}\n\n{' '.join(_settings('cifar10c-carried'))}"


def _settings(name: str) -> list[str]:
    """Say what the runs of a part have in common, in a sentence for each network."""
    found: dict[str, str] = {}
    for manifest in read_result("headline", f"{name}-manifests.json").values():
        stream = manifest["stream"]
        what = f"15 x {stream['images_per_domain']} images, severity 5, batches of {stream['batch_size']}"
        where = f"{manifest['hardware']}, torch {manifest['versions']['torch']}, {manifest['runtime']['precision']}"
        found.setdefault(manifest["network"], f"{manifest['network']}, {what}; {where}.")
    return list(found.values())


def warmups_text() -> str:
    """Return the table of warm-ups, scored by BN on the result."""
    found = read_result("headline", "warmups.json")
    shown = []
    for row in found["rows"]:
        lr = "" if row["lr"] is None else f"{row['lr']:g}{' relative' * ('relative' in row['optimizer'])}"
        kappa, ratio = ("-" if row[key] is None else f"{row[key]:g}" for key in ("kl_weight", "sigma_ratio"))
        held_out = f"{row['heldout_error']:.2f}, {row['heldout_nll']:.3f}"
        clean = "" if row["clean_error"] is None else f"{row['clean_error']:.2f}"
        standard = "" if row["standard_error"] is None else f"{row['standard_error']:.1f}, {row['standard_nll']:.3f}"
        shown.append((kappa, ratio, lr, row["epochs"], row["images"], held_out, clean, standard))
    headings = ["kappa", "r", "lr", "epochs", "images"]
    headings += ["held out: error %, NLL", "clean error %", "the fifteen: error %, NLL"]
    note = f"{found['what']} {found['hardware']}, torch {found['torch']}, {found['precision']}."
    return f"{table(headings, shown, left=0)}\n\n{note}"


def trials_text(place: int) -> str:
    """Return the table of one set of trials."""
    found = read_result("headline", "trials.json")["sets"][place]
    columns = {"source": "source", "teacher": "teacher", "image": "mixture", "anchored": "anchored", "pooled": "pooled"}
    columns |= {"half_source": "pooled, half of it the source's"}
    columns = {key: title for key, title in columns.items() if any(key in row for row in found["rows"])}
    shown = []
    for row in found["rows"]:
        options = ", ".join(f"{key}={value}" for key, value in row["options"].items())
        shown.append((options, *(f"{row[key][0]:.2f} / {row[key][1]:.3f}" if key in row else "-" for key in columns)))
    note = f"{found['images']} images per corruption and severity, {found['views']} views."
    return f"{table(['Options', *columns.values()], shown)}\n\n{note}"


def step_times_text() -> str:
    """Return the table of what one step is made of."""
    found = read_result("headline", "step-times.json")
    shown = [(row["what"], row["when"], f"{row['ms']:g}") for row in found["rows"]]
    where = f"{found['hardware']}, torch {found['torch']}, cuDNN {found['cudnn']}, {found['precision']}"
    note = f"{where}; a large bf16 matrix product reaches {found['ceiling_tflops']} TFLOP/s."
    return f"{table(['What', '', 'ms'], shown, left=2)}\n\n{note}"


def decomposition_text() -> str:
    """Return what each ingredient adds to those above it."""
    rows = headline_rows("decomposition")
    return table(["", "Error %", "NLL"], [(row["name"], f"{row['error']:.2f}", f"{row['nll']:.3f}") for row in rows])


def gains_text() -> str:
    """Say for the page on how VCoTTA works which ingredients earn the gain."""
    names = ["BN", "+ warm-up", "+ mean teacher", "+ KL", "+ mixture", "+ views"]
    errors = {row["name"]: row["error"] for row in headline_rows("decomposition")}
    warm_up, teacher, divergence, mixture, views = (
        errors[before] - errors[after] for before, after in itertools.pairwise(names)
    )
    assert mixture < 0 < views, "the sentence says otherwise"
    manifests = read_result("headline", "cifar10c-decomposition-manifests.json").values()
    (images,), (seed,) = ({one["cell"][name] for one in manifests} for name in ("limit", "seed"))
    (network,), (version,) = {one["network"] for one in manifests}, {one["versions"]["vcotta"] for one in manifests}
    return (
        f"On CIFAR10-C ({images} images per corruption, seed {seed}, version {version}, a {network.upper()} of 30 "
        "epochs) nearly all of the gain over BN came from the warm-up "
        f"({warm_up:.1f} points, with the random views it trains on) and the mean teacher ({teacher:.1f}). "
        "What makes the method Bayesian at test time added little or nothing: the divergence "
        f"{divergence:.2f} points; the mixture of priors cost {-mixture:.1f}, of which the views gave back {views:.1f} "
        "([ingredients](../studies/headline/page.md#what-each-ingredient-adds), "
        "[ablations](../studies/reproduce/page.md#ablation-components-on-cifar10-c))."
    )


def loops_text() -> str:
    """Return the error in every round through the fifteen corruptions."""
    errors = headline_rows("loops")[0]["errors"]
    rounds = [statistics.mean(errors[start : start + 15]) for start in range(0, len(errors), 15)]
    headings = ["Round", *(str(number) for number in range(1, len(rounds) + 1))]
    return table(headings, [("Error %", *(f"{error:.2f}" for error in rounds))])


def precision_text() -> str:
    """Return the fast path beside float32."""
    rows, shown = headline_rows("precision"), []
    for name in dict.fromkeys(row["name"] for row in rows):
        same = [row for row in rows if row["name"] == name]
        by_seed = ", ".join(f"{row['error']:.2f}" for row in same)
        error, nll = (statistics.mean(row[key] for row in same) for key in ("error", "nll"))
        shown.append((name, by_seed, f"{error:.2f}", f"{nll:.3f}"))
    return table(["", "Error %, by seed", "mean", "NLL"], shown)


def _interval(errors: list[float]) -> str:
    """Return half the width of the 95 % interval of the mean error over seeds, and the number of runs."""
    return "1 run" if len(errors) == 1 else f"± {half_width(errors):.2f} ({len(errors)})"


def _by_method(rows: list[dict[str, Any]]) -> dict[tuple[str, str | None], list[dict[str, Any]]]:
    """Return rows by method and preset, all seeds of one together, the largest error first."""
    keys = dict.fromkeys((row["method"], row["preset"]) for row in sorted(rows, key=lambda row: -row["error"]))
    return {key: [row for row in rows if (row["method"], row["preset"]) == key] for key in keys}


def headline_rows(part: str, dataset: str = "cifar10") -> list[dict[str, Any]]:
    """Return what the study's run.py collected of one of its parts."""
    rows: list[dict[str, Any]] = read_result("headline", f"{dataset}c-{part}.json")
    return rows


TABLES: dict[str, Callable[[], str]] = {
    "headline": headline_text,
    "guarded": guarded_text,
    "by-corruption": by_corruption_text,
    "headline-cifar100": functools.partial(headline_text, "cifar100"),
    "by-corruption-cifar100": functools.partial(by_corruption_text, "cifar100"),
    "carried": carried_text,
    "decomposition": decomposition_text,
    "gains": gains_text,
    "loops": loops_text,
    "precision": precision_text,
    "warmups": warmups_text,
    **{f"trials-{place}": functools.partial(trials_text, place) for place in range(6)},
    "step-times": step_times_text,
}
