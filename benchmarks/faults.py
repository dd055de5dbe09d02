"""Runs that are killed at random moments and resumed: do they end with the same bytes?

What: VCoTTA on the digits, thirty batches of fifteen corruptions, a checkpoint every other batch, is run once without
disturbance and then again and again in new folders. Each time the process gets SIGKILL while it works, at a random
moment, and is started once more to go on. Said of each: how many records there were when it died, from which batch it
went on, and whether its records are those of the undisturbed run, byte for byte.
How: each run is a process of its own, forked; a moment is a random batch, and then a random part of the time two
batches take. A process that ended before its signal does not count and is killed another time. One torch thread, CPU.

    python benchmarks/faults.py --json docs/results/faults.json     # fifty kills, some 10 minutes on one core
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
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vcotta.bayes import load_warmed, save_warmed
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import BENCHMARKS
from vcotta.experiments.setup import adapter_for, start_network, stream_for
from vcotta.files import write_json
from vcotta.runs import RECORDS, Run

LIMIT, VIEWS, EVERY = 100, 4, 2


def run(out: Path, weights: Path) -> None:
    """Start the run, or go on with it."""
    digits = BENCHMARKS["digits"]
    adapter = adapter_for(digits, "vcotta", load_warmed(digits.build(None), weights), views=VIEWS)
    run_stream(adapter, stream_for(digits, limit=LIMIT), out, resume=True, checkpoint_every=EVERY)


def start(out: Path, weights: Path) -> int:
    """The same in a process of its own, which has nothing to import any more; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        run(out, weights)
        os._exit(0)
    finally:
        traceback.print_exc()
        os._exit(1)


def end_of(child: int) -> int:
    """Wait for a process and say how it ended: 0 for well, -9 for killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def records(out: Path) -> bytes:
    """What the run in a folder has recorded so far."""
    return (out / RECORDS).read_bytes() if (out / RECORDS).exists() else b""


def kill(out: Path, weights: Path, batch: int, delay: float) -> bool:
    """Start a run and kill it so many seconds after it has recorded so many batches; whether it was still alive."""
    child = start(out, weights)
    ended = partial(os.waitid, os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    while (not (out / RECORDS).exists() or records(out).count(b"\n") < batch) and ended() is None:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)  # one that has ended still waits for us to ask how
    return end_of(child) == -signal.SIGKILL


def trial(out: Path, weights: Path, whole: Run, draw: random.Random) -> dict[str, Any] | None:
    """Kill one run at a random moment, go on with it, and say what came of it; None if it ended before its kill."""
    batch = draw.randrange(len(whole.records))
    delay = draw.random() * 2 * max(line["seconds"] for line in whole.timing[1:])
    if not kill(out, weights, batch, delay):
        return None
    left = records(out).count(b"\n")
    if end_of(start(out, weights)) != 0:
        raise RuntimeError(f"The run killed after batch {batch} and {delay:.3f} s could not go on.")
    resumed = [place["batch"] for place in Run.load(out).manifest["resumed"]]
    return {"records_left": left, "resumed_from": resumed[0] if resumed else 0}


def faults(kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """All kills, and what they are measured against."""
    torch.set_num_threads(1)
    weights, draw, trials, missed = folder / "warmed.safetensors", random.Random(seed), [], 0
    save_warmed(start_network(BENCHMARKS["digits"], "vcotta"), weights)
    if end_of(start(folder / "whole", weights)) != 0:
        raise RuntimeError("The undisturbed run failed.")
    whole = Run.load(folder / "whole")
    wanted = records(folder / "whole")
    while len(trials) < kills:
        out = folder / f"{len(trials)}-{missed}"
        found = trial(out, weights, whole, draw)
        if found is None:
            missed += 1
            continue
        trials.append(found | {"identical": records(out) == wanted})
        print(f"{len(trials)}/{kills}: {json.dumps(trials[-1])}", flush=True)
    return {
        "kills": kills,
        "identical": sum(one["identical"] for one in trials),
        "ended_before_the_kill": missed,
        "seed": seed,
        "method": "vcotta",
        "batches": len(whole.records),
        "checkpoint_every": EVERY,
        "records_sha256": hashlib.sha256(wanted).hexdigest(),
        **{key: whole.manifest[key] for key in ("versions", "hardware")},
        "trials": trials,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--json", type=Path, help="write what was found here")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = faults(asked.kills, asked.seed, Path(folder))
    print(f"{found['identical']} of {found['kills']} killed runs ended with the bytes of the undisturbed one.")
    if asked.json is not None:
        write_json(asked.json, found)
    if found["identical"] < found["kills"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
