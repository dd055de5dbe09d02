"""Which warm-up? What BN and VCoTTA make of a network on the held-out corruptions, by how it was warmed up.

What: error and NLL on the four extra corruptions at severities 3 to 5, of BN and of VCoTTA with its default settings
and 8 views, from a network as it is (``none``: variational, but not trained) and from the same network after warm-ups
that differ in options of `WarmUpConfig` from the data set's own (``default``).
How: every way is warmed up anew on the data set's training images, with the same seed; all are scored on the same
pixels. The warmed networks and ``warmups.json`` lie in ``--out``; ways that the file has already are not repeated.
Seconds are of the warm-up, by the clock.

    python benchmarks/warmups.py --dataset cifar100 --weights next.safetensors --limit 2000 --out runs/warmups \
        none epochs=2,augmix=false epochs=2,augmix=false,sigma_ratio=0.15 epochs=2 epochs=5 epochs=10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta import Runtime, to_variational
from vcotta.bayes import WarmUpConfig
from vcotta.corruptions import EXTRA
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.setup import adapter_for, source_network, stream_for, warm_network
from vcotta.files import sha256, write_json
from vcotta.streams import Stream

METHODS: dict[str, dict[str, Any]] = {"bn": {}, "vcotta": {"views": 8}}
SEVERITIES = (3, 4, 5)


def configured(way: str, own: WarmUpConfig) -> WarmUpConfig | None:
    """The settings that a word of the command line stands for; None where nothing is trained."""
    if way == "none":
        return None
    try:
        options = {} if way == "default" else dict(part.split("=", 1) for part in way.split(","))
        return replace(own, **{name: json.loads(value) for name, value in options.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Expected none, default or OPTION=VALUE[,OPTION=VALUE] with options of WarmUpConfig and values as JSON "
            f"(true, 0.15), but got {way!r}: {error}"
        ) from error


def scores(benchmark: Benchmark, start: nn.Module, stream: Stream, runtime: Runtime) -> dict[str, Any]:
    """Error, NLL and errors by corruption and severity of each method from one start, and what it was run on."""
    found: dict[str, Any] = {}
    for method, options in METHODS.items():
        run = run_stream(adapter_for(benchmark, method, start, runtime=runtime, guard=False, **options), stream)
        summary = run.summary()
        errors = {f"{part['domain']}-{part['severity']}": 100 * part["error"] for part in summary["domains"]}
        found[method] = {"error": 100 * summary["mean"]["error"], "nll": summary["mean"]["nll"], "errors": errors}
        found |= {fact: run.manifest[fact] for fact in ("weights_sha256", "hardware", "versions")}
    return found


def kept(rows: list[dict[str, Any]], asked: dict[str, Any]) -> bool:
    """Whether a way was scored; one of that name with other settings is an error that says which."""
    for row in rows:
        if row["way"] == asked["way"]:
            other = [name for name, value in asked.items() if row.get(name) != value]
            if other:
                raise ValueError(
                    f"Expected {asked['way']} to be what the file has, but {', '.join(other)} differs. "
                    "Give another --out."
                )
            return True
    return False


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="+", help="none, default, or OPTION=VALUE[,OPTION=VALUE], values as JSON")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--network", help="another network than the data set's, as for `vcotta run --model`")
    parser.add_argument("--weights", type=Path, help="its weights; the digits train their own")
    parser.add_argument("--limit", type=int, help="images of each corruption and severity; by default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", help="as for `vcotta run`; by default bf16 on a GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder of the warmed networks and the file")
    asked = parser.parse_args(given)
    benchmark, runtime = find_benchmark(asked.dataset), Runtime(asked.device, asked.precision)
    configs = {way: configured(way, benchmark.warm_up) for way in asked.ways}  # what is wrong is told at once
    stream = stream_for(benchmark, corruptions=EXTRA, severity=SEVERITIES, limit=asked.limit, device=asked.device)
    path = asked.out / "warmups.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for way, config in configs.items():
        facts = {
            "way": way,
            "config": None if config is None else asdict(config),
            "dataset": benchmark.name,
            "network": asked.network or benchmark.network,
            "weights_file_sha256": None if asked.weights is None else sha256(asked.weights),
            "images": stream.describe()["images_per_domain"],
            "runtime": asdict(runtime),
        }
        if kept(rows, facts):
            continue
        model = source_network(benchmark, asked.network, asked.weights)
        began = time.perf_counter()
        if config is None:
            start = to_variational(model, benchmark.warm_up.sigma_ratio).requires_grad_(False).eval()
        else:
            asked.out.mkdir(parents=True, exist_ok=True)
            file = asked.out / f"{way}.safetensors"
            start = warm_network(benchmark, model, config=config, runtime=runtime, path=file)
        seconds = time.perf_counter() - began
        row = facts | {"seconds": seconds} | scores(benchmark, start, stream, runtime)
        rows.append(row)
        write_json(path, rows)
        told = ", ".join(f"{name} {row[name]['error']:.2f} % ({row[name]['nll']:.3f})" for name in METHODS)
        print(f"{way}: {seconds:.0f} s, {told}", flush=True)


if __name__ == "__main__":
    main()
