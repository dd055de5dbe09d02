"""Kill runs at random moments, resume them, and compare their records with those of an undisturbed run.

What: VCoTTA on digits, thirty batches of fifteen corruptions, a checkpoint every other batch. It runs once undisturbed,
then again and again in new folders. Each time the process gets SIGKILL at a random moment and is started once more to
continue. Kept of each: how many records there were when it died, from which batch it continued, and whether its records
equal those of the undisturbed run, byte for byte.
How: each run is a forked process of its own; a moment is a random batch, and then a random part of the time of two
batches. A process that ended before its signal does not count and is killed another time. One torch thread, CPU.

    python -m studies.faults.run --json studies/faults/results/faults.json   # some 10 minutes on one core
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vcotta._util.files import write_json
from vcotta.bayes import save_warmed
from vcotta.experiments.build import start_network
from vcotta.experiments.grid import run_spec
from vcotta.runs.run import RECORDS, Run
from vcotta.runs.spec import RunSpec

SPEC = RunSpec("vcotta", options={"views": 4}, limit=100)
EVERY = 2


def start(spec: RunSpec, out: Path) -> int:
    """Start or resume a run in a process of its own, which has nothing left to import; return its number."""
    child = os.fork()
    if child:
        return child
    try:
        run_spec(spec, out, resume=True, checkpoint_every=EVERY)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def end_of(child: int) -> int:
    """Wait for a process and return how it ended: 0 for success, -9 for killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def records(out: Path) -> bytes:
    """Return what the run in a folder has recorded so far."""
    return (out / RECORDS).read_bytes() if (out / RECORDS).exists() else b""


def kill(spec: RunSpec, out: Path, batch: int, delay: float) -> bool:
    """Start a run, kill it ``delay`` seconds after it has recorded ``batch`` batches; return whether it was alive."""
    child = start(spec, out)
    ended = partial(os.waitid, os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    while (not (out / RECORDS).exists() or records(out).count(b"\n") < batch) and ended() is None:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)  # a process that has ended still exists until we wait for it
    return end_of(child) == -signal.SIGKILL


def trial(spec: RunSpec, out: Path, whole: Run, draw: random.Random) -> dict[str, Any] | None:
    """Kill one run at a random moment and resume it; return None if it ended before its kill."""
    batch = draw.randrange(len(whole.records))
    delay = draw.random() * 2 * max(line["seconds"] for line in whole.timing[1:])
    if not kill(spec, out, batch, delay):
        return None
    left = records(out).count(b"\n")
    if end_of(start(spec, out)) != 0:
        raise RuntimeError(f"The run killed after batch {batch} and {delay:.3f} s could not be resumed.")
    resumed = [place["batch"] for place in Run.load(out).manifest["resumed"]]
    return {"records_left": left, "resumed_from": resumed[0] if resumed else 0}


def faults(kills: int, seed: int, folder: Path, spec: RunSpec = SPEC) -> dict[str, Any]:
    """Return all kills, and what they are compared with."""
    torch.set_num_threads(1)
    weights, draw, trials, missed = folder / "warmed.safetensors", random.Random(seed), [], 0
    save_warmed(start_network(spec), weights)
    spec = replace(spec, weights=weights, start=None)
    if end_of(start(spec, folder / "whole")) != 0:
        raise RuntimeError("The undisturbed run failed.")
    whole = Run.load(folder / "whole")
    expected = records(folder / "whole")
    while len(trials) < kills:
        out = folder / f"{len(trials)}-{missed}"
        found = trial(spec, out, whole, draw)
        if found is None:
            missed += 1
            continue
        trials.append(found | {"identical": records(out) == expected})
        print(f"{len(trials)}/{kills}: {json.dumps(trials[-1])}", flush=True)
    return {
        "kills": kills,
        "identical": sum(one["identical"] for one in trials),
        "ended_before_the_kill": missed,
        "seed": seed,
        "method": spec.method,
        "batches": len(whole.records),
        "checkpoint_every": EVERY,
        "records_sha256": hashlib.sha256(expected).hexdigest(),
        "versions": whole.manifest["versions"],
        "hardware": whole.manifest["hardware"],
        "trials": trials,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = faults(options.kills, options.seed, Path(folder))
    print(f"{found['identical']} of {found['kills']} killed runs ended with the bytes of the undisturbed one.")
    if options.json is not None:
        write_json(options.json, found)
    if found["identical"] < found["kills"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
