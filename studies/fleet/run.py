"""A fleet under load: many streams on one server, valid and malformed requests, and a kill in the middle.

What: requests by kind and status, wrong answers, images served by stream, seconds to an answer (median, 99th
percentile), the server's memory, what each stream lost when the server got SIGKILL half-way, and the text of every kind
of failure. A step that an answer called saved (`Vcotta-Saved`) must be there afterwards.
How: `vcotta serve` in a process of its own on the loopback address, with a bundle of digits (``vcotta bundle --out
digits.bundle``), one torch thread, a token of its own for every stream, and memory for only some of the states. Each
stream has a client that sends its next request when the last is answered: eight digits as an array, each stream in a
corruption of its own; one request in five goes before with something that must be refused: another stream's token, a
cut array, no images, an odd name, a pickle. Each answer of the streams in the sample is compared, digit for digit, with
that of a service that has this stream alone, from its start or from what it kept when the server was killed. Clients
and server share the machine; how much of its CPU time other processes used meanwhile is in the result (Linux).

    OMP_NUM_THREADS=1 python -m studies.fleet.run --bundle digits.bundle --json studies/fleet/results/fleet.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import numpy as np
import torch

import vcotta
from benchmarks.load import npy
from studies.fleet.failures import failures
from studies.fleet.server import IMAGES, Images, Server, name
from vcotta._util.files import write_json
from vcotta.serve import load_bundle
from vcotta.serve.predicting import body_of
from vcotta.serve.service import Service

SAMPLE, BROKEN_SHARE = 8, 0.2
NPY = {"Content-Type": "application/x-npy"}
BROKEN = {
    "another stream's token": 401,
    "no token": 401,
    "array cut short": 422,
    "no images": 422,
    "pickled objects": 422,
    "odd name": 422,
    "other type": 415,
}


@dataclass
class Tally:
    """What happened, by all clients."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    served: Counter[int] = field(default_factory=Counter)
    by_stream: dict[int, list[tuple[int, dict[str, Any]]]] = field(default_factory=lambda: defaultdict(list))
    lost: list[int] = field(default_factory=list)
    saved: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, answer: httpx.Response) -> None:
        """Count an answer, and keep the text of a server error."""
        self.statuses[kind, answer.status_code] += 1
        if answer.status_code >= 500:
            self.errors[f"{answer.status_code}: {answer.text}"] += 1


async def client(
    http: httpx.AsyncClient, server: Server, images: Images, tally: Tally, stream: int, first: int, end: float
) -> None:
    """Send the requests of a stream, one after the other, from request ``first`` on."""
    number, draw = first, random.Random(stream * 1000 + first)
    while time.monotonic() < end:
        if draw.random() < BROKEN_SHARE:
            await send_broken(http, server, images, tally, stream, draw)
            continue
        headers = NPY | {"Authorization": f"Bearer {server.tokens[name(stream)]}"}
        began = time.monotonic()
        try:
            answer = await http.post(
                f"{server.address}/v1/streams/{name(stream)}/predict",
                content=npy(images.request(stream, number)),
                headers=headers,
            )
        except httpx.TransportError:
            return  # the server was killed: the step counts as not acknowledged
        tally.note("valid", answer)
        if answer.status_code == 200:
            tally.seconds.append(time.monotonic() - began)
            tally.served[stream] += IMAGES
            tally.by_stream[stream].append((number, answer.json()))
            tally.saved[stream] = int(answer.headers["vcotta-saved"])
            number += 1
        elif answer.status_code == 429:
            await asyncio.sleep(float(answer.headers["retry-after"]))
        else:
            tally.wrong.append(f"a valid request got {answer.status_code}: {answer.text[:200]}")


async def send_broken(
    http: httpx.AsyncClient, server: Server, images: Images, tally: Tally, stream: int, draw: random.Random
) -> None:
    """Send something that must be refused and change nothing."""
    kind = draw.choice(list(BROKEN))
    path, headers = name(stream), NPY | {"Authorization": f"Bearer {server.tokens[name(stream)]}"}
    content = npy(images.request(stream, 10**6))
    if kind == "another stream's token":
        other = (stream + 1) % max(2, len(server.tokens))
        headers["Authorization"] = f"Bearer {server.tokens.get(name(other), 'nobody')}"
    elif kind == "no token":
        del headers["Authorization"]
    elif kind == "array cut short":
        content = content[:-5]
    elif kind == "no images":
        content = npy(np.zeros((0, 3, 32, 32), np.float32))
    elif kind == "pickled objects":
        content = npy(np.array([{"a": 1}], dtype=object))
    elif kind == "odd name":
        path = "..%2F" + path.upper()
        path = path.replace("%2F", "_")
    else:
        headers["Content-Type"] = "application/x-pickle"
    try:
        answer = await http.post(f"{server.address}/v1/streams/{path}/predict", content=content, headers=headers)
    except httpx.TransportError:
        return
    tally.note(kind, answer)
    if answer.status_code not in (BROKEN[kind], 429) or "detail" not in answer.json():
        tally.wrong.append(f"{kind}: {answer.status_code} instead of {BROKEN[kind]}")


async def phase(server: Server, images: Images, tally: Tally, first: list[int], seconds: float, kill: bool) -> float:
    """Let every stream's client send for so long; then kill the server under load, or wait for the last answers.

    Returns:
        The seconds until the kill or the last answer.
    """
    began = time.monotonic()
    end = began + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(300), limits=limits) as http:
        tasks = [
            asyncio.create_task(client(http, server, images, tally, stream, number, end + 3600 * kill))
            for stream, number in enumerate(first)
        ]
        while time.monotonic() < end:
            server.note_memory()
            await asyncio.sleep(0.5)
        if kill:
            server.kill()
            took = time.monotonic() - began
        await asyncio.gather(*tasks)
    return took if kill else time.monotonic() - began


def kept(server: Server, streams: int, tally: Tally) -> list[int]:
    """Return how many steps of each stream the restarted server has; acknowledged ones may be missing."""
    with httpx.Client(timeout=60) as http:
        listed = {one["stream"]: one for one in http.get(f"{server.address}/v1/streams").json()["streams"]}
    found = [listed.get(name(stream), {"changes": 0})["changes"] for stream in range(streams)]
    for stream, changes in enumerate(found):
        acknowledged = len(tally.by_stream[stream])
        # One more than acknowledged: the last answer was on its way when the server was killed.
        if changes > acknowledged + 1:
            tally.wrong.append(f"stream {stream} has {changes} steps, but only {acknowledged} were acknowledged")
        if changes < tally.saved[stream]:
            tally.wrong.append(f"stream {stream} has {changes} steps, but {tally.saved[stream]} were called saved")
        tally.lost.append(max(0, acknowledged - changes))
    return found


def check(
    bundle: Path, images: Images, stream: int, answers: list[tuple[int, dict[str, Any]]], restart: int, killed: int
) -> list[str]:
    """Compare the answers of one stream with those of a service that has only this stream."""
    service, wrong = Service(load_bundle(bundle), wait=0.0), []
    with service:
        names = service.bundle.class_names
        for place, (number, found) in enumerate(answers):
            if place == killed:  # begin again from what was kept
                service.reset().result(60)
                for done in range(restart):
                    service.predict(torch.from_numpy(images.request(stream, done))).result(60)
            served = service.predict(torch.from_numpy(images.request(stream, number))).result(60)
            expected = json.loads(body_of(served, names, True))
            if found["predictions"] != expected["predictions"]:
                wrong.append(f"stream {stream}, request {number}: another answer than that of the stream alone")
    return wrong


def fleet(bundle: Path, streams: int, minutes: float, mebibytes: int, checkpoint_seconds: float) -> dict[str, Any]:
    """Run the load with a kill in the middle, and return what was measured."""
    torch.set_num_threads(1)
    images, tally = Images(streams), Tally()
    clock = time.monotonic(), busy_seconds(), own_seconds()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(bundle, Path(folder), streams, mebibytes, checkpoint_seconds)
        started = [server.start()]
        seconds = asyncio.run(phase(server, images, tally, [0] * streams, 30 * minutes, kill=True))
        killed = [len(tally.by_stream[stream]) for stream in range(streams)]
        saved = sum(tally.saved.values())
        started.append(server.start())
        continued = kept(server, streams, tally)
        began = tally.served.copy()
        seconds += asyncio.run(phase(server, images, tally, continued, 30 * minutes, kill=False))
        with httpx.Client(timeout=60) as http:
            state = http.get(f"{server.address}/v1/streams").json()
            metrics = http.get(f"{server.address}/metrics").text
        code = server.stop()
        failed = failures((Path(folder) / "server.log").read_text())
    took, busy, own = (
        now - then for now, then in zip((time.monotonic(), busy_seconds(), own_seconds()), clock, strict=True)
    )
    sample = [round(place * (streams - 1) / max(1, min(SAMPLE, streams) - 1)) for place in range(min(SAMPLE, streams))]
    compared = 0
    for stream in sample:
        answers = tally.by_stream[stream]
        compared += len(answers)
        tally.wrong += check(bundle, images, stream, answers, continued[stream], killed[stream])
    second = [tally.served[stream] - began[stream] for stream in range(streams)]
    first = [began[stream] for stream in range(streams)]
    cuts, statuses = quantiles(tally.seconds, n=100), Counter[int]()
    for (_, status), count in tally.statuses.items():
        statuses[status] += count
    return {
        "streams": streams,
        "minutes": round(seconds / 60, 1),
        "cpu_share": {
            "server_and_clients": round(own / took / (os.cpu_count() or 1), 2),
            "others": round(max(0.0, busy - own) / took / (os.cpu_count() or 1), 2),
        },
        "images_a_request": IMAGES,
        "memory_mib": mebibytes,
        "state_kib": round(state["held"] / 1024 / max(1, state["in_memory"])),
        "source_kib": round(state["source"] / 1024),
        "states_in_memory_at_the_end": state["in_memory"],
        "states_loaded": counter(metrics, "vcotta_state_loads_total"),
        "states_put_to_disk": counter(metrics, "vcotta_state_evictions_total"),
        "requests": sum(statuses.values()),
        "by_status": {str(status): count for status, count in sorted(statuses.items())},
        "by_kind": {f"{kind}: {status}": count for (kind, status), count in sorted(tally.statuses.items())},
        "server_errors": sum(count for status, count in statuses.items() if status >= 500),
        "server_error_texts": dict(tally.errors),
        "answers_compared": compared,
        "streams_compared": len(sample),
        "wrong_answers": len(tally.wrong),
        "wrong": tally.wrong[:20],
        "images_a_second": round(sum(tally.served.values()) / seconds, 1),
        "seconds_p50": round(cuts[49], 3),
        "seconds_p99": round(cuts[98], 3),
        "images_of_the_busiest_stream": [max(first), max(second)],
        "images_of_the_least_busy_stream": [min(first), min(second)],
        "checkpoint_seconds": checkpoint_seconds,
        "steps_called_saved": saved,
        "acknowledged_steps_lost_by_the_kill": {"most": max(tally.lost), "all": sum(tally.lost), "of": sum(killed)},
        "seconds_to_start": [round(seconds, 1) for seconds in started],
        "resident_mib": {
            "start": server.resident[0] // 2**20,
            "max": max(server.resident) // 2**20,
            "end": server.resident[-1] // 2**20,
            "max_by_minute": [
                max(server.resident[place : place + 120]) // 2**20 for place in range(0, len(server.resident), 120)
            ],
        },
        "failures_in_the_log": sum(kind["count"] for kind in failed),
        "failures": failed,
        "exit_code": code,
    }


def busy_seconds() -> float:
    """Return the CPU seconds of all processes of the machine since it started."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the CPU seconds of this process and of the servers that have ended."""
    return sum(os.times()[:4])


def counter(metrics: str, key: str) -> int:
    found = re.search(rf"^{key} (\S+)", metrics, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="a bundle of the digits, from `vcotta bundle`")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--memory", type=int, default=64, help="MiB for states, less than all of them need")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    about = {
        "runs": 1,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared by server and clients",
        "load_average_before": round(os.getloadavg()[0], 1),
        "versions": {
            "vcotta": vcotta.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
    }
    given = options.bundle, options.streams, options.minutes, options.memory, options.checkpoint_seconds
    found = about | fleet(*given)
    print(json.dumps(found, indent=2))
    if options.json is not None:
        write_json(options.json, found)
    if found["wrong_answers"] or found["server_errors"] or found["exit_code"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
