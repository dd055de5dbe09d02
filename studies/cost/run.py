"""What a batch costs on one CPU thread: the plain network, and methods that adapt it.

What: a ResNet-20 with random weights on random images of 32 x 32 pixels, in batches of 16 and 64: the plain network,
BN, TENT, CoTTA and VCoTTA with 0 to 32 views. Random weights cost what trained ones do, with one exception: CoTTA uses
its views only where the source is unsure, which a random network always is, so its row is the dearest case.
How: each row has a process of its own and one torch thread; after two untimed steps, the median CPU time of several
steps and the highest resident memory of the process, torch itself included. CPU time is the time on the clock when the
core has nothing else to do. Every adapter has the guard that the library gives it: VCoTTA has one, the others none.

    python -m studies.cost.run                           # about 3 minutes, writes results/steps.json
    python -m studies.cost.run --batch-sizes 4 --methods plain bn --steps 1 --out try.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.steps import processor
from studies.files import results_of
from vcotta import __version__, build_adapter, to_variational
from vcotta._util.files import write_json
from vcotta.models import build_network

NETWORK, SIZE, CLASSES = "resnet-20", 32, 10
BATCH_SIZES = (16, 64)
UNTIMED = 2  # steps
VIEWS: dict[str, tuple[int | None, ...]] = {
    "plain": (None,),
    "bn": (None,),
    "tent": (None,),
    "cotta": (32,),
    "vcotta": (0, 2, 4, 8, 16, 32),
}


def stepper(method: str, views: int | None) -> Callable[[Tensor], Tensor]:
    """Return what predicts a batch, and adapts to it if the method does."""
    torch.manual_seed(0)
    net = build_network(NETWORK, CLASSES).eval()
    if method == "plain":
        plain = nn.Sequential(net, nn.LogSoftmax(1))
        return torch.inference_mode()(plain.__call__)
    options = {} if views is None else {"views": views}
    return build_adapter(method, to_variational(net) if method == "vcotta" else net, **options)


def peak_gib() -> float:
    """Return the highest resident memory of this process."""
    (line,) = [text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM")]
    return int(line.split()[1]) / 2**20


def measure(method: str, views: int | None, batch_size: int, steps: int) -> dict[str, Any]:
    """Return one row."""
    torch.set_num_threads(1)
    step, seconds = stepper(method, views), []
    for seed in range(UNTIMED + steps):
        images = torch.rand(batch_size, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
        started = time.process_time()
        step(images)
        seconds.append(time.process_time() - started)
    return {
        "dataset": f"random, {SIZE} px",
        "network": NETWORK,
        "method": method,
        "views": views,
        "batch_size": batch_size,
        "ms_per_batch": round(1000 * statistics.median(seconds[UNTIMED:]), 2),
        "peak_gib": round(peak_gib(), 3),
        "error": None,  # of a random network
        "reference_ms": None,
        "reference_error": None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(BATCH_SIZES), help="images in a batch")
    parser.add_argument("--methods", nargs="+", default=list(VIEWS), choices=list(VIEWS), help="rows to measure")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each row")
    parser.add_argument("--out", type=Path, default=results_of("cost") / "steps.json", help="file to write")
    options = parser.parse_args(arguments)
    rows = []
    for batch_size in options.batch_sizes:
        for method in options.methods:
            for views in VIEWS[method]:
                with multiprocessing.get_context("spawn").Pool(1) as process:  # so that its memory is its own
                    rows.append(process.apply(measure, (method, views, batch_size, options.steps)))
                print(rows[-1], flush=True)
    setting = {
        "hardware": processor(),
        "threads": 1,
        "clock": "CPU time",
        "steps": options.steps,
        "runs": 1,
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"rows": []}
    prices = [row for row in before["rows"] if not row["dataset"].startswith("random")]
    write_json(options.out, before | {"setting": setting, "rows": rows + prices})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
