"""How the cost of a step grows with its size, on one CPU thread.

What: the CPU time of a step of BN, TENT and VCoTTA as one size changes at a time and the others stay as in `USUAL`:
images in a batch, views, width of the network, pixels on a side, classes. Wide residual networks of depth 10 with
random weights on random images.
How: after two untimed steps, the median CPU time of ``--steps`` steps. For every size an exponent, the slope of the
logarithm of the time against that of the size, by least squares; and the part of it between the two largest sizes,
where what every step costs anyway counts least. Views, which may be 0, are fitted by a line instead.

    OMP_NUM_THREADS=1 python -m studies.cost.growth    # about a minute of CPU time, writes results/growth.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.steps import processor
from studies.files import results_of
from vcotta import __version__, build_adapter, to_variational
from vcotta._util.files import write_json
from vcotta.models import WideResNet

USUAL = {"images": 16, "views": 4, "width": 1, "pixels": 32, "classes": 10}
SIZES: dict[str, tuple[int, ...]] = {
    "images": (8, 16, 32, 64),
    "views": (0, 4, 8, 16),
    "width": (1, 2, 4),
    "pixels": (16, 32, 64),
    "classes": (10, 100, 1000),
}
METHODS = ("bn", "tent", "vcotta")
UNTIMED = 2  # steps


def milliseconds(method: str, size: dict[str, int], steps: int) -> float:
    """Return the median CPU time of a step."""
    torch.manual_seed(0)
    net = WideResNet(depth=10, width=size["width"], classes=size["classes"], stem_stride=2).eval()
    options = {"views": size["views"]} if method == "vcotta" else {}
    adapter = build_adapter(method, to_variational(net) if method == "vcotta" else net, **options)
    seconds = []
    for seed in range(UNTIMED + steps):
        shape = (size["images"], 3, size["pixels"], size["pixels"])
        images = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
        started = time.process_time()
        adapter(images)
        seconds.append(time.process_time() - started)
    return 1000 * statistics.median(seconds[UNTIMED:])


def exponents(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """Return the slope over all sizes, and between the two largest, on logarithmic scales.

    Example:
        >>> exponents([1, 2, 4], [3.0, 6.0, 12.0])
        {'exponent': 1.0, 'at_the_end': 1.0}
    """
    logs = np.log([sizes, times])
    whole, end = (np.polyfit(*part, 1)[0] for part in (logs, logs[:, -2:]))
    return {"exponent": round(float(whole), 2), "at_the_end": round(float(end), 2)}


def line(sizes: Sequence[int], times: Sequence[float]) -> dict[str, float]:
    """Return the milliseconds without and for each, by least squares."""
    each, base = np.polyfit(sizes, times, 1)
    return {"base_ms": round(float(base), 2), "each_ms": round(float(each), 2)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each size")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES), help="what changes")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), help="methods")
    parser.add_argument("--out", type=Path, default=results_of("cost") / "growth.json", help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    setting = {
        "hardware": processor(),
        "threads": 1,
        "clock": "CPU time",
        "steps": options.steps,
        "runs": 1,
        "network": "WRN-10 with random weights",
        "usual": USUAL,
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    rows = []
    for name in options.sizes:
        for method in options.methods:
            if name == "views" and method != "vcotta":
                continue
            times = [milliseconds(method, USUAL | {name: size}, options.steps) for size in SIZES[name]]
            fitted = line(SIZES[name], times) if name == "views" else exponents(SIZES[name], times)
            measured = {"sizes": list(SIZES[name]), "ms": [round(ms, 2) for ms in times]}
            rows.append({"method": method, "grows": name, **measured, **fitted})
            print(rows[-1], flush=True)
            write_json(options.out, {"setting": setting, "rows": rows})


if __name__ == "__main__":
    main()
