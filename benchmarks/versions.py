"""CPU time and error of a method in two versions of this repository, side by side.

What: a method on the digits stream of `vcotta demo` (fifteen corruptions), by the code in a folder given, ``before``,
and by this code, ``after``: the median CPU time of a step, its sum, page faults of a step, and the error.
How: every run has a process of its own and one torch thread. For each seed the two versions run one after the other, in
an order that changes from seed to seed, as the speed of a shared machine varies. Both start from the same networks: the
first version trains them, or reads them from the cache folder, and the other reads them from there.

    git worktree add ../before COMMIT
    OMP_NUM_THREADS=1 python -m benchmarks.versions ../before --json studies/cost/results/versions.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps import processor
from vcotta import __version__
from vcotta._util.files import write_json

ROOT = Path(__file__).parents[1]

# Runs in another version, so it uses only what both have.
RUN = """
import json, resource, sys, time
import torch
from vcotta.experiments.build import adapter_for_spec, stream_for
from vcotta.runs.spec import RunSpec

torch.set_num_threads(1)
options = json.loads(sys.argv[1])
spec = RunSpec(options["method"], seed=options["seed"], limit=options["limit"])
adapter = adapter_for_spec(spec)
seconds, faults, wrong, images = [], [], 0, 0
for batch in stream_for(spec):
    started, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    log_probs = adapter(batch.images)
    seconds.append(time.process_time() - started)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    wrong += (log_probs.argmax(1) != torch.as_tensor(batch.labels)).sum().item()
    images += len(log_probs)
print(json.dumps({"seconds": seconds, "faults": faults, "wrong": wrong, "images": images}))
"""


def run(folder: Path, method: str, seed: int, limit: int | None) -> dict[str, Any]:
    """Return a row: one run by the code in a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    options = json.dumps({"method": method, "seed": seed, "limit": limit})
    done = subprocess.run(
        [sys.executable, "-c", RUN, options], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"The run of {method} by the code in {folder} failed:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = found["seconds"]
    return {
        "method": method,
        "seed": seed,
        "steps": len(seconds),
        "ms_per_step": round(1000 * statistics.median(seconds), 2),
        "seconds": round(sum(seconds), 2),
        "page_faults_per_step": statistics.median(found["faults"]),
        "error": round(100 * found["wrong"] / found["images"], 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder with the other version of this repository")
    parser.add_argument("--method", default="vcotta", help="a method (default vcotta)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of network and adapter")
    parser.add_argument("--limit", type=int, help="images of each corruption (default all)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    if not (options.before / "src" / "vcotta").is_dir():
        parser.error(f"Expected a folder with src/vcotta in it, but got {options.before}.")
    folders = {"before": options.before.resolve(), "after": ROOT}
    setting = {
        "hardware": processor(),
        "threads": 1,
        "clock": "CPU time",
        "runs": len(options.seeds),
        "images_per_corruption": options.limit,
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    rows: list[dict[str, Any]] = []
    for place, seed in enumerate(options.seeds):
        for version in list(folders)[:: 1 if place % 2 == 0 else -1]:
            rows.append({"version": version, **run(folders[version], options.method, seed, options.limit)})
            print(rows[-1], flush=True)
            if options.json:
                write_json(options.json, {"setting": setting, "rows": rows})


if __name__ == "__main__":
    main()
