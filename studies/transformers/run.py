"""Does VCoTTA help a network without BatchNorm, what harms it there, and how does it compare?

What: on vision transformers and GroupNorm networks, at severity 5, three streams after one another.
  held-out    the four extra corruptions, on which settings may be chosen: every method from the plain and from the
              warmed network, the others with one, a tenth and a hundredth of their step size; VCoTTA with one thing
              changed at a time;
  correlated  the same images, with neighbours of one class: source, TENT, and VCoTTA, also with the bias left in its
              predictions and without its label prior;
  standard    the fifteen, looked at once: the others with the start and step size that did best on the held-out ones.
How: one process. A row is written as soon as it is there, and rows that are in the file are kept: the same command
continues where the last call was stopped. ``--minutes`` begins no run after this time, and a killed run is resumed from
its last half minute. ``--plan`` prints the rows that are missing.

On digits without a GPU; the networks are trained and warmed up first, and kept in ``--work``:

    python -m studies.transformers.run digits --minutes 90

On one H200 in calls of at most ten minutes, after the network and its warm-up:

    vcotta train --dataset cifar10 --model vit-32px --out vit.safetensors --device cuda
    vcotta warmup --dataset cifar10 --model vit-32px --weights vit.safetensors --out vit-warm.safetensors --device cuda
    run="python -m studies.transformers.run cifar10c --network vit-32px --weights vit.safetensors \
        --warmed vit-warm.safetensors --images 2000 --device cuda --minutes 8"
    $run                           # as often as it says that minutes are over

CIFAR10-C is made on the fly, or read from ``--corrupted``, a folder from ``vcotta corrupt`` with all nineteen. The
network with GroupNorm takes the same commands with ``--network resnet-26-gn``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from studies.cells import Cell, Row, fill, key_of, print_missing, scores_of, start_of
from studies.files import results_of
from vcotta.corruptions import EXTRA, STANDARD
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import train_network, warm_network
from vcotta.methods import configure, find_method
from vcotta.models import save_weights
from vcotta.runs.spec import RunSpec

DATA = {"digits": "digits", "cifar10c": "cifar10"}
NETWORKS = {"digits": ["vit-4-64-32px", "resnet-26-gn"], "cifar10c": ["vit-32px"]}
METHODS = ["source", "tent", "sar", "cotta", "roid", "eata", "vida", "continual-mae", "dvp", "vcotta"]
STARTS, STEPS = ("plain", "warmed"), (1.0, 0.1, 0.01)
HELD_OUT, CORRELATED, STANDARD_15 = "held-out", "correlated", "standard"
TABLES = {"digits": 224}
"""Severity constants with which the four extra corruptions are about as hard for digits as the fifteen."""
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "before": {"statistics": "batch", "step": 10.0},
    "bias kept": {"statistics": "batch"},
    "bias kept, no label prior": {"statistics": "batch", "label_prior": False},
    "no label prior": {"label_prior": False},
    "no step": {"lr": 0.0},
    "ten times the step": {"step": 10.0},
    "a tenth of the step": {"step": 0.1},
    "only normalisation and classifier": {"trains": "norm"},
    "image only": {"student": "image"},
    "targets not sharpened": {"temperature": 1.0},
    "outputs drawn": {"sampling": "local"},
    "slower teacher": {"beta": 0.99},
    "no views": {"views": 0},
}
"""What is changed of VCoTTA; ``step`` multiplies ``lr``. "Before" has about the steps of networks with BatchNorm."""
LATER = ("image only", "targets not sharpened", "outputs drawn", "slower teacher", "no views")
"""Variants that are run after everything else."""
OF_CLASSES = ("default", "bias kept", "bias kept, no label prior", "no label prior")
AT_LAST = ("default", "bias kept", "no step")
KEYS = ("network", "stream", "method", "variant", "start", "step", "seed", "images")


def cells(options: argparse.Namespace, rows: list[Row]) -> Iterator[Cell]:
    """Yield the cells in order; those of the fifteen follow from the rows so far."""
    others = [method for method in options.methods if method != "vcotta"]
    ours = "vcotta" in options.methods
    for network in options.networks:
        for seed in options.seeds:
            cell = partial(_cell, options, network, seed)
            for method in others:
                for start in STARTS:
                    for step in STEPS if _learns(method) else (1.0,):
                        yield cell(HELD_OUT, method, "default", start, step)
            for variant in [name for name in VARIANTS if ours and name not in LATER]:
                yield cell(HELD_OUT, "vcotta", variant, "warmed", 1.0)
            if ours:
                yield cell(HELD_OUT, "vcotta", "default", "plain", 1.0)
            for method in [name for name in ("source", "tent") if name in others]:
                yield cell(CORRELATED, method, "default", *chosen(rows, network, method, options.images))
            for variant in OF_CLASSES if ours else ():
                yield cell(CORRELATED, "vcotta", variant, "warmed", 1.0)
    for network in options.networks:
        for seed in options.seeds:
            for method in others:
                start, step = chosen(rows, network, method, options.images)
                yield _cell(options, network, seed, STANDARD_15, method, "default", start, step)
            for variant in AT_LAST if ours else ():
                yield _cell(options, network, seed, STANDARD_15, "vcotta", variant, "warmed", 1.0)
            for variant in LATER if ours else ():
                yield _cell(options, network, seed, HELD_OUT, "vcotta", variant, "warmed", 1.0)


def chosen(rows: Sequence[Row], network: str, method: str, images: int | None) -> tuple[str, float]:
    """Return start and step with which a method did best on the held-out corruptions, in the mean over the seeds."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if key_of(row, ("network", "stream", "method", "images")) == (network, HELD_OUT, method, images):
            found.setdefault((row["start"], row["step"]), []).append(row["error"])
    return min(found, key=lambda key: statistics.fmean(found[key])) if found else ("plain", 1.0)


def _learns(method: str) -> bool:
    return "lr" in find_method(method).Config.__dataclass_fields__


def _cell(
    options: argparse.Namespace,
    network: str,
    seed: int,
    stream: str,
    method: str,
    variant: str,
    start: str,
    step: float,
) -> Cell:
    settings = dict(VARIANTS[variant]) if method == "vcotta" else {}
    factor = step * settings.pop("step", 1.0)
    if factor != 1:
        settings["lr"] = factor * configure(method, dataset=DATA[options.part]).lr
    protocol = {"protocol": "correlated", "protocol_options": {"delta": 0.1}} if stream == CORRELATED else {}
    spec = RunSpec(
        method,
        DATA[options.part],
        network,
        _file(options, network, seed, start),
        options=settings,
        start=start_of(find_method(method).needs_variational, start == "warmed"),  # type: ignore[arg-type]
        corruptions=tuple(options.corruptions or (STANDARD if stream == STANDARD_15 else EXTRA)),
        table=None if stream == STANDARD_15 else TABLES.get(options.part),
        limit=options.images,
        corrupted=options.corrupted,
        seed=seed,
        device=options.device,
        **protocol,  # type: ignore[arg-type]
    )
    facts = {"network": network, "stream": stream, "method": method, "variant": variant, "start": start}
    return Cell(facts | {"step": step, "seed": seed, "images": options.images}, spec)


def _file(options: argparse.Namespace, network: str, seed: int, start: str) -> Path:
    """The weights to start from: those given, or those of `make_networks`."""
    given = options.warmed if start == "warmed" else options.weights
    return given or options.work / f"{network}-{seed}-{start}.safetensors"


def make_networks(options: argparse.Namespace) -> None:
    """Train and warm up the networks of digits that are not there yet."""
    benchmark = find_benchmark(DATA[options.part])
    for network in options.networks:
        for seed in options.seeds:
            plain, warmed = (_file(options, network, seed, start) for start in STARTS)
            if not plain.exists():
                plain.parent.mkdir(parents=True, exist_ok=True)
                save_weights(train_network(benchmark, network, seed=seed), plain)
            if not warmed.exists():
                warm_network(benchmark, benchmark.build(network, plain, seed=seed), seed=seed, path=warmed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("part", choices=DATA, help="what to measure")
    found.add_argument("--networks", "--network", nargs="+", help="by default those of the part")
    found.add_argument("--weights", type=Path, help="plain weights of a network; those of digits are trained")
    found.add_argument("--warmed", type=Path, help="the same network from `vcotta warmup`; that of digits is made")
    found.add_argument("--corrupted", type=Path, help="folder from `vcotta corrupt`; by default made on the fly")
    found.add_argument("--images", type=int, help="images of each corruption; by default all")
    found.add_argument("--methods", nargs="+", default=METHODS, help="methods to run")
    found.add_argument("--corruptions", nargs="+", help="to try the command: only these, in every stream")
    found.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of networks and adapters")
    found.add_argument("--minutes", type=float, default=8, help="begin no run after this time")
    found.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    found.add_argument("--work", type=Path, default=Path("runs/transformers"), help="folder of networks and runs")
    found.add_argument("--out", type=Path, help="file to write; by default in the study's results")
    found.add_argument("--plan", action="store_true", help="print the rows that are missing, and run nothing")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    options.networks = options.networks or NETWORKS[options.part]
    if options.part != "digits" and not (options.weights and options.warmed and len(options.networks) == 1):
        raise SystemExit(
            f"Expected one network with --weights and --warmed for {options.part}, but got none. Make them as --help "
            "says."
        )
    path = options.out or results_of("transformers") / f"{options.part}.json"
    if options.plan:
        print_missing(partial(cells, options), KEYS, path)
        return
    if not options.weights:
        make_networks(options)
    if fill(partial(cells, options), KEYS, path, options.work / options.part, options.minutes, scores_of):
        print("all rows are there")


if __name__ == "__main__":
    main()
