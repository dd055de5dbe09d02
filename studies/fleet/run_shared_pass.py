"""What streams would save if the frozen source predicted the images of several of them in one pass.

What: CPU milliseconds of a stream's step, of the source's pass over its eight images, and of that pass for each stream
if four streams share it, with ``trains="norm"``; milliseconds an image of passes over as many images as the eight views
of a stream and of four streams have; and whether a shared pass gives the same bytes, for several networks and numbers
of images.
How: the median of fifteen, one torch thread; networks are normalised by their own statistics, so that nothing but the
pass itself is counted and images could not change each other's outputs but by rounding. The networks whose bytes are
compared have random weights.

    vcotta bundle --set trains=norm --out norm.bundle
    OMP_NUM_THREADS=1 python -m studies.fleet.run_shared_pass --norm norm.bundle
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import vcotta
from studies.files import results_of
from studies.fleet.server import IMAGES, Images
from vcotta._util.files import write_json
from vcotta.models import build_network
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.serve import load_bundle
from vcotta.serve.adapters import Adapters

STREAMS, REPEATS, VIEWS = 4, 15, 8
NETWORKS = {"wrn-10-1": (32, 10), "resnet-20": (32, 10), "wrn-28-10": (32, 10), "resnet-50": (64, 200)}
"""Size of the images and number of classes."""
EACH = (1, 2, 4, 8, 16)
"""Images of a stream."""


def cpu_ms(act: Callable[[], object]) -> float:
    """Return the median CPU milliseconds of a call, after one that does not count."""
    act()
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        act()
        taken.append(1000 * (time.process_time() - began))
    return round(median(taken), 3)


def measure(bundle: Path) -> dict[str, Any]:
    """Return what a step and the source's pass cost, alone and shared."""
    adapters, images = Adapters(load_bundle(bundle)), Images(STREAMS)
    together = torch.cat([torch.from_numpy(images.request(stream, 0)) for stream in range(STREAMS)])
    adapter, source = adapters.build(), adapters.source.start
    step = cpu_ms(lambda: adapter(together[:IMAGES]))
    with torch.no_grad():
        use_batch_statistics(source, False)
        alone, shared = cpu_ms(lambda: source(together[:IMAGES])), cpu_ms(lambda: source(together)) / STREAMS
        views, shared_views = together[:IMAGES].repeat(VIEWS, 1, 1, 1), together.repeat(VIEWS, 1, 1, 1)
        view = cpu_ms(lambda: source(views)) / len(views)
        shared_view = cpu_ms(lambda: source(shared_views)) / len(shared_views)
    return {
        "step_ms": step,
        "pass_ms": alone,
        "shared_pass_ms": round(shared, 3),
        "ms_an_image_of_views": {"alone": round(view, 4), "shared": round(shared_view, 4)},
    }


def compare_bytes(network: str, images: int) -> dict[str, Any]:
    """Return whether a pass of four streams together gives each the bytes of its own pass, and the largest change."""
    size, classes = NETWORKS[network]
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        net = build_network(network, classes).eval()
        batches = torch.rand(STREAMS, images, 3, size, size)
        apart, together = torch.cat([net(one) for one in batches]), net(batches.flatten(0, 1))
    return {
        "network": network,
        "images": images,
        "same_bytes": torch.equal(apart, together),
        "largest_change": float((apart - together).abs().max()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--norm", type=Path, required=True, help="a bundle of the digits with trains=norm")
    parser.add_argument("--json", type=Path, default=results_of("fleet") / "shared_pass.json", help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "runs": REPEATS,
        "streams": STREAMS,
        "images": IMAGES,
        "versions": {"vcotta": vcotta.__version__, "torch": str(torch.__version__)},
        **measure(options.norm),
        "rows": [compare_bytes(network, images) for network in NETWORKS for images in EACH],
    }
    print(json.dumps(found))
    write_json(options.json, found)


if __name__ == "__main__":
    main()
