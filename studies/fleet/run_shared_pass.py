"""What streams would save if the frozen source predicted the images of several of them in one pass.

What: CPU milliseconds of a stream's step, of the source's pass over its eight images, and of that pass for each stream
if four streams share it, with ``trains="norm"``; and whether the shared pass gives the same bytes.
How: the median of fifteen, one torch thread; the source is normalised by its own statistics, so that nothing but the
pass itself is counted.

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
from studies.fleet.run import IMAGES, Images
from vcotta._util.files import write_json
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.serve import load_bundle
from vcotta.serve.adapters import Adapters

STREAMS, REPEATS = 4, 15


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
        same = torch.equal(source(together[:IMAGES]), source(together)[:IMAGES])
    return {"step_ms": step, "pass_ms": alone, "shared_pass_ms": round(shared, 3), "same_bytes": same}


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
    }
    print(json.dumps(found))
    write_json(options.json, found)


if __name__ == "__main__":
    main()
