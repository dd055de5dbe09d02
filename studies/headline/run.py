"""Run VCoTTA and what it is measured against on CIFAR10-C and CIFAR100-C, severity 5, one GPU.

What: the parts of the page. ``main``: every method on 15 x 10 000 images, batches of 200, three seeds of the
adaptation. ``decomposition``: what each ingredient adds. ``loops``: ten rounds through the fifteen. ``precision``: the
fast path against float32. The last three use 2 000 images a corruption and 8 views. With ``--network`` another network
than the data set's: ``carried``, the same settings on it, 2 000 images a corruption and 32 views.
How: one source network and one warm-up, given as files; corruptions made on the fly with seed 0; the seed is that of
the adaptation; each method has the guard that it declares. Each run has a folder of its own in ``--out``; finished ones
are not repeated, so that the whole can be done in several sittings (``--minutes``). Seconds are those of the steps;
the first batch, in which torch compiles, is left out and reported apart.

The results kept are of version 0.2.0, whose warm-up and number of views were others.

    vcotta train --dataset cifar10 --out wrn.safetensors
    vcotta warmup --dataset cifar10 --weights wrn.safetensors --out warm.safetensors
    python -m studies.headline.run --weights wrn.safetensors --warmed warm.safetensors --out runs/headline --part main
    python -m studies.headline.run --dataset cifar100 --weights next.safetensors --warmed next-warm.safetensors \
        --out runs/headline
    python -m studies.headline.run --network resnet-20 --weights resnet20.pt --warmed resnet20-warm.safetensors \
        --out runs/headline
    python -m studies.headline.run --out runs/headline --collect
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps import tf32
from studies.files import portable, results_of
from vcotta import Runtime, build_adapter, run_stream
from vcotta._util.files import write_json
from vcotta.corruptions import STANDARD
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import network_facts, start_network, stream_for
from vcotta.experiments.grid import run_spec
from vcotta.report.figures import error_by_corruption
from vcotta.report.groups import labelled
from vcotta.runs.run import SUMMARY, Run, read_manifest, read_timing
from vcotta.runs.spec import RunSpec

DATASETS = ("cifar10", "cifar100", "digits")
SEEDS = (0, 1, 2)
ROUNDS = 10
SMALL = 2000
PLAIN = "precision/plain"
"""Label of the runs in float32 without TF32, compilation or channels_last."""


@dataclass(frozen=True)
class Networks:
    """The network that runs start from.

    Attributes:
        data: Name of the data set.
        network: Name of the network.
        weights: File of the source network.
        warmed: File of that network warmed up.
        device: Where the runs are made.
    """

    data: str
    network: str
    weights: Path
    warmed: Path
    device: str

    def spec(self, label: str, method: str, warmed: bool = False, **options: Any) -> RunSpec:
        """Return a run from the source network, or from the warmed one; its label is PART/NAME."""
        options |= {"weights": self.warmed, "start": "warmed"} if warmed else {"weights": self.weights}
        return RunSpec(method, self.data, self.network, device=self.device, label=label, **options)

    def vcotta(self, label: str, seed: int = 0, limit: int | None = SMALL, **options: Any) -> RunSpec:
        """Return a run of VCoTTA from the warmed network, with few images unless asked for all."""
        return self.spec(label, "vcotta", warmed=True, options=options, seed=seed, limit=limit)


def all_parts(networks: Networks) -> list[RunSpec]:
    """Return all runs of CIFAR-10, the most important ones first."""
    alone = {"alpha": 0.0, "views": 0, "target": "teacher", "inference": "x0"}  # a mean teacher and nothing else
    return [
        *main_part(networks, "tent", "cotta"),
        networks.spec("decomposition/Source", "source", limit=SMALL),
        networks.spec("decomposition/BN", "bn", limit=SMALL),
        networks.spec("decomposition/+ warm-up", "bn", warmed=True, limit=SMALL),
        networks.vcotta("decomposition/+ mean teacher", kl_weight=0.0, **alone),
        networks.vcotta("decomposition/+ KL", **alone),
        networks.vcotta("decomposition/+ mixture", views=0, inference="x0"),
        networks.vcotta("decomposition/+ views", views=8),
        replace(networks.vcotta("loops/vcotta-best", views=8), protocol="loops", protocol_options={"rounds": ROUNDS}),
        *(networks.vcotta("precision/fast", seed, views=8) for seed in SEEDS),
        *(replace(networks.vcotta(PLAIN, seed, views=8), precision="fp32") for seed in SEEDS),
    ]


def main_part(networks: Networks, *rivals: str) -> list[RunSpec]:
    """Return Source, BN with and without the warm-up, VCoTTA with both presets, and its rivals, at full size."""
    return [
        networks.spec("main/source", "source"),
        networks.spec("main/bn", "bn"),
        networks.spec("main/bn-warmed", "bn", warmed=True),
        *(networks.vcotta("main/vcotta-best", seed, None, preset="best") for seed in SEEDS),
        *(networks.spec(f"main/{rival}", rival, seed=seed) for rival in rivals for seed in SEEDS),
        *(networks.vcotta("main/vcotta-paper", seed, None, preset="paper") for seed in SEEDS),
    ]


def carried(networks: Networks) -> list[RunSpec]:
    """Return the runs of a network that nobody here trained: the same preset, fewer images."""
    return [
        networks.spec("carried/source", "source", limit=SMALL),
        networks.spec("carried/bn", "bn", limit=SMALL),
        networks.spec("carried/bn-warmed", "bn", warmed=True, limit=SMALL),
        *(networks.spec("carried/cotta", "cotta", seed=seed, limit=SMALL) for seed in SEEDS),
        *(networks.vcotta("carried/vcotta-best", seed, preset="best", views=32) for seed in SEEDS),
    ]


def runs_of(networks: Networks) -> list[RunSpec]:
    """Return all runs from a network; there are fewer for another data set or network than those of the headline."""
    if networks.network != find_benchmark(networks.data).network:
        return carried(networks)
    return main_part(networks, "tent", "cotta", "roid") if networks.data == "cifar100" else all_parts(networks)


def folder_of(spec: RunSpec) -> str:
    """Return where a run is kept, below ``--out`` and the folder of its network."""
    return f"{spec.label}-{spec.seed}".replace(" ", "_")


def run(spec: RunSpec, out: Path) -> Run:
    """Run a spec and keep its files; a finished run is read, and refused if it was made with other settings."""
    if spec.label != PLAIN:
        return run_spec(spec, out, resume=True)
    plain = Runtime(spec.device, precision="fp32", channels_last=False, compile=False)  # which a spec cannot ask for
    options: dict[str, Any] = {"guard": spec.guard, **spec.settings}
    adapter = build_adapter(spec.method, start_network(spec), seed=spec.seed, runtime=plain, **options)
    with tf32(False):
        facts = {"spec": spec.to_json(), **network_facts(spec)}
        return run_stream(adapter, stream_for(spec), out, manifest=facts, resume=True)


@dataclass(frozen=True)
class Scored(Run):
    """A finished run read from its small files: the records, nearly all of it, may stay on another machine."""

    scores: Any

    def summary(self) -> Any:
        """Return the scores as they were written when the run ended."""
        return self.scores

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Scored:
        """Read manifest, timing and summary.

        Raises:
            ValueError: They are not of one whole run.
        """
        folder = Path(folder)
        scores = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        manifest, timing = read_manifest(folder), read_timing(folder)
        if len(timing) != manifest["batches"] or scores["method"] != manifest["method"]:
            raise ValueError(
                f"Expected {manifest['batches']} batches of {manifest['method']} in {folder}, but got {len(timing)} "
                f"timings and the scores of {scores['method']}. Copy the run again."
            )
        return cls(manifest, [], timing, scores)


def row_name(run: Run) -> str:
    """Return what the tables call a run."""
    return str(run.manifest["spec"]["label"].partition("/")[2])


def row(run: Run) -> dict[str, Any]:
    """Return what the tables need of a run."""
    name, summary = row_name(run), run.summary()
    mean, seconds = summary["mean"], [line["seconds"] for line in run.timing]
    batches = len(seconds) / len(summary["domains"])
    later = seconds[1:] or seconds
    preset = name.removeprefix("vcotta-") if name.startswith("vcotta-") else None
    return {
        "method": "vcotta" if preset else name,
        "preset": preset,
        "seed": run.manifest["seed"],
        "error": 100 * mean["error"],
        **{score: mean[score] for score in ("nll", "brier", "ece")},
        "errors": [100 * part["error"] for part in summary["domains"]],
        "seconds_per_corruption": sum(later) / len(later) * batches,
        "first_batch_seconds": seconds[0],
        "peak_gib": summary["peak_memory"] / 2**30,
        "name": name,
        "network": run.manifest["network"],
    }


def kept_manifest(run: Run) -> dict[str, Any]:
    """Return a run's manifest as the result files have it, with the row that it belongs to."""
    spec = run.manifest["spec"]
    part, _, name = spec["label"].partition("/")
    cell = {"part": part, "name": name, "warmed": spec["start"] == "warmed", "seed": spec["seed"]}
    return {**portable(run.manifest), "cell": cell}


def collect(out: Path, results: Path) -> None:
    """Write the files that the tables are drawn from: rows, and manifests beside them."""
    found: dict[str, dict[str, Run]] = {}
    for folder in sorted(folder for dataset in DATASETS for folder in out.glob(f"{dataset}-*")):
        dataset, network = folder.name.split("-", 1)
        own = network == find_benchmark(dataset).network
        for spec in runs_of(Networks(dataset, network, Path(), Path(), "cpu")):
            if (folder / folder_of(spec) / SUMMARY).exists():
                part, _, name = spec.label.partition("/")
                key = f"{'' if own else f'{network}-'}{name}-{spec.seed}"
                file = f"{dataset}c-{part.replace('main', 'headline')}"
                found.setdefault(file, {})[key] = Scored.load(folder / folder_of(spec))
    for file, runs in found.items():
        write_json(results / f"{file}.json", [row(run) for run in runs.values()])
        write_json(results / f"{file}-manifests.json", {key: kept_manifest(run) for key, run in runs.items()})
        if file.endswith("-headline"):
            draw(list(runs.values()), results / f"{file}.png")
        print(f"{len(runs)} runs -> {results / file}.json")


def draw(runs: list[Run], path: Path) -> None:
    """Draw the error on each corruption, the seeds of one method together, the largest mean first."""
    names = dict.fromkeys(row_name(run) for run in sorted(runs, key=lambda run: -row(run)["error"]))
    groups = [labelled(name, [run for run in runs if row_name(run) == name]) for name in names]
    error_by_corruption(groups, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10", choices=DATASETS, help="digits are a try, not a result")
    parser.add_argument("--network", help="another network than the data set's, as for `vcotta run --model`")
    parser.add_argument("--weights", type=Path, help="source network, from `vcotta train`")
    parser.add_argument("--warmed", type=Path, help="warmed network, from `vcotta warmup`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--part", action="append", help="main, decomposition, loops or precision; by default all")
    parser.add_argument("--only", action="append", help="run only those whose folder contains this (or one of these)")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further run after so many minutes")
    parser.add_argument("--limit", type=int, help="use only so many images a corruption: a try, not a result")
    parser.add_argument("--corruptions", help="names separated by commas, by default the fifteen; with --limit only")
    parser.add_argument(
        "--collect",
        type=Path,
        metavar="RESULTS",
        nargs="?",
        const=results_of("headline"),
        help="write the rows of finished runs, by default to the study's results, and stop",
    )
    options = parser.parse_args(arguments)
    if options.collect is not None:
        collect(options.out, options.collect)
        return
    if options.weights is None or options.warmed is None:
        parser.error("--weights and --warmed are needed to run")
    if options.corruptions and options.limit is None:
        parser.error("--corruptions needs --limit: with other corruptions it is a try, not a result")
    start, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    network = options.network or find_benchmark(options.dataset).network
    networks = Networks(options.dataset, network, options.weights, options.warmed, device)
    out = options.out if options.limit is None else options.out / f"try-{options.limit}"  # never taken for a result
    for spec in runs_of(networks):
        folder = out / f"{options.dataset}-{network}" / folder_of(spec)
        named = not options.only or any(text in folder_of(spec) for text in options.only)
        if not named or (options.part and spec.label.partition("/")[0] not in options.part):
            continue
        if options.limit is not None:
            names = tuple(options.corruptions.split(",")) if options.corruptions else STANDARD
            spec = replace(spec, limit=options.limit, corruptions=names)
        done = (folder / SUMMARY).exists()
        if not done and time.monotonic() - start > 60 * options.minutes:
            print(f"{options.minutes} minutes are over; {folder_of(spec)} and the runs after it are left")
            return
        found = row(run(spec, folder))
        if not done:
            found.pop("errors")
            print(json.dumps({"run": folder_of(spec)} | found), flush=True)


if __name__ == "__main__":
    main()
