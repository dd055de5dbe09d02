"""The server of a fleet's studies, a process of its own, and the images that its streams are sent."""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import vcotta
from benchmarks.load import floats, memory
from vcotta._util.files import write_json
from vcotta.corruptions import list_corruptions
from vcotta.data import load_digits

__all__ = ["IMAGES", "Images", "Server", "name"]

IMAGES, SEVERITY = 8, 3


class Images:
    """The requests of every stream: digits in a corruption of its own, in an order of its own."""

    def __init__(self, streams: int) -> None:
        _, test = load_digits()
        groups = ("noise", "blur", "weather", "digital")
        names = [None, *(one for group in groups for one in list_corruptions(group))]
        self._weather = [
            test.images if name is None else np.asarray(vcotta.corrupt(test.images, name, SEVERITY, seed=0))
            for name in names[: max(1, min(len(names), streams))]
        ]

    def request(self, stream: int, number: int) -> np.ndarray:
        """Return the images of a stream's request."""
        images = self._weather[stream % len(self._weather)]
        picked = np.random.default_rng((stream, number)).integers(0, len(images), IMAGES)
        return floats(images[picked])


class Server:
    """A server process, which can be killed and started again on the same state."""

    def __init__(
        self, bundle: Path, folder: Path, streams: int, mebibytes: int, checkpoint_seconds: float, *more: str
    ) -> None:
        self.tokens = {name(number): secrets.token_hex(16) for number in range(streams)}
        path = folder / "tokens.json"
        path.touch(0o600)
        write_json(path, self.tokens)
        options = {
            "token-file": path,
            "state": folder / "state",
            "port": 0,
            "streams": streams + 1,
            "memory": mebibytes,
            "max-waiting": streams * IMAGES * 2,
            "max-requests": 2 * streams,
            "checkpoint-seconds": checkpoint_seconds,
            "wait-ms": 0,
        }
        command = [sys.executable, "-m", "vcotta", "serve", str(bundle)]
        given = (text for key, value in options.items() for text in (f"--{key}", str(value)))
        self._command = [*command, *given, *more]
        self._folder = folder
        self.resident: list[int] = []

    def start(self) -> float:
        """Start it and return the seconds until it listened."""
        began = time.monotonic()
        with (self._folder / "server.log").open("a") as errors:
            self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.address = found[0]
                return time.monotonic() - began
        raise RuntimeError(f"The server did not start: {(self._folder / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it as a supervisor does, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def note_memory(self) -> None:
        """Note the resident memory."""
        self.resident.append(memory(self.process.pid))


def name(number: int) -> str:
    return f"camera-{number:03d}"
