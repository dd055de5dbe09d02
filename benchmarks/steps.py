"""Shared by the benchmarks of steps: ways to compute, clock, memory, command-line options and settings."""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from vcotta import Runtime, __version__

ROTATED = 4  # number of batches of images used in turn


@dataclass(frozen=True)
class Way:
    """One way to compute: a runtime, the number of untimed and timed steps, and whether torch may use TF32."""

    name: str
    runtime: Runtime
    warm: int
    steps: int
    tf32: bool = True


def on_gpu(device: str) -> bool:
    return torch.device(device).type == "cuda"


def ways_to_compute(device: str, warm: int | None = None, steps: int | None = None) -> list[Way]:
    """Return fast and plain on a GPU; plain, channels_last and bf16 on the CPU."""
    if on_gpu(device):
        plain = Runtime(device, precision="fp32", channels_last=False, compile=False)
        return [
            Way("fast", Runtime(device), warm or 3, steps or 10),
            Way("plain", plain, warm or 1, steps or 3, tf32=False),
        ]
    runtimes = {
        "plain": Runtime(device),
        "ch_last": Runtime(device, channels_last=True),
        "bf16": Runtime(device, precision="bf16", channels_last=True),
    }
    return [Way(name, runtime, warm or 1, steps or 3) for name, runtime in runtimes.items()]


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Keep torch's TF32 settings, or switch TF32 off within the block."""
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    try:
        if not allowed:
            for place in places:
                place.allow_tf32 = False
        yield
    finally:
        if not allowed:
            for place, value in zip(places, before, strict=True):
                place.allow_tf32 = value


def synchronise(device: str) -> None:
    if on_gpu(device):
        torch.cuda.synchronize(device)


def free(device: str) -> None:
    """Free what the last row used, so that the next row has the memory to itself."""
    if on_gpu(device):
        torch.compiler.reset()
    gc.collect()
    if on_gpu(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: str) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu(device) else None


class Clock:
    """Measures the seconds between stamps along a device's work; it waits for a GPU only when they are read."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._stamps: list[Any] = []

    def stamp(self) -> None:
        """Record this moment of the device's work."""
        if on_gpu(self.device):
            self._stamps.append(torch.cuda.Event(enable_timing=True))
            self._stamps[-1].record()
        else:
            self._stamps.append(time.perf_counter())

    def intervals(self) -> list[float]:
        """Return the seconds from each stamp to the next."""
        synchronise(self.device)
        gpu = on_gpu(self.device)
        return [start.elapsed_time(end) / 1000 if gpu else end - start for start, end in pairwise(self._stamps)]


def step_times(step: Callable[[int], object], count: int, device: str) -> list[float]:
    """Return the seconds of each of ``count`` steps, by CUDA events or the clock."""
    clock = Clock(device)
    clock.stamp()
    for index in range(count):
        step(index)
        clock.stamp()
    return clock.intervals()


def processor() -> str:
    """Return the CPU's model, where the system knows it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for text in info.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(options: argparse.Namespace, ways: Sequence[Way]) -> dict[str, Any]:
    """Return hardware, versions and settings."""
    gpu = on_gpu(options.device)
    return {
        "hardware": torch.cuda.get_device_name(options.device) if gpu else processor(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "vcotta": __version__,
        "device": options.device,
        "threads": torch.get_num_threads(),
        "timed steps": {way.name: way.steps for way in ways},
        "untimed steps": {way.name: way.warm for way in ways},
        "network": options.network,
        "image_size": options.image_size,
        "batch_size": options.batch_size,
    }


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that every benchmark of steps has."""
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="cuda, cuda:1 or cpu (default: a GPU where there is one)")
    parser.add_argument("--network", help="a name for build_network (default wrn-28-10, on the CPU wrn-16-1)")
    parser.add_argument("--image-size", type=int, default=32, help="side of the images in pixels (default 32)")
    parser.add_argument("--batch-size", type=int, help="images in a batch (default 200, on the CPU 50)")
    parser.add_argument("--json", type=Path, help="write the results to this file")


def fill_common(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in the network and the batch size for the device where none was given."""
    options.network = options.network or ("wrn-28-10" if on_gpu(options.device) else "wrn-16-1")
    options.batch_size = options.batch_size or (200 if on_gpu(options.device) else 50)
    return options
