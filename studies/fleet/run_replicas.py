r"""A replica of two is killed under load, again and again: what its streams lose, and what their clients are told.

What: requests by status before the first kill and after it, steps that were acknowledged and lost, whether each of them
could be known from what the client was answered (an answer's header `Vcotta-Saved` says what would survive), seconds
until every stream was answered again, and seconds to an answer before the first kill (median, 99th percentile).
How: `vcotta serve --engine ray --replicas 2` in a process of its own, with a bundle of digits (``vcotta bundle --out
digits.bundle``). Each stream has a client that sends its next eight digits when the last are answered, and waits as
long as a 503 says. Now and then the replica with most streams gets SIGKILL; Ray starts another. This is done for each
number of ``--checkpoint-seconds``; 0 is one before each answer. Clients, replicas and Ray share the machine.

    OMP_NUM_THREADS=1 python -m studies.fleet.run_replicas --bundle digits.bundle \
        --json studies/fleet/results/replicas.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import torch

import vcotta
from benchmarks.load import npy
from studies.fleet.failures import failures
from studies.fleet.run import NPY
from studies.fleet.server import IMAGES, Images, Server, name
from vcotta._util.files import write_json

PAUSE = 0.05
PATIENCE = 180.0


@dataclass
class Client:
    """What one stream's client was answered.

    Attributes:
        stream: Number of the stream.
        statuses: How often it was answered what.
        changes: State version in its latest answer.
        saved: The version that its latest answer called saved.
        lost: Steps that were acknowledged, and not there any more in the next answer.
        wrong: What must not happen.
        seconds: Of each answer, from the request on.
        answered: When it got its latest answer, by `time.monotonic`.
        refusals: Texts of the answers 503.
    """

    stream: int
    statuses: Counter[int] = field(default_factory=Counter)
    changes: int = 0
    saved: int = 0
    lost: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    answered: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)

    def note(self, answer: httpx.Response, began: float) -> None:
        """Take in an answer."""
        self.statuses[answer.status_code] += 1
        if answer.status_code == 503:
            self.refusals[answer.text] += 1
            return
        if answer.status_code != 200:
            self.wrong.append(f"{name(self.stream)}: {answer.status_code}: {answer.text[:200]}")
            return
        self.answered = time.monotonic()
        self.seconds.append(self.answered - began)
        changes = answer.json()["batch"]["changes"]
        if changes <= self.saved:
            self.wrong.append(f"{name(self.stream)} is at {changes}, but {self.saved} steps were called saved")
        self.lost += max(0, self.changes + 1 - changes)
        self.changes, self.saved = changes, int(answer.headers["vcotta-saved"])


async def send(http: httpx.AsyncClient, server: Server, images: Images, client: Client, ended: asyncio.Event) -> None:
    """Send a stream's requests, one after the other, until the end."""
    number = 0
    headers = NPY | {"Authorization": f"Bearer {server.tokens[name(client.stream)]}"}
    address = f"{server.address}/v1/streams/{name(client.stream)}/predict"
    while not ended.is_set():
        began = time.monotonic()
        answer = await http.post(address, content=npy(images.request(client.stream, number)), headers=headers)
        client.note(answer, began)
        number += answer.status_code == 200
        await asyncio.sleep(float(answer.headers.get("retry-after", PAUSE)))


async def replicas_of(http: httpx.AsyncClient, server: Server) -> dict[str, int]:
    """Return the process of the replica of each stream."""
    answer = await http.get(f"{server.address}/metrics")
    pattern = r'vcotta_stream_waiting_images\{replica="[^"]*-(\d+)",stream="(camera-[^"]*)"\}'
    return {stream: int(process) for process, stream in re.findall(pattern, answer.text)}


async def load(server: Server, images: Images, streams: int, seconds: float, kills: int) -> dict[str, Any]:
    """Send for so many seconds, then kill a replica and send for as long again, several times; return what happened."""
    clients, ended = [Client(stream) for stream in range(streams)], asyncio.Event()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(PATIENCE), limits=limits) as http:
        tasks = [asyncio.create_task(send(http, server, images, client, ended)) for client in clients]
        await asyncio.sleep(seconds)
        await until(lambda: all(client.statuses[200] for client in clients))
        before = sum((client.statuses for client in clients), Counter[int]())
        seconds_before = [one for client in clients for one in client.seconds]
        made = [await kill(http, server, clients, seconds) for _ in range(kills)]
        ended.set()
        await asyncio.gather(*tasks)
    after = sum((client.statuses for client in clients), Counter[int]()) - before
    wrong = [one for client in clients for one in client.wrong] + [one for each in made for one in each.pop("wrong")]
    return {
        "kills": made,
        "before": {str(status): count for status, count in sorted(before.items())},
        "after": {str(status): count for status, count in sorted(after.items())},
        "acknowledged_steps_lost": sum(each["lost"] for each in made),
        "acknowledged_steps": before[200] + after[200],
        "seconds_p50": round(quantiles(seconds_before, n=100)[49], 3),
        "seconds_p99": round(quantiles(seconds_before, n=100)[98], 3),
        "texts_of_503": dict(sum((client.refusals for client in clients), Counter[str]())),
        "wrong": wrong[:20],
        "wrong_answers": len(wrong),
    }


async def kill(http: httpx.AsyncClient, server: Server, clients: list[Client], seconds: float) -> dict[str, Any]:
    """Kill the replica with most streams, wait until all streams are answered and for so long; return what it did."""
    of = await replicas_of(http, server)
    ((victim, _),) = Counter(of.values()).most_common(1)
    lost = [client.lost for client in clients]
    refused = [client.statuses[503] for client in clients]
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    await until(lambda: all(client.answered > killed + 1 for client in clients))
    again = time.monotonic() - killed
    await asyncio.sleep(max(0.0, seconds - again))
    now = [client.lost - past for client, past in zip(clients, lost, strict=True)]
    others = [client for client in clients if of[name(client.stream)] != victim]
    return {
        "streams": len(clients) - len(others),
        "lost": sum(now),
        "most_of_one_stream": max(now),
        "refused_streams_of_other_replicas": sum(client.statuses[503] > refused[client.stream] for client in others),
        "seconds_until_all_are_answered": round(again, 1),
        "wrong": [
            f"{name(client.stream)} of another replica lost {now[client.stream]} steps"
            for client in others
            if now[client.stream]
        ],
    }


async def until(done: Any) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("Not all streams were answered in time")
        await asyncio.sleep(0.05)


def measure(bundle: Path, streams: int, seconds: float, kills: int, checkpoint_seconds: float) -> dict[str, Any]:
    """Return one row: a fleet of two replicas, one of which is killed, several times."""
    images = Images(streams)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(bundle, Path(folder), streams, 256, checkpoint_seconds, "--engine", "ray", "--replicas", "2")
        server.start()
        found = asyncio.run(load(server, images, streams, seconds, kills))
        code = server.stop()
        failed = failures((Path(folder) / "server.log").read_text())
    return {"checkpoint_seconds": checkpoint_seconds, **found, "failures": failed, "exit_code": code}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="a bundle of the digits, from `vcotta bundle`")
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=40, help="before the first kill, and after each")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--checkpoint-seconds", type=float, nargs="+", default=[5.0, 0.0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    found: dict[str, Any] = {
        "runs": 1,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared by replicas and clients",
        "load_average_before": round(os.getloadavg()[0], 1),
        "versions": {
            "vcotta": vcotta.__version__,
            "torch": str(torch.__version__),
            "ray": version("ray"),
            "python": platform.python_version(),
        },
        "streams": options.streams,
        "images_a_request": IMAGES,
        "seconds": options.seconds,
        "rows": [],
    }
    for checkpoint_seconds in options.checkpoint_seconds:
        given = options.bundle, options.streams, options.seconds, options.kills, checkpoint_seconds
        found["rows"].append(measure(*given))
        print(json.dumps(found["rows"][-1], indent=2), flush=True)
    if options.json is not None:
        write_json(options.json, found)
    if any(row["wrong_answers"] or row["exit_code"] for row in found["rows"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
