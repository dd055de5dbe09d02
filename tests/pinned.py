"""What the pinned runs are: short, on digits, and the same bytes on the same machine.

``python tests/pinned.py`` runs all of them and writes ``tests/fixtures/pinned.json``. A commit that changes a result on
purpose does that, and says so; any other commit leaves the file alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta import WarmUpConfig, build_adapter, corrupt, list_methods, run_stream, warm_up
from vcotta.corruptions import EXTRA, STANDARD
from vcotta.data import batches, load_digits
from vcotta.models.wide_resnet import digits_network
from vcotta.streams.protocols import PROTOCOLS
from vcotta.streams.stream import make_stream
from vcotta.training.trainer import TrainConfig, train

PINS = Path(__file__).parent / "fixtures" / "pinned.json"


def machine() -> str:
    """What float arithmetic depends on: two machines of one name give the same bytes."""
    cpu = next((line for line in _cpuinfo() if line.startswith("model name")), platform.processor())
    family = [line for line in _cpuinfo() if line.startswith(("cpu family", "model\t"))][:2]
    described = (torch.__version__, torch.backends.cpu.get_cpu_capability(), cpu, *family)
    return " ".join(" ".join(described).replace("\t", "").split())


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


class Networks:
    """A digits network of a few epochs, and the same network warmed up."""

    def __init__(self) -> None:
        data = load_digits()[0]

        def loader() -> Any:
            return batches(data.images, data.labels, 50, shuffle_seed=0)

        self.source_data = loader
        self.plain = train(digits_network(0), loader(), TrainConfig(epochs=4, lr=0.1, shift=2))
        self.warmed = warm_up(self.plain, loader(), WarmUpConfig(epochs=1, lr=4e-3, flip=False), progress=False)

    def of(self, method: str) -> nn.Module:
        """The network that a method starts from."""
        return self.warmed if method == "vcotta" else self.plain


def run_names() -> list[str]:
    """Every pinned run: methods, VCoTTA's presets, protocols."""
    presets = [f"preset {preset}" for preset in ("best", "paper", "authors")]
    return [*list_methods(), *presets, *(f"protocol {name}" for name in PROTOCOLS)]


def pin_run(name: str, networks: Networks, folder: Path) -> dict[str, Any]:
    """Run one of them; returns the SHA-256 of its records and, for other machines, its scores."""
    kind, _, value = name.rpartition(" ")
    method = {"": value, "preset": "vcotta", "protocol": "tent"}[kind]
    options: dict[str, Any] = {"dataset": "digits"}
    if kind == "preset":
        options["preset"] = value
    if method in ("cotta", "petal", "vcotta", "tca", "vida", "continual-mae"):
        options["views"] = 2
    stream = {"limit": 60, "batch_size": 20, "seed": 3}
    names: tuple[str, ...] = ("gaussian_noise", "fog", "frost")
    if kind == "protocol":
        names, stream["limit"] = ("fog", "snow"), 40
        stream |= {"loops": {"rounds": 2}, "orders": {"order": 1}, "recurring": {"visits": 2}}.get(value, {})
    test = load_digits()[1]
    corruptions = None if value == "day_night" else names
    made = make_stream(value if kind == "protocol" else "continual", test, corruptions, 3, **stream)
    adapter = build_adapter(method, networks.of(method), source=networks.source_data(), guard=False, seed=5, **options)
    run = run_stream(adapter, made, folder)
    mean = run.summary()["mean"]
    digest = hashlib.sha256((folder / "records.jsonl").read_bytes()).hexdigest()
    return {"sha256": digest, "error": round(mean["error"], 4), "nll": round(mean["nll"], 4)}


def pin_corruption(name: str) -> dict[str, Any]:
    """Corrupt three digits, and three gradients that are not square; returns the SHA-256 of the bytes."""
    digits = torch.from_numpy(load_digits()[1].images[:3].copy())
    ramp = torch.arange(3 * 48 * 64 * 3).mul(7).remainder(256).to(torch.uint8).reshape(3, 48, 64, 3)
    made = [corrupt(images, name, severity, seed=2) for images in (digits, ramp) for severity in (2, 5)]
    joined = torch.cat([pixels.flatten() for pixels in made])
    return {
        "sha256": hashlib.sha256(joined.numpy().tobytes()).hexdigest(),
        "mean": round(joined.float().mean().item(), 2),
    }


def pin_demo(folder: Path) -> dict[str, Any]:
    """Run the demo; returns its table without the seconds."""
    from vcotta.experiments.demo import run_demo

    run_demo(folder, 0, lambda label, form: lambda *values: None)
    rows = json.loads((folder / "results.json").read_text())
    return {row.pop("method"): {key: value for key, value in row.items() if key != "seconds"} for row in rows}


def all_pins(report: Callable[[str], None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make every pin."""
    networks = Networks()
    with tempfile.TemporaryDirectory() as folder:
        for name in run_names():
            report(name)
            yield name, pin_run(name, networks, Path(folder, name))
        for name in (*STANDARD, *EXTRA):
            yield f"corruption {name}", pin_corruption(name)
        report("demo")
        yield "demo", pin_demo(Path(folder, "demo"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["VCOTTA_CACHE"] = cache  # no photographs of frost
        pins = {"machine": machine(), **dict(all_pins(lambda name: print(name, file=sys.stderr)))}
    PINS.write_text(json.dumps(pins, indent=1) + "\n")
