"""The headline: VCoTTA and what it is measured against on CIFAR10-C and CIFAR100-C, severity 5, one GPU.

What: the parts of docs/headline.md. ``main``: every method on 15 x 10 000 images, batches of 200, three seeds of the
adaptation. ``decomposition``: what each ingredient adds. ``loops``: ten rounds through the fifteen. ``precision``: the
fast path against float32. The last three use 2 000 images a corruption and 8 views. With ``--network`` another network
than the data set's: ``carried``, the same settings on it, 2 000 images a corruption and 32 views.
How: one source network and one warm-up, given as files; corruptions made on the fly with seed 0; the seed is that of
the adaptation. Each cell is a run of its own in ``--out``; finished ones are not repeated, so the whole can be done in
several sittings (``--minutes``). Seconds are those of the steps; the first batch, in which torch compiles, is left out
and told apart.

    vcotta train --dataset cifar10 --out wrn.safetensors
    vcotta warmup --dataset cifar10 --weights wrn.safetensors --out warm.safetensors
    python benchmarks/headline.py --weights wrn.safetensors --warmed warm.safetensors --out runs/headline --part main
    python benchmarks/headline.py --dataset cifar100 --weights next.safetensors --warmed next-warm.safetensors \
        --out runs/headline
    python benchmarks/headline.py --network resnet-20 --weights resnet20.pt --warmed resnet20-warm.safetensors \
        --out runs/headline
    python benchmarks/headline.py --out runs/headline --collect docs/results
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from steps import tf32
from vcotta.bayes import load_warmed
from vcotta.corruptions import STANDARD, frost_source
from vcotta.evaluate import already_finished, run_stream
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.setup import adapter_for, stream_for
from vcotta.files import sha256, write_json
from vcotta.methods import configure
from vcotta.report.figures import error_by_corruption
from vcotta.report.groups import labelled
from vcotta.runs import SUMMARY, TIMING, Run, read_lines, read_manifest
from vcotta.runtime import Runtime
from vcotta.streams import ContinualStream

DATASETS = ("cifar10", "cifar100")
SEEDS = (0, 1, 2)
ROUNDS = 10
SMALL = 2000


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        part: The part of the page it belongs to.
        name: What the table calls it.
        method: The adapter.
        warmed: Whether it starts from the warmed network.
        options: Its options beside the data set's.
        seed: Seed of the adaptation.
        limit: Images a corruption, None for all.
        rounds: How often the fifteen corruptions are gone through.
        plain: Float32 without TF32, compilation or channels_last.
    """

    part: str
    name: str
    method: str
    warmed: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    limit: int | None = None
    rounds: int = 1
    plain: bool = False

    @property
    def folder(self) -> str:
        """Where the run is kept, below ``--out``."""
        return f"{self.part}/{self.name}-{self.seed}".replace(" ", "_")


def vcotta(part: str, name: str, seed: int = 0, **options: Any) -> Cell:
    """A cell of VCoTTA on the warmed network, small unless it is of the main part."""
    small = part != "main"
    options = ({"views": 8} if small else {}) | options
    return Cell(part, name, "vcotta", warmed=True, options=options, seed=seed, limit=SMALL if small else None)


def cells(dataset: str, own_network: bool = True) -> list[Cell]:
    """All runs on a data set, in the order of their worth; fewer on another network than its own."""
    if not own_network:
        return carried()
    if dataset != "cifar10":
        return main_part("tent", "cotta", "roid")
    alone = {"alpha": 0.0, "views": 0, "target": "teacher", "inference": "x0"}  # a mean teacher and nothing else
    parts = [
        Cell("decomposition", "Source", "source", limit=SMALL),
        Cell("decomposition", "BN", "bn", limit=SMALL),
        Cell("decomposition", "+ warm-up", "bn", warmed=True, limit=SMALL),
        vcotta("decomposition", "+ mean teacher", kl_weight=0.0, **alone),
        vcotta("decomposition", "+ KL", **alone),
        vcotta("decomposition", "+ mixture", views=0, inference="x0"),
        vcotta("decomposition", "+ views"),
    ]
    loops = [replace(vcotta("loops", "vcotta-best"), rounds=ROUNDS)]
    fast = [vcotta("precision", "fast", seed) for seed in SEEDS]
    plain = [replace(vcotta("precision", "plain", seed), plain=True) for seed in SEEDS]
    return main_part("tent", "cotta") + parts + loops + fast + plain


def main_part(*rivals: str) -> list[Cell]:
    """Source, BN with and without the warm-up, VCoTTA with both presets, and its rivals, at full size."""
    plain = [Cell("main", "source", "source"), Cell("main", "bn", "bn"), Cell("main", "bn-warmed", "bn", warmed=True)]
    best, paper = (
        [vcotta("main", f"vcotta-{name}", seed, preset=name) for seed in SEEDS] for name in ("best", "paper")
    )
    return plain + best + [Cell("main", rival, rival, seed=seed) for rival in rivals for seed in SEEDS] + paper


def carried() -> list[Cell]:
    """What a network that nobody here trained is given: the same preset, fewer images."""
    small = [Cell("carried", name, name, limit=SMALL) for name in ("source", "bn")]
    small += [Cell("carried", "bn-warmed", "bn", warmed=True, limit=SMALL)]
    small += [Cell("carried", "cotta", "cotta", seed=seed, limit=SMALL) for seed in SEEDS]
    return small + [vcotta("carried", "vcotta-best", seed, preset="best", views=32) for seed in SEEDS]


@dataclass(frozen=True)
class Networks:
    """Files of the networks that cells start from.

    Attributes:
        weights: The source network.
        warmed: That network warmed up.
    """

    weights: Path
    warmed: Path

    def start(self, cell: Cell) -> Path:
        """The file of a cell's start network."""
        return self.warmed if cell.warmed else self.weights


def plan(
    cell: Cell, benchmark: Benchmark, networks: Networks, limit: int | None
) -> tuple[Runtime, ContinualStream, dict[str, Any]]:
    """What a cell is run on, and what its manifest tells besides."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plain = {"precision": "fp32", "channels_last": False, "compile": False}
    runtime = Runtime(device, **plain) if cell.plain else Runtime(device)
    stream = stream_for(benchmark, corruptions=STANDARD * cell.rounds, limit=limit or cell.limit, device=device)
    facts = {"cell": asdict(cell), "network": benchmark.network, "frost": frost_source()}
    return runtime, stream, facts | {"weights_file_sha256": sha256(networks.start(cell))}


def finished(cell: Cell, benchmark: Benchmark, networks: Networks, out: Path, limit: int | None = None) -> bool:
    """Whether a cell was run; one that was run with other settings or networks is an error that says which."""
    if not (out / cell.folder / SUMMARY).exists():
        return False
    runtime, stream, facts = plan(cell, benchmark, networks, limit)
    config = configure(cell.method, **{"dataset": benchmark.settings, **cell.options})
    done = already_finished(
        out / cell.folder, cell.method, config, stream, seed=cell.seed, runtime=runtime, manifest=facts
    )
    return done is not None


def run(cell: Cell, benchmark: Benchmark, networks: Networks, out: Path, limit: int | None = None) -> Run:
    """Run one cell and keep its files; ``limit`` makes it smaller, for a try."""
    runtime, stream, facts = plan(cell, benchmark, networks, limit)
    start = networks.start(cell)
    model = load_warmed(benchmark.build(None), start) if cell.warmed else benchmark.build(None, start)
    adapter = adapter_for(benchmark, cell.method, model, seed=cell.seed, runtime=runtime, guard=False, **cell.options)
    with tf32(not cell.plain):
        return run_stream(adapter, stream, out / cell.folder, manifest=facts, overwrite=True)


@dataclass(frozen=True)
class Scored(Run):
    """A finished run by its small files: the records, nearly all of it, need not have come along."""

    scores: dict[str, Any]

    def summary(self) -> dict[str, Any]:
        """The scores as they were written when the run ended."""
        return self.scores

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Scored:
        """Read manifest, timing and summary.

        Raises:
            ValueError: They are not of one whole run.
        """
        folder = Path(folder)
        scores = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        manifest, timing = read_manifest(folder), read_lines(folder / TIMING)
        if len(timing) != manifest["batches"] or scores["method"] != manifest["method"]:
            raise ValueError(
                f"Expected {manifest['batches']} batches of {manifest['method']} in {folder}, but got {len(timing)} "
                f"timings and the scores of {scores['method']}. Copy the run again."
            )
        return cls(manifest, [], timing, scores)


def row(run: Run) -> dict[str, Any]:
    """What the tables need of a run."""
    cell, summary = run.manifest["cell"], run.summary()
    mean, seconds = summary["mean"], [line["seconds"] for line in run.timing]
    batches = len(seconds) / len(summary["domains"])
    later = seconds[1:] or seconds
    return {
        "method": cell["name"].split("-best")[0].split("-paper")[0],
        "preset": cell["options"].get("preset"),
        "seed": cell["seed"],
        "error": 100 * mean["error"],
        **{score: mean[score] for score in ("nll", "brier", "ece")},
        "errors": [100 * part["error"] for part in summary["domains"]],
        "seconds_per_corruption": sum(later) / len(later) * batches,
        "first_batch_seconds": seconds[0],
        "peak_gib": summary["peak_memory"] / 2**30,
        "name": cell["name"],
        "network": run.manifest["network"],
    }


def collect(out: Path, results: Path) -> None:
    """Turn the finished runs into the files that docs/update.py reads, manifests beside the rows."""
    found: dict[str, dict[str, Run]] = {}
    for setup in sorted(folder for dataset in DATASETS for folder in out.glob(f"{dataset}-*")):
        dataset, network = setup.name.split("-", 1)
        own = network == find_benchmark(dataset).network
        for cell in cells(dataset, own):
            if (setup / cell.folder / SUMMARY).exists():
                part = f"{dataset}c-{cell.part.replace('main', 'headline')}"
                run = Scored.load(setup / cell.folder)
                found.setdefault(part, {})[f"{'' if own else f'{network}-'}{cell.name}-{cell.seed}"] = run
    for name, runs in found.items():
        write_json(results / f"{name}.json", [row(run) for run in runs.values()])
        write_json(results / f"{name}-manifests.json", {key: _portable(run.manifest) for key, run in runs.items()})
        if name.endswith("-headline"):
            _draw(list(runs.values()), results / f"{name}.png")
        print(f"{len(runs)} runs -> {results / name}.json")


def _draw(runs: list[Run], path: Path) -> None:
    """Error on each corruption, the seeds of one method together, the largest mean first."""
    names = dict.fromkeys(run.manifest["cell"]["name"] for run in sorted(runs, key=lambda run: -row(run)["error"]))
    groups = [labelled(name, [run for run in runs if run.manifest["cell"]["name"] == name]) for name in names]
    error_by_corruption(groups, path)


def _portable(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest without the folders of the machine it was made on."""
    command = [Path(word).name if "/" in word else word for word in manifest["command"]]
    return {key: value for key, value in manifest.items() if key != "platform"} | {"command": command}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10", choices=DATASETS)
    parser.add_argument("--network", help="another network than the data set's, as for `vcotta run --model`")
    parser.add_argument("--weights", type=Path, help="source network, from `vcotta train`")
    parser.add_argument("--warmed", type=Path, help="warmed network, from `vcotta warmup`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--part", action="append", help="main, decomposition, loops or precision; by default all")
    parser.add_argument("--only", action="append", help="run only cells whose folder contains this (or one of these)")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further run after so many minutes")
    parser.add_argument("--limit", type=int, help="use only so many images a corruption: a try, not a result")
    parser.add_argument("--collect", type=Path, metavar="RESULTS", help="write the rows of finished runs and stop")
    asked = parser.parse_args(arguments)
    if asked.collect is not None:
        collect(asked.out, asked.collect)
        return
    if asked.weights is None or asked.warmed is None:
        parser.error("--weights and --warmed are needed to run")
    networks = Networks(asked.weights, asked.warmed)
    start, benchmark = time.monotonic(), find_benchmark(asked.dataset)
    own = asked.network in (None, benchmark.network)
    benchmark = benchmark if own else replace(benchmark, network=asked.network)
    out = asked.out if asked.limit is None else asked.out / f"try-{asked.limit}"  # never taken for a result
    out = out / f"{asked.dataset}-{benchmark.network}"
    for cell in cells(asked.dataset, own):
        named = not asked.only or any(text in cell.folder for text in asked.only)
        wanted = named and (not asked.part or cell.part in asked.part)
        if not wanted or finished(cell, benchmark, networks, out, asked.limit):
            continue
        if time.monotonic() - start > 60 * asked.minutes:
            print(f"{asked.minutes} minutes are over; {cell.folder} and what follows is left for the next time")
            return
        found = row(run(cell, benchmark, networks, out, asked.limit))
        found.pop("errors")
        print(json.dumps({"cell": cell.folder} | found), flush=True)


if __name__ == "__main__":
    main()
