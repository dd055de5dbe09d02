"""A small run to be stopped and resumed. As a script, this file kills runs and prints their ends, or resumes one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from vcotta import build_adapter
from vcotta.runs.checkpoints import CHECKPOINTS
from vcotta.runs.run import Run
from vcotta.runs.runner import run_stream
from vcotta.streams.stream import Batch

FILES = ["manifest.json", "records.jsonl", "summary.json", "timing.jsonl"]


class Small:
    """Eight batches of two domains, with a reset in between."""

    name = "small"

    def __len__(self) -> int:
        return 8

    def batches(self, start: int = 0):
        for index in range(start, len(self)):
            generator = torch.Generator().manual_seed(index)
            images, labels = torch.rand(4, 3, 8, 8, generator=generator), torch.arange(4)
            yield Batch(index, ("fog", "snow")[index // 5], 5, images, labels, reset=index == 5)

    def describe(self):
        return {"protocol": self.name}


def adapter(method: str = "cotta", seed: int = 0, weights: int = 0, **options):
    """A small adapter with momentum, a teacher and randomness of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(weights)
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    settings = {"views": 1, "lr": 0.01, "threshold": 1.0} if method == "cotta" else {}
    return build_adapter(method, net.eval(), seed=seed, **(settings | options))


def run(out: Path, every: int | None = 2, **options) -> Run:
    return run_stream(adapter(), Small(), out, checkpoint_every=every, **options)


def resume(out: Path, **options) -> Run:
    return run(out, resume=True, **options)


def started(act: Callable[[], object]) -> int:
    """Start ``act`` in a process of its own and return that."""
    child = os.fork()
    if child:
        return child
    try:
        act()
        os._exit(0)
    finally:
        os._exit(1)


def end_of(child: int) -> int:
    """Wait for a process and say how it ended: 0 for well, -9 for killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_at(count: int, folder: Path) -> None:
    """Kill this process just before it writes to, makes, renames or removes its ``count``-th path in the folder."""
    seen = 0
    changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod")

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        written = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event in changes) and str(folder) in str(arguments[0]):
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def kill_at_every_operation(folder: Path) -> list[int]:
    """Kill a run before each of its operations on files, until one has no more of them, and return their ends."""
    ends: list[int] = []
    while 0 not in ends:
        count = len(ends) + 1
        out = folder / f"operation-{count}"
        ends.append(end_of(started(lambda out=out, count=count: (die_at(count, out), run(out)))))
    return ends


def kill_at_some_records(folder: Path, wanted: tuple[int, ...]) -> list[int]:
    """Kill one run again and again, each time when so many of its records are there."""
    records = folder / "records.jsonl"

    def kill(count: int) -> int:
        def wait(done: int, *_: object) -> None:
            if done == count:
                signal.pause()

        def written() -> int:
            try:
                return records.read_bytes().count(b"\n")
            except FileNotFoundError:  # a resumed run may be putting it in place just now
                return 0

        child = started(lambda: resume(folder, progress=wait))
        try:
            while written() < count:
                time.sleep(0.001)
        finally:  # else it would wait for ever, and so would whoever reads its output
            os.kill(child, signal.SIGKILL)
        return end_of(child)

    return [kill(count) for count in wanted]


def kill_all(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    adapter()  # what torch imports late is imported now, once for all the processes to come
    ends = {
        "operations": kill_at_every_operation(folder),
        "records": kill_at_some_records(folder / "records", (1, 3, 4, 5, 7)),
    }
    print(json.dumps(ends))


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / CHECKPOINTS).iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def resumed_from(folder: Path) -> list[int]:
    return [place["batch"] for place in json.loads((folder / "manifest.json").read_text())["resumed"]]


def is_whole(folder: Path, whole: bytes) -> bool:
    """Whether a run has the expected records, all of its files and none besides."""
    Run.load(folder)
    return sorted(path.name for path in folder.iterdir()) == FILES and content(folder)["records.jsonl"] == whole


def flip(path: Path) -> None:
    """Flip one bit of a weight in a file, which safetensors does not notice."""
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


if __name__ == "__main__":
    (resume if sys.argv[2:] == ["resume"] else kill_all)(Path(sys.argv[1]))
