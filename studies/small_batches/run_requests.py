"""How well a request is answered, by its number of images.

What: the first test digits, clean and in fog (severity 5), in requests of 1 to 50 images, each request a batch of its
own, as `vcotta serve` answers a client that waits for every answer. VCoTTA with its guard, as `vcotta bundle --dataset
digits --method vcotta` packs it, adapting to every request (``adapt=true``) or to none (``adapt=false``).
How: every row is one network (seed), one kind of images, one size of requests and a new adapter; one torch thread.

    python -m studies.small_batches.run_requests               # some minutes, writes results/request-sizes.json
    python -m studies.small_batches.run_requests --seeds 0 --sizes 1 2 10 --images 40 --out try.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from studies.files import results_of
from vcotta import __version__
from vcotta._util.files import write_json
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.experiments.grid import run_spec
from vcotta.runs.spec import RunSpec

SIZES = (1, 2, 3, 5, 10, 20, 50)
CORRUPTIONS = ("none", "fog")


def error_without_adapting(spec: RunSpec, model: nn.Module) -> float:
    """Return the share of wrong answers when every batch is answered by the adapter's start."""
    adapter, wrong, seen = adapter_for_spec(spec, model=model), 0, 0
    for batch in stream_for(spec).batches():
        wrong += int((adapter.predict(batch.images).probabilities.argmax(1) != batch.labels).sum())
        seen += len(batch.labels)
    return wrong / seen


def of_network(model: nn.Module, seed: int, sizes: Sequence[int], images: int) -> list[dict[str, Any]]:
    """Return the errors of one network in per cent, a row for each kind of images and size of requests."""
    rows = []
    for corruption in CORRUPTIONS:
        for size in sizes:
            spec = RunSpec(
                "vcotta", corruptions=(corruption,), batch_size=size, limit=images, seed=seed, stream_seed=seed
            )
            row: dict[str, Any] = {"seed": seed, "corruption": corruption, "size": size}
            row["error"] = 100 * run_spec(spec, model=model).summary()["mean"]["error"]
            row["error_without_adapting"] = 100 * error_without_adapting(spec, model)
            rows.append(row)
            print(row, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of networks and streams")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images in a request")
    parser.add_argument("--images", type=int, default=200, help="images of each kind")
    out = results_of("small_batches") / "request-sizes.json"
    parser.add_argument("--out", type=Path, default=out, help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for seed in options.seeds:
        rows += of_network(start_network(RunSpec("vcotta", seed=seed)), seed, options.sizes, options.images)
    setting = {
        "seeds": options.seeds,
        "images": options.images,
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    write_json(options.out, {"setting": setting, "rows": rows})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
