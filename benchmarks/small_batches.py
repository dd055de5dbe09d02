"""Small batches: how many images the source's statistics should be worth (`VCoTTAConfig.prior_images`).

What: the error of BN, with the mixture of statistics that VCoTTA has, on clean images and on the four held-out
corruptions, in batches of 1 to 30 images. Nothing is learned.
How: the first test images, corruptions at severity 5 (of the digits by the constants of ImageNet-C, which are hard for
them); a network of the digits is trained and warmed up on the spot, another one is given. One torch thread. The rows of
other networks in the file are kept.

    python benchmarks/small_batches.py                                                       # digits, two minutes
    python benchmarks/small_batches.py --dataset cifar10 --model resnet-20 --weights resnet20.pt   # four minutes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta import VCoTTA, VCoTTAConfig, build_adapter, to_variational
from vcotta.bayes import is_variational
from vcotta.corruptions import EXTRA
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.setup import start_network, stream_for
from vcotta.files import write_json

SIZES = (1, 2, 4, 8, 16, 30)
PRIORS = (None, 4, 8, 16)
ROOT = Path(__file__).parents[1]


def error(net: nn.Module, benchmark: Benchmark, corruption: str, size: int, prior: int | None, images: int) -> float:
    """Error in per cent on the first images with one corruption, in batches of one size."""
    variational = net if is_variational(net) else to_variational(net)
    share = VCoTTA(variational, VCoTTAConfig(prior_images=prior)).share_of_batch(size)
    options = {} if prior is None else {"statistics": "prior", "alpha": share}
    adapter, wrong = build_adapter("bn", net, **options), 0
    table = 224 if benchmark.name == "digits" else None
    stream = stream_for(benchmark, corruptions=(corruption,), batch_size=size, limit=images, table=table)
    for batch in stream.batches():
        wrong += int((adapter(batch.images).argmax(1) != batch.labels).sum())
    return 100 * wrong / images


def rows_of(net: nn.Module, name: str, benchmark: Benchmark, sizes: Sequence[int], images: int) -> list[dict[str, Any]]:
    """A row for every size and prior: the error on clean images, and the mean over the corruptions."""
    rows = []
    for size in sizes:
        for prior in PRIORS:
            clean, *others = (error(net, benchmark, kind, size, prior, images) for kind in ("none", *EXTRA))
            corrupted = sum(others) / len(others)
            rows.append({"network": name, "size": size, "prior": prior, "clean": clean, "corrupted": corrupted})
            print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network, as for `vcotta run`; by default the data set's own")
    parser.add_argument("--weights", type=Path, help="its weights; the digits' network is trained")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images in a batch")
    parser.add_argument("--images", type=int, default=300, help="images of each corruption")
    out = ROOT / "docs" / "results" / "small-batches.json"
    parser.add_argument("--out", type=Path, default=out, help="file to write")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    benchmark = find_benchmark(asked.dataset)
    trained = benchmark.trains_itself and asked.weights is None
    net = start_network(benchmark, "vcotta") if trained else benchmark.build(asked.model, asked.weights)
    name = asked.dataset if asked.model is None else f"{asked.dataset}, {asked.model}"
    kept = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
    rows = [row for row in kept if row["network"] != name] + rows_of(net, name, benchmark, asked.sizes, asked.images)
    write_json(asked.out, {"setting": {"images": asked.images, "torch": str(torch.__version__)}, "rows": rows})
    print(f"Written: {asked.out}")


if __name__ == "__main__":
    main()
