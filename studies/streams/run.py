"""Methods on streams as cameras give them: labels in clumps, small batches.

What: error, NLL and ECE of every method on the fifteen corruptions at severity 5, labels in random order or correlated
(Dirichlet 1, 0.1, 0.01 and sorted), in batches of 50, 16 and 4 images. VCoTTA also with inferred statistics and label
prior, and with each alone.
How: every method starts from the same warmed network, the digits' own or one given with its weights. One torch thread,
one seed. Rows that are in the file already are kept, so an interrupted study continues.

    python -m studies.streams.run                                                             # digits, half an hour
    python -m studies.streams.run --dataset cifar10 --model resnet-20 --weights warm.safetensors --images 500
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from studies.files import results_of
from vcotta._util.files import write_json
from vcotta.experiments.build import start_network
from vcotta.experiments.grid import run_spec
from vcotta.runs.spec import RunSpec

STREAMS: dict[str, tuple[str, dict[str, float]]] = {
    "random order": ("continual", {}),
    "correlated 1": ("correlated", {"delta": 1.0}),
    "correlated 0.1": ("correlated", {"delta": 0.1}),
    "correlated 0.01": ("correlated", {"delta": 0.01}),
    "sorted": ("correlated", {"delta": 1e-9}),
}
COLUMNS = [("random order", 50), ("random order", 4), ("correlated 1", 50), ("correlated 0.1", 50)]
COLUMNS += [("correlated 0.1", 16), ("correlated 0.01", 50), ("sorted", 16)]
BOTH: dict[str, Any] = {"statistics": "inferred", "label_prior": True}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("source", "bn", "tent", "cotta", "rotta", "roid", "vcotta")},
    "vcotta, statistics": ("vcotta", {"statistics": "inferred"}),
    "vcotta, label prior": ("vcotta", {"label_prior": True}),
    "vcotta, both": ("vcotta", BOTH),
    "bn, both": ("bn", BOTH),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network, as for `vcotta run`; by default the data set's own")
    parser.add_argument("--weights", type=Path, help="a warmed network; the digits' own is trained and warmed up")
    parser.add_argument("--images", type=int, default=200, help="images of each corruption")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="rows of the table")
    parser.add_argument("--columns", type=int, default=len(COLUMNS), help="only the first columns of the table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=results_of("streams") / "streams.json", help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    network = options.model or options.dataset
    base = {"data": options.dataset, "network": options.model, "weights": options.weights, "start": "warmed"}
    model = start_network(RunSpec("bn", **base, seed=options.seed))
    keys = ("network", "stream", "batch_size", "method", "seed")
    done = {tuple(row[key] for key in keys) for row in found}
    for stream, size in COLUMNS[: options.columns]:
        protocol, numbers = STREAMS[stream]
        for label in options.methods:
            method, settings = METHODS[label]
            if (network, stream, size, label, options.seed) in done:
                continue
            spec = RunSpec(
                method,
                **base,
                options=settings,
                protocol=protocol,
                protocol_options=numbers,
                batch_size=size,
                limit=options.images,
                seed=options.seed,
            )
            mean = run_spec(spec, model=model).summary()["mean"]
            scores = {
                "error": round(100 * mean["error"], 2),
                "nll": round(mean["nll"], 4),
                "ece": round(mean["ece"], 4),
            }
            facts = {"start": "warmed", "images": options.images, "torch": str(torch.__version__)}
            found.append(dict(zip(keys, (network, stream, size, label, options.seed), strict=True)) | scores | facts)
            print(found[-1], flush=True)
            write_json(options.out, found)


if __name__ == "__main__":
    main()
