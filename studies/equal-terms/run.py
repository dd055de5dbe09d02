"""Every method from the plain and from the warmed network, on one GPU.

What: error, NLL, Brier score and ECE of each method on the fifteen corruptions at severity 5, its seconds, memory and
passes, from the same network as it was trained and after VCoTTA's warm-up. First every method with seed 0 and 2 000
images a corruption, from both; with ``--full`` then the six best others and VCoTTA on all images with three seeds, each
from the network it did better from.
How: corrupted images from files, so that they are made once. One process leaves a large GPU idle half the time: start
the same command several times, and each takes rows that no other is making; seconds are then those of a shared GPU.
Each method has its settings for the data set, its number of views included, and the guard it declares; what it learns
from source data it learns before its run, which is not timed. Seconds are the mean of the last fourteen corruptions, as
the first has compilations in it. A row is written as soon as it is there, and rows that are in the file are kept: the
same command continues where the last call was stopped. ``--minutes`` begins no run after this time, and a killed run is
resumed from its last two minutes. ``--plan`` prints the rows that are missing.

On one H200 in calls of at most ten minutes, six processes side by side: the network 570 s, its warm-up 180 s, the first
part of the paper's methods from both networks a quarter of an hour, VCoTTA on all images 210 s:

    vcotta train --dataset cifar10 --epochs 100 --batch-size 128 --lr 0.1 --rise 0 --weight-decay 1e-4 \
        --out wrn.safetensors
    vcotta warmup --dataset cifar10 --weights wrn.safetensors --out wrn-warm.safetensors
    vcotta corrupt cifar10 --out cifar10c
    run="python -m studies.equal-terms.run cifar10c --weights wrn.safetensors --warmed wrn-warm.safetensors \
        --corrupted cifar10c --device cuda --minutes 8"
    $run                           # 2 000 images: every method from both networks; twice, if it says so
    $run --full                    # then all images: as often as it says that minutes are over

CIFAR100-C takes the same commands for cifar100 and cifar100c. ``--out`` and ``--work`` say where rows and runs are
kept, if the machine is given back. Without a GPU, on digits:

    python -m studies.equal-terms.run digits --images 100 --seeds 0 1 2 --minutes 60
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from studies.cells import Cell, Row, fill, print_missing, scores_of, start_of
from studies.files import results_of
from vcotta.corruptions import STANDARD
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.methods import find_method, list_general_methods
from vcotta.runs.run import Run
from vcotta.runs.spec import RunSpec

DATA = {"cifar10c": "cifar10", "cifar100c": "cifar100", "digits": "digits"}
STARTS = ("plain", "warmed")
IMAGES, BEST, SEEDS = 2000, 6, (0, 1, 2)
KEYS = ("network", "method", "start", "preset", "seed", "images", "views")
UNRANKED = ("source", "bn", "vcotta")
"""Methods that are not among the best others: two that do not learn, and VCoTTA itself."""


def cells(options: argparse.Namespace, rows: list[Row]) -> Iterator[Cell]:
    """Yield the cells in order; those of all images follow from the rows so far."""
    for seed in options.seeds:
        for start in options.starts:
            for method in options.methods:
                ours = method == "vcotta"
                for preset in options.presets if ours else (None,):
                    for views in options.views if ours else (None,):
                        yield _cell(options, method, start, preset, seed, options.images or None, views)
    if options.full:
        for method, start in chosen(rows, options.images or None):
            for seed in SEEDS:
                yield _cell(options, method, start, "best" if method == "vcotta" else None, seed, None)


def chosen(rows: Sequence[Row], images: int | None) -> list[tuple[str, str]]:
    """Return VCoTTA and the best others, each with the start of its lower mean error."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["images"] == images and row["preset"] in (None, "best"):
            found.setdefault((row["method"], row["start"]), []).append(row["error"])
    order = sorted(found, key=lambda key: statistics.fmean(found[key]))
    best: dict[str, str] = {}
    for method, start in order:
        best.setdefault(method, start)
    others = [method for method in best if method not in UNRANKED][:BEST]
    return [(method, best[method]) for method in ("vcotta", *others) if method in best]


def _cell(
    options: argparse.Namespace,
    method: str,
    start: str,
    preset: str | None,
    seed: int,
    images: int | None,
    views: int | None = None,
) -> Cell:
    warmed = start == "warmed"
    asked = {"preset": preset, "views": views}
    spec = RunSpec(
        method,
        DATA[options.part],
        options.network,
        options.warmed if warmed else options.weights,
        options={name: value for name, value in asked.items() if value is not None},
        start=start_of(find_method(method).needs_variational, warmed),  # type: ignore[arg-type]
        corruptions=tuple(options.corruptions),
        limit=images,
        corrupted=options.corrupted,
        seed=seed,
        device=options.device,
    )
    network = options.network or find_benchmark(DATA[options.part]).network
    facts = {"network": network, "method": method, "start": start, "preset": preset, "seed": seed, "images": images}
    return Cell(facts | {"views": getattr(spec.config, "views", None)}, spec)


def scores(run: Run) -> Row:
    """Return scores and cost of a run: seconds without the first corruption, and passes over a batch."""
    summary, batches = run.summary(), run.manifest["batches"]
    seconds = [domain["seconds"] for domain in summary["domains"]]
    return scores_of(run) | {
        "seconds_per_corruption": round(statistics.fmean(seconds[1:] or seconds), 3),
        "forwards": round(summary["forwards"] / batches, 2),
        "backwards": round(summary["backwards"] / batches, 2),
    }


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("part", choices=DATA, help="what to measure")
    found.add_argument("--network", help="by default the data set's own")
    found.add_argument("--weights", type=Path, help="the plain network; that of digits is trained")
    found.add_argument("--warmed", type=Path, help="the same network from `vcotta warmup`; that of digits is made")
    found.add_argument("--corrupted", type=Path, help="folder from `vcotta corrupt`; by default made on the fly")
    found.add_argument("--images", type=int, default=IMAGES, help="of each corruption in the first part; 0 for all")
    found.add_argument("--starts", nargs="+", choices=STARTS, default=STARTS, help="networks of the first part")
    found.add_argument("--full", action="store_true", help="afterwards the best on all images")
    found.add_argument(
        "--methods", nargs="+", default=list_general_methods(), help="by default all that take any network"
    )
    found.add_argument("--presets", nargs="+", default=["best"], help="presets of VCoTTA")
    found.add_argument("--views", nargs="+", type=int, default=[None], help="views of VCoTTA; by default the preset's")
    found.add_argument("--corruptions", nargs="+", default=list(STANDARD), help="to try the command: only these")
    found.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the first part")
    found.add_argument("--minutes", type=float, default=8, help="begin no run after this time")
    found.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    found.add_argument("--work", type=Path, default=Path("runs/equal-terms"), help="folder of the runs")
    found.add_argument("--out", type=Path, help="file to write; by default in the study's results")
    found.add_argument("--plan", action="store_true", help="print the rows that are missing, and run nothing")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.part != "digits" and not (options.weights and options.warmed):
        raise SystemExit(f"Expected --weights and --warmed for {options.part}, but got none. Make them as --help says.")
    path = options.out or results_of("equal-terms") / f"{options.part}.json"
    if options.plan:
        print_missing(partial(cells, options), KEYS, path)
    elif fill(partial(cells, options), KEYS, path, options.work / options.part, options.minutes, scores):
        print("all rows are there")


if __name__ == "__main__":
    main()
