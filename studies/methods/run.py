"""Run every method from one network through the fifteen corruptions, one after another on a GPU of their own.

What: the tables of the page: error, NLL, Brier and ECE, seconds, peak memory and passes of each method, with its
settings for the data set and the guard it declares. What a method learns from source data it learns before its run,
which is not timed.
How: one process, so that a network is compiled once for all; the seconds of a run are those of its steps, and the
first corruption includes the compilation. Each method is a run of its own in ``--out``, in a folder of its name;
finished ones are not repeated, so that the whole can be done in several sittings (``--minutes``). VCoTTA is warmed up
first, unless the file is a warmed network, which every method then starts from. With ``--corrupted`` images are read
from files instead of being made anew for every method.

    vcotta train --dataset cifar10 --epochs 100 --batch-size 128 --lr 0.1 --rise 0 --weight-decay 1e-4 \
        --out wrn.safetensors
    vcotta corrupt cifar10 --out cifar10c
    python -m studies.methods.run --weights wrn.safetensors --corrupted cifar10c --out runs/methods
    python -m studies.files studies/methods/results/cifar10c-recipe runs/methods/*
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from vcotta.corruptions import STANDARD
from vcotta.experiments.grid import run_spec
from vcotta.methods import list_general_methods
from vcotta.runs.run import SUMMARY, Run
from vcotta.runs.spec import RunSpec


def described(run: Run, seconds: float) -> str:
    """Return one line on a run."""
    found = run.summary()
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
    parser.add_argument("--corrupted", type=Path, help="folder from `vcotta corrupt`; by default made on the fly")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--methods", default=",".join(list_general_methods()), help="names in order, separated by commas"
    )
    parser.add_argument("--corruptions", default=",".join(STANDARD), help="names in order, separated by commas")
    parser.add_argument("--limit", type=int, help="images of each corruption; by default all")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no further run after so many minutes")
    options = parser.parse_args(arguments)
    start, device = time.monotonic(), "cuda" if torch.cuda.is_available() else "cpu"
    for method in options.methods.split(","):
        spec = RunSpec(
            method,
            options.dataset,
            options.network,
            options.weights,
            corruptions=tuple(options.corruptions.split(",")),
            limit=options.limit,
            corrupted=options.corrupted,
            device=device,
        )
        before, out = time.monotonic(), options.out / method
        if before - start > 60 * options.minutes:
            print(f"{options.minutes} minutes are over; {method} and the methods after it are left for the next time")
            return
        done = (out / SUMMARY).exists()
        run = run_spec(spec, out, resume=True)  # a finished run of the same spec is read, of another one refused
        if not done:
            print(described(run, time.monotonic() - before), flush=True)
        del run
        gc.collect()  # the next method has the memory to itself
        if device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
