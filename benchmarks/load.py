"""Load on a server: valid and malformed requests, mixed, from several clients on the loopback address.

What: requests by kind and status, wrong answers, seconds to an answer (median, 99th percentile) of valid requests, and
the server's memory at the start, at its highest and at the end.
How: `vcotta serve` in a process of its own, with the digits' bundle (``vcotta bundle --out digits.bundle``), one torch
thread and the default limits, except 1 MiB for the body, so that requests soon exceed it. Each client is a thread that
sends its next request when the last is answered. About half are valid: image files or an array, 1 to 50 digits, clean
or corrupted, with another corruption every 30 s. The others are broken in one of the ways of `BROKEN`, each with the
status that it must get; some hang up in the middle. Every valid answer is checked: one prediction an image, labels
in range, probabilities in [0, 1] that sum to 1, the label the most probable one. Clients and server share the machine.

    OMP_NUM_THREADS=1 python -m benchmarks.load --bundle digits.bundle --minutes 10 --json benchmarks/results/load.json
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import platform
import random
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np
import torch
from PIL import Image

import vcotta
from vcotta._util.files import write_json
from vcotta.data import load_digits

BODY = 2**20
WEATHER = ("none", "gaussian_noise", "fog", "motion_blur", "contrast", "jpeg_compression", "brightness", "pixelate")
SEVERITY = 3
Headers = dict[str, str]
Sent = tuple[str, Headers, bytes]
"""Path with query, headers and body of a request."""


@dataclass
class Tally:
    """Counts of the answers; all clients write it, under the lock."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    images: int = 0
    right: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Maker:
    """Makes requests, valid ones and broken ones, from the test digits."""

    def __init__(self, token: str, seed: int) -> None:
        _, test = load_digits()
        self.labels = test.labels
        self.weather = [
            test.images if name == "none" else np.asarray(vcotta.corrupt(test.images, name, SEVERITY, seed=0))
            for name in WEATHER
        ]
        self.token, self.draw = {"Authorization": f"Bearer {token}"}, random.Random(seed)

    def chosen(self, weather: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw some digits in this weather, and their labels."""
        count = self.draw.choice((1, 1, 2, 4, 8, 16, 32, 50))
        picked = [self.draw.randrange(len(self.labels)) for _ in range(count)]
        return self.weather[weather % len(self.weather)][picked], self.labels[picked]

    def valid(self, weather: int) -> tuple[Sent, np.ndarray]:
        """Make a request that must be answered, and the labels of its images."""
        images, labels = self.chosen(weather)
        path = self.draw.choice(("/v1/predict",) * 5 + ("/v1/predict?adapt=false",))
        if self.draw.random() < 0.5:
            return (path, self.token | {"Content-Type": "application/x-npy"}, npy(floats(images))), labels
        kind, body = form([("images", png(image)) for image in images])
        return (path, self.token | {"Content-Type": kind}, body), labels

    def broken(self, weather: int) -> tuple[str, int, Sent]:
        """Make a request that must be refused: its name in `BROKEN`, the status it must get, and what is sent."""
        name = self.draw.choice(list(BROKEN))
        status, make = BROKEN[name]
        images, _ = self.chosen(weather)
        path, headers, body = make(images, self.draw)
        return name, status, (path, headers if name == "token" else headers | self.token, body)


def floats(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).astype(np.float32) / 255


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=array.dtype == object)
    return file.getvalue()


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def bomb() -> bytes:
    """A PNG of a few hundred bytes that says it has 2.5 thousand million pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9999))) + chunk(b"IEND", b"")
    )


def form(parts: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    edge = secrets.token_hex(16)
    lines = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="a.png"\r\n\r\n%b\r\n'
        % (edge.encode(), name.encode(), content)
        for name, content in parts
    ]
    return f"multipart/form-data; boundary={edge}", b"".join(lines) + f"--{edge}--\r\n".encode()


def _array(array: np.ndarray) -> Sent:
    return "/v1/predict", {"Content-Type": "application/x-npy"}, npy(array)


def _files(*parts: tuple[str, bytes]) -> Sent:
    kind, body = form(list(parts))
    return "/v1/predict", {"Content-Type": kind}, body


def _spoiled(images: np.ndarray, value: float) -> np.ndarray:
    array = floats(images)
    array.flat[0] = value
    return array


def _random(images: np.ndarray, draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 3000))


BROKEN: dict[str, tuple[int, Callable[[np.ndarray, random.Random], Sent]]] = {
    "token": (401, lambda i, d: _array(floats(i))),
    "not a number": (422, lambda i, d: _array(_spoiled(i, float("nan")))),
    "out of range": (422, lambda i, d: _array(_spoiled(i, 3.0))),
    "bytes for floats": (422, lambda i, d: _array(i.transpose(0, 3, 1, 2))),
    "pickled objects": (422, lambda i, d: _array(np.array([{"a": 1}], dtype=object))),
    "other shape": (422, lambda i, d: _array(floats(i)[:, :, :7])),
    "array cut short": (422, lambda i, d: ("/v1/predict", {"Content-Type": "application/x-npy"}, npy(floats(i))[:-5])),
    "random array": (422, lambda i, d: ("/v1/predict", {"Content-Type": "application/x-npy"}, _random(i, d))),
    "random file": (422, lambda i, d: _files(("images", _random(i, d)))),
    "good and bad files": (422, lambda i, d: _files(("images", png(i[0])), ("images", _random(i, d)))),
    "file cut short": (422, lambda i, d: _files(("images", png(i[0])[: d.randrange(8, 60)]))),
    "bomb": (413, lambda i, d: _files(("images", bomb()))),
    "too many files": (413, lambda i, d: _files(*[("images", b"x")] * 300)),
    "too many images": (413, lambda i, d: _array(np.zeros((257, 3, 4, 4), np.float32))),
    "too many bytes": (413, lambda i, d: _files(("images", bytes(BODY + d.randrange(1, BODY))))),
    "other field": (422, lambda i, d: _files(("picture", png(i[0])))),
    "no field": (422, lambda i, d: _files()),
    "broken form": (422, lambda i, d: ("/v1/predict", {"Content-Type": "multipart/form-data"}, _random(i, d))),
    "other type": (415, lambda i, d: ("/v1/predict", {"Content-Type": "application/x-pickle"}, _random(i, d))),
    "odd query": (422, lambda i, d: ("/v1/predict?adapt=perhaps", *_array(floats(i))[1:])),
    "no such place": (404, lambda i, d: ("/v1/predict/../../etc/passwd", {}, b"")),
}


def client(port: int, maker: Maker, tally: Tally, end: float, started: float) -> None:
    """Send one request after another until the time is over; a client that fails counts as a wrong answer."""
    try:
        send_all(port, maker, tally, end, started)
    except Exception as error:
        with tally.lock:
            tally.wrong.append(f"a client failed: {error!r}")


def send_all(port: int, maker: Maker, tally: Tally, end: float, started: float) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while time.monotonic() < end:
        weather = int((time.monotonic() - started) / 30)
        roll = maker.draw.random()
        if roll < 0.02:
            hang_up(port, maker.valid(weather)[0])
            with tally.lock:
                tally.statuses["hung up", 0] += 1
        elif roll < 0.55:
            sent, labels = maker.valid(weather)
            before = time.monotonic()
            status, body = ask(connection, sent)
            judge(tally, sent, labels, status, body, time.monotonic() - before)
        else:
            name, expected, sent = maker.broken(weather)
            status, body = ask(connection, sent)
            with tally.lock:
                tally.statuses[name, status] += 1
                if status not in (expected, 429) or "detail" not in json.loads(body):
                    tally.wrong.append(f"{name}: {status} instead of {expected}")


def ask(connection: http.client.HTTPConnection, sent: Sent) -> tuple[int, bytes]:
    path, headers, body = sent
    for again in (True, False):
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.RemoteDisconnected, ConnectionError):
            connection.close()  # an idle connection that the server closed in the meantime
            if not again:
                raise
    raise AssertionError


def hang_up(port: int, sent: Sent) -> None:
    path, headers, body = sent
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection(("127.0.0.1", port)) as raw:
        start = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{head}\r\n"
        raw.sendall(start.encode() + body[: len(body) // 2])


def judge(tally: Tally, sent: Sent, labels: np.ndarray, status: int, body: bytes, seconds: float) -> None:
    found = json.loads(body)
    problem = None
    if status == 200:
        problem = mistake(found, len(labels), "adapt=false" not in sent[0])
    elif status != 429:
        problem = f"a valid request got {status}: {found}"
    with tally.lock:
        tally.statuses["valid", status] += 1
        if problem:
            tally.wrong.append(problem)
        if status == 200:
            tally.seconds.append(seconds)
            tally.images += len(labels)
            tally.right += sum(p["label"] == label for p, label in zip(found["predictions"], labels, strict=False))


def mistake(found: dict[str, Any], count: int, adapt: bool) -> str | None:
    """Return what is wrong with an answer, or None; a request to ``adapt`` may be answered without an update."""
    predictions = found["predictions"]
    if len(predictions) != count:
        return f"{len(predictions)} predictions for {count} images"
    if (found["batch"]["adapted"] and not adapt) or found["batch"]["images"] < count:
        return f"wrong batch: {found['batch']}"
    for p in predictions:
        values = p["probabilities"]
        if len(values) != 10 or not all(0 <= v <= 1 for v in values) or abs(sum(values) - 1) > 1e-4:
            return f"not probabilities: {values}"
        if p["label"] not in range(10) or p["name"] != str(p["label"]) or values[p["label"]] < max(values) - 1e-5:
            return f"a label that is not the most probable one: {p}"
    return None


def memory(process: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start_server(bundle: Path, folder: Path, token: str) -> tuple[subprocess.Popen[str], int]:
    """Start the server and wait until it listens."""
    secret = folder / "token"
    secret.touch(0o600)
    secret.write_text(token)
    command = [sys.executable, "-m", "vcotta", "serve", str(bundle), "--token-file", str(secret), "--port", "0"]
    command += ["--state", str(folder / "state"), "--max-body", str(BODY)]
    log, one_thread = folder / "server.log", os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as errors:  # a line a request
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=one_thread)
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            return server, int(found[1])
    raise RuntimeError(f"Expected the server to start, but it ended with {server.wait()}: {log.read_text()}")


def get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return connection.getresponse().read()


def load(bundle: Path, minutes: float, clients: int, seed: int) -> dict[str, Any]:
    """Run the load and return what was measured."""
    token, tally, resident = secrets.token_hex(16), Tally(), []
    with tempfile.TemporaryDirectory() as folder:
        makers = [Maker(token, seed + number) for number in range(clients)]
        server, port = start_server(bundle, Path(folder), token)
        started = time.monotonic()
        end = started + 60 * minutes
        first = memory(server.pid)
        threads = [
            threading.Thread(target=client, args=(port, maker, tally, end, started), daemon=True) for maker in makers
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            resident.append(memory(server.pid))
            time.sleep(0.5)
        seconds = time.monotonic() - started
        state = json.loads(get(port, "/v1/state"))
        metrics = get(port, "/metrics").decode()
        server.send_signal(signal.SIGTERM)
        code = server.wait(120)
    requests = Counter[int]()
    for (_, status), count in tally.statuses.items():
        requests[status] += count
    return {
        "minutes": round(seconds / 60, 2),
        "clients": clients,
        "requests": sum(requests.values()),
        "by_status": {str(status) if status else "hung up": count for status, count in sorted(requests.items())},
        "by_kind": {f"{kind}: {status}": count for (kind, status), count in sorted(tally.statuses.items())},
        "wrong_answers": len(tally.wrong),
        "wrong": tally.wrong[:20],
        "server_errors": sum(count for status, count in requests.items() if status >= 500),
        "seconds_p50": round(quantiles(tally.seconds, n=100)[49], 4),
        "seconds_p99": round(quantiles(tally.seconds, n=100)[98], 4),
        "images": tally.images,
        "images_a_second": round(tally.images / seconds, 1),
        "accuracy": round(tally.right / tally.images, 4),
        "steps": state["steps"],
        "guard_events": state["guarded"],
        "failed_batches": int(float(re.search(r"^vcotta_failed_batches_total (\S+)", metrics, re.MULTILINE)[1])),  # type: ignore[index]
        "resident_mib": {
            "start": first // 2**20,
            "max": max(resident) // 2**20,
            "end": resident[-1] // 2**20,
            "max_by_minute": [max(resident[i : i + 120]) // 2**20 for i in range(0, len(resident), 120)],
        },
        "exit_code": code,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server with valid and malformed requests.")
    parser.add_argument("--bundle", type=Path, required=True, help="A bundle of the digits, from `vcotta bundle`.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="File for the results.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, shared by server and clients",
        "versions": {
            "vcotta": vcotta.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "corruptions": f"{', '.join(WEATHER)} at severity {SEVERITY}, each for 30 s",
    }
    results = setting | load(options.bundle, options.minutes, options.clients, options.seed)
    print(json.dumps(results, indent=2))
    if options.json:
        write_json(options.json, results)
    if results["wrong_answers"] or results["server_errors"] or results["exit_code"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
