"""Request sizes: how many images a batch needs to be answered well.

What: the first test digits, clean and in fog (severity 5), in requests of 1 to 50 images, each request a batch of its
own, as `vcotta serve` answers a client that waits for every answer. VCoTTA with its guard, as `vcotta bundle --dataset
digits --method vcotta` packs it, adapting on the way (``adapt=true``) or as it starts (``adapt=false``).
How: every cell is one network (seed), one kind of images, one size of requests and a new adapter; one torch thread.
The statistics of few images are poor, so they are mixed with the source's.

    python benchmarks/request_sizes.py               # some minutes, writes docs/results/request-sizes.json
    python benchmarks/request_sizes.py --seeds 0 --sizes 1 2 10 --images 40 --out try.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta import Adapter, __version__
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import adapter_for, start_network, stream_for
from vcotta.files import write_json

DIGITS = BENCHMARKS["digits"]
SIZES = (1, 2, 3, 5, 10, 20, 50)
CORRUPTIONS = ("none", "fog")
ROOT = Path(__file__).parents[1]


def error(adapter: Adapter, corruption: str, size: int, images: int, seed: int, adapt: bool) -> float:
    """Error in per cent on the first images of one kind, in requests of one size."""
    wrong = 0
    for batch in stream_for(DIGITS, corruptions=(corruption,), seed=seed, batch_size=size, limit=images).batches():
        told = adapter(batch.images) if adapt else adapter.predict(batch.images).probabilities
        wrong += int((told.argmax(1) != batch.labels).sum())
    return 100 * wrong / images


def of_network(start: nn.Module, seed: int, sizes: Sequence[int], images: int) -> list[dict[str, Any]]:
    """The errors of one network, a row a kind of images and size of requests."""
    rows = []
    for corruption in CORRUPTIONS:
        for size in sizes:
            found = {
                name: error(adapter_for(DIGITS, "vcotta", start, seed=seed), corruption, size, images, seed, adapt)
                for name, adapt in (("error", True), ("error_without_adapting", False))
            }
            rows.append({"seed": seed, "corruption": corruption, "size": size, **found})
            print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="networks and streams")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images in a request")
    parser.add_argument("--images", type=int, default=200, help="images of each kind")
    out = ROOT / "docs" / "results" / "request-sizes.json"
    parser.add_argument("--out", type=Path, default=out, help="file to write")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for seed in asked.seeds:
        rows += of_network(start_network(DIGITS, "vcotta", seed=seed), seed, asked.sizes, asked.images)
    setting = {
        "seeds": asked.seeds,
        "images": asked.images,
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    write_json(asked.out, {"setting": setting, "rows": rows})
    print(f"Written: {asked.out}")


if __name__ == "__main__":
    main()
