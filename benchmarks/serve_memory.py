"""Memory of a server, and seconds a request, with a network of WideResNet-28-10's size.

What: resident memory of `vcotta serve` after its start, between requests, at its peak while requests are answered, and
at its peak while a checkpoint is written; seconds of wall clock and of CPU a request. "state" is the size of the
adapter's state, the checkpoint file.
How: VCoTTA with one view on a WRN-28-10 with random variational weights (73 million numbers, 36.5 million of them
means), batches of 8 images of 16 x 16 pixels, one torch thread, on the CPU. The server is a process of its own; the
numbers are Linux's VmRSS and VmHWM of it. The first request is not timed. Row "before" is the version that copied the
whole state before every batch; run it with PYTHONPATH set to its src folder.

    python -m benchmarks.serve_memory --row after --json benchmarks/results/serve-memory.json
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import vcotta
from vcotta._util.files import write_json
from vcotta.bayes import to_variational
from vcotta.models import build_network
from vcotta.serve import Preprocess, make_bundle, save_bundle

MIB = 2**20
SIZE, IMAGES = 16, 8


def make_file(network: str, path: Path) -> int:
    """Write a bundle of an untrained network; return how many parameters the network has, deviations left out."""
    torch.manual_seed(0)
    net = build_network(network, 10)
    count = sum(p.numel() for p in net.parameters())
    adapter = vcotta.build_adapter("vcotta", to_variational(net), views=1)
    names = [str(label) for label in range(10)]
    save_bundle(make_bundle(adapter, network, names, Preprocess(SIZE), batch_size=IMAGES), path)
    return count


def memory(pid: int) -> tuple[float, float]:
    """Resident memory of a process now and at its highest since the last `forget_peak`, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    now, peak = (int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) / 1024 for key in ("VmRSS", "VmHWM"))
    return now, peak


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(address: str, seed: int) -> float:
    """Send one batch; return the seconds until its answer."""
    body = io.BytesIO()
    np.save(body, np.random.default_rng(seed).random((IMAGES, 3, SIZE, SIZE), np.float32))
    sent = urllib.request.Request(address + "/v1/predict", body.getvalue(), {"Content-Type": "application/x-npy"})
    started = time.perf_counter()
    with urllib.request.urlopen(sent, timeout=300) as answer:
        json.load(answer)
    return time.perf_counter() - started


def measure(network: str, requests: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        bundle, state = Path(folder, "a.bundle"), Path(folder, "state")
        parameters = make_file(network, bundle)
        options = ["--port", "0", "--state", str(state), "--checkpoint-seconds", "3600", "--wait-ms", "0"]
        command = [sys.executable, "-m", "vcotta", "serve", str(bundle), *options]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            lines = iter(server.stdout.readline, "")
            address = next(found[1] for line in lines if (found := re.search(r"Listening on (\S+)", line)))
            start = memory(server.pid)[0]
            request(address, 0)
            forget_peak(server.pid)
            seconds, between, cpu = [], [], cpu_seconds(server.pid)
            for seed in range(1, requests + 1):
                seconds.append(request(address, seed))
                between.append(memory(server.pid)[0])
            cpu = cpu_seconds(server.pid) - cpu
            peak = memory(server.pid)[1]
            forget_peak(server.pid)
            server.send_signal(signal.SIGTERM)  # it writes a checkpoint and ends
            saving = 0.0
            while server.poll() is None:
                try:
                    saving = max(saving, memory(server.pid)[1])
                except (OSError, TypeError):  # it has ended between two lines
                    break
                time.sleep(0.02)
            server.wait(60)
        finally:
            server.kill()
            server.wait()
        (saved,) = (state / "checkpoints").glob("*.safetensors")
        return {
            "network": network,
            "parameters": parameters,
            "requests": requests,
            "state_mib": round(saved.stat().st_size / MIB),
            "after_start_mib": round(start),
            "between_requests_mib": round(median(between)),
            "peak_of_requests_mib": round(peak),
            "peak_of_checkpoint_mib": round(saving),
            "seconds_a_request": round(median(seconds), 2),
            "cpu_seconds_a_request": round(cpu / requests, 2),
        }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", required=True, help="name of the row, for example before or after")
    parser.add_argument("--json", type=Path, required=True, help="file to write the row to; its other rows are kept")
    parser.add_argument("--network", default="wrn-28-10")
    parser.add_argument("--requests", type=int, default=5)
    given = parser.parse_args(arguments)
    rows = json.loads(given.json.read_text())["rows"] if given.json.exists() else {}
    rows[given.row] = measure(given.network, given.requests)
    setting = {"images": IMAGES, "size": SIZE, "method": "vcotta", "views": 1, "threads": 1, "device": "cpu"}
    hardware = {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()}
    versions = {"vcotta": vcotta.__version__, "torch": torch.__version__, "python": platform.python_version()}
    about = {"benchmark": "benchmarks/serve_memory.py", "setting": setting, "hardware": hardware, "versions": versions}
    write_json(given.json, {**about, "rows": rows})
    print(json.dumps(rows[given.row], indent=2))


if __name__ == "__main__":
    main()
