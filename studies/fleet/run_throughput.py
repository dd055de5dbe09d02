"""Throughput of one server against the number of its streams, whole states against small ones.

What: images a second, CPU time an image (which other processes change less), seconds to an answer (median, 99th
percentile), bytes of a stream's state, states in memory and how often one was loaded, for 1, 10, 50 and 200 streams
with ``trains="all"`` and ``trains="norm"``; and the seconds that a merge of all streams takes.
How: `vcotta.serve.service.Service` in this process, without HTTP, and one torch thread; so these are the server's
limits, less what HTTP and decoding cost. Every stream sends its next eight digits as soon as the last are answered, in
a corruption of its own. The first answer of each makes the stream and is not counted.

    vcotta bundle --out all.bundle
    vcotta bundle --set trains=norm --out norm.bundle
    OMP_NUM_THREADS=1 python -m studies.fleet.run_throughput --all all.bundle --norm norm.bundle
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch

import vcotta
from studies.files import results_of
from studies.fleet.server import IMAGES, Images, name
from vcotta._util.files import write_json
from vcotta.serve import load_bundle
from vcotta.serve.adapters import Adapters
from vcotta.serve.jobs import Served
from vcotta.serve.service import Service
from vcotta.serve.streams import StreamLimits

STREAMS = (1, 10, 50, 200)
RESULT = results_of("fleet") / "throughput.json"


class Load:
    """Streams that always have one request waiting, until each had so many answers after the first."""

    def __init__(self, service: Service, images: Images, streams: int, rounds: int) -> None:
        self.seconds: list[float] = []
        self._service, self._images, self._streams, self._rounds = service, images, streams, rounds
        self._left, self._done, self._first = streams, threading.Event(), 0.0
        self._first_cpu = 0.0
        self._failed: BaseException | None = None

    def run(self) -> tuple[float, float]:
        """Run the load; return seconds and CPU seconds from the last of the first answers to the last answer of all."""
        for stream in range(self._streams):
            self._send(stream, 0)
        self._done.wait()
        if self._failed is not None:
            raise self._failed
        return time.monotonic() - self._first, time.process_time() - self._first_cpu

    def _send(self, stream: int, number: int) -> None:
        sent = time.monotonic()
        request = torch.from_numpy(self._images.request(stream, number))
        future = self._service.predict(request, stream=name(stream))
        future.add_done_callback(lambda done: self._answered(done, stream, number, sent))

    def _answered(self, done: Future[Served], stream: int, number: int, sent: float) -> None:
        now = time.monotonic()
        if (error := done.exception()) is not None:
            self._failed = error
            self._done.set()
            return
        if number:
            self.seconds.append(now - sent)
        else:
            self._first, self._first_cpu = now, time.process_time()  # until the last of them
        if number < self._rounds:
            self._send(stream, number + 1)
        else:
            self._left -= 1
            if not self._left:
                self._done.set()


def measure(bundle: Path, streams: int, answers: int, mebibytes: int) -> dict[str, Any]:
    """Return one row: a number of streams with one bundle, and about so many answers."""
    limits = StreamLimits(streams + 1, mebibytes * 2**20, 2 * streams * IMAGES)
    state_bytes = Adapters(load_bundle(bundle)).state_bytes
    with tempfile.TemporaryDirectory() as folder:
        service = Service(load_bundle(bundle), state=Path(folder), streams=limits, wait=0.0)
        with service:
            load = Load(service, Images(streams), streams, max(1, math.ceil(answers / streams)))
            took, cpu = load.run()
            awake = sum(stream.engine.awake for stream in service.list_streams())
            loads = service.streams.loads
            merged = json.loads(service.merge().result().body) if streams > 1 else None
    cuts = quantiles(load.seconds, n=100, method="inclusive")
    return {
        "trains": service.bundle.settings["trains"],
        "streams": streams,
        "answers": len(load.seconds),
        "images_a_second": round(len(load.seconds) * IMAGES / took, 1),
        "cpu_ms_an_image": round(1000 * cpu / (len(load.seconds) * IMAGES), 2),
        "seconds_p50": round(cuts[49], 3),
        "seconds_p99": round(cuts[98], 3),
        "state_bytes": state_bytes,
        "states_in_memory": awake,
        "states_loaded": loads,
        "merged": merged and len(merged["merged"]),
        "seconds_to_merge": merged and merged["seconds"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, required=True, help="a bundle of the digits, from `vcotta bundle`")
    parser.add_argument("--norm", type=Path, required=True, help="the same with --set trains=norm")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--answers", type=int, default=60, help="fewest answers that are counted")
    parser.add_argument("--memory", type=int, default=64, help="MiB for states")
    parser.add_argument("--json", type=Path, help="write the results to this file, such as " + RESULT.name)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("vcotta.serve").setLevel(logging.ERROR)
    before, began, rows = os.getloadavg()[0], time.monotonic(), []
    for streams in options.streams:
        for bundle in (options.all, options.norm):
            rows.append(measure(bundle, streams, options.answers, options.memory))
            print(json.dumps(rows[-1]), flush=True)
    found = {
        "runs": 1,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "minutes": round((time.monotonic() - began) / 60, 1),
        "images_a_request": IMAGES,
        "memory_mib": options.memory,
        "versions": {"vcotta": vcotta.__version__, "torch": str(torch.__version__)},
        "rows": rows,
    }
    if options.json is not None:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
