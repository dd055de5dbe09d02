"""Every method from one network through the fifteen corruptions, one after another on a GPU of their own.

What: the table of docs/benchmarks.md: error, NLL, Brier and ECE, seconds, peak memory and passes of each method, with
its settings for the data set. What a method learns from source data it learns before its run, which is not timed.
How: one process, so that a network is compiled once for all; the seconds of a run are those of its steps, and the
first corruption has the compilation in it. Each method is a run of its own in ``--out``, a folder of its name; finished
ones are not repeated, so the whole can be done in several sittings (``--minutes``). VCoTTA is warmed up first, unless
the file is a warmed network, which every method then starts from. With ``--corrupted`` images are read from files,
which spares every method from making them anew.

    vcotta train --dataset cifar10 --epochs 100 --batch-size 128 --lr 0.1 --rise 0 --weight-decay 1e-4 \
        --out wrn.safetensors
    vcotta corrupt cifar10 --out cifar10c
    python benchmarks/methods.py --weights wrn.safetensors --corrupted cifar10c --out runs/methods
    python docs/update.py --take cifar10c-recipe runs/methods/*
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vcotta.corruptions import frost_source
from vcotta.evaluate import already_finished, run_stream
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.setup import adapter_for, start_network, stream_for
from vcotta.files import sha256
from vcotta.methods import configure, list_methods
from vcotta.runs import Run
from vcotta.runtime import Runtime
from vcotta.streams import ContinualStream


def run(
    method: str, benchmark: Benchmark, network: str | None, weights: Path, stream: ContinualStream, out: Path
) -> Run | None:
    """Run a method and keep its files in ``out``; None if it was run before.

    Raises:
        ValueError: The run that is there was made with other settings or from another network.
    """
    runtime = Runtime(str(stream.device))
    facts = {
        "dataset": benchmark.name,
        "network": network or benchmark.network,
        "weights_file_sha256": sha256(weights),
        "frost": frost_source(),
    }
    config = configure(method, dataset=benchmark.settings)
    if already_finished(out, method, config, stream, runtime=runtime, manifest=facts):
        return None
    start = start_network(benchmark, method, network, weights, runtime=runtime)
    adapter = adapter_for(benchmark, method, start, runtime=runtime, guard=False)
    return run_stream(adapter, stream, out, manifest=facts, overwrite=True)


def told(done: Run, seconds: float) -> str:
    """A line on a run."""
    found: dict[str, Any] = done.summary()
    mean = found["mean"]
    return (
        f"{found['method']:12} error {100 * mean['error']:.2f} %, NLL {mean['nll']:.3f}, Brier {mean['brier']:.3f}, "
        f"ECE {mean['ece']:.3f}, steps {found['seconds']:.1f} s of {seconds:.1f} s"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10", help="cifar10, cifar100 or digits")
    parser.add_argument("--network", help="another network than the data set's, as for `vcotta run --model`")
    parser.add_argument("--weights", type=Path, required=True, help="source network, from `vcotta train`")
    parser.add_argument("--corrupted", type=Path, help="folder from `vcotta corrupt`; by default on the fly")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--methods", default=",".join(list_methods()), help="names in order, separated by commas")
    parser.add_argument("--limit", type=int, help="images of each corruption; by default all")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further run after so many minutes")
    asked = parser.parse_args(arguments)
    benchmark, begin = find_benchmark(asked.dataset), time.monotonic()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stream = stream_for(benchmark, limit=asked.limit, corrupted=asked.corrupted, device=device)
    for method in asked.methods.split(","):
        if time.monotonic() - begin > 60 * asked.minutes:
            print(f"{asked.minutes} minutes are over; {method} and what follows is left for the next time")
            return
        before = time.monotonic()
        if done := run(method, benchmark, asked.network, asked.weights, stream, asked.out / method):
            print(told(done, time.monotonic() - before), flush=True)
        gc.collect()  # the next one has the memory to itself
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
