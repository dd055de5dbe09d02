"""Methods on streams as cameras give them: correlated labels, small batches, mixed and returning domains.

What: error, NLL and ECE of each method on every stream of `vcotta.experiments.streams`, severity 5. With --ablation
also VCoTTA without each of its inferences.
How: every method starts from the same warmed network, the digits' own or one given with its weights. Pixels and order
of the images are the same for all seeds, which change the digits' network and the adapter. A row is written as soon as
it is there; rows that are in the file already are kept, so an interrupted study continues.

    python -m studies.streams.run --ablation                                                           # digits
    python -m studies.streams.run --dataset cifar10 --model resnet-20 --weights warm.safetensors --images 500
    python -m studies.streams.run --dataset cifar10 --weights warm.safetensors --images 1000 --device cuda
    python -m studies.streams.run --streams correlated practical-64 --methods rotta vcotta --seeds 1 2
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from studies.files import results_of
from vcotta._util.errors import unknown_name
from vcotta._util.files import write_json
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import start_network
from vcotta.experiments.grid import run_spec
from vcotta.experiments.streams import METHODS, StreamSetting, stream_settings
from vcotta.methods import find_method
from vcotta.nn.class_statistics import ClassStatistics, Look
from vcotta.runs.spec import RunSpec

NO_MEMORY = "vcotta, no memory"
ABLATION: dict[str, dict[str, Any]] = {
    "vcotta, batch statistics": {"statistics": "batch"},
    "vcotta, no label prior": {"label_prior": False},
    NO_MEMORY: {},
    "vcotta, not learning": {"lr": 0.0},
}
KEYS = ("network", "stream", "batch_size", "delta", "method", "start", "images", "views", "seed")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    if options.out.exists():
        rows = json.loads(options.out.read_text(encoding="utf-8"))
    done = {tuple(row[key] for key in KEYS) for row in rows}
    streams = chosen_streams(options.dataset, options.streams)
    labels = [*options.methods, *(ABLATION if options.ablation else ())]
    for seed in options.seeds:
        base = {"data": options.dataset, "network": options.model, "weights": options.weights, "start": "warmed"}
        base |= {"limit": options.images, "seed": seed, "device": options.device}
        network: nn.Module | None = None
        for stream in streams:
            for label in labels:
                spec = spec_of(label, stream, options.views, base)
                facts = row_facts(spec, stream, label, options.views)
                if tuple(facts[key] for key in KEYS) in done:
                    continue
                network = network or start_network(RunSpec("bn", **base))
                with no_memory(label == NO_MEMORY):
                    mean = run_spec(spec, model=network).summary()["mean"]
                scores = {"error": round(100 * mean["error"], 2), "nll": round(mean["nll"], 4)}
                scores["ece"] = round(mean["ece"], 4)
                rows.append(facts | scores | {"torch": str(torch.__version__), "device": device_name(options.device)})
                print(f"{facts['network']}, seed {seed}, {stream.name}: {label} {scores['error']}", flush=True)
                write_json(options.out, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network, as for `vcotta run`; by default the data set's own")
    parser.add_argument("--weights", type=Path, help="a warmed network; the digits' own is trained and warmed up")
    parser.add_argument("--images", type=int, help="images of each corruption; by default all")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), help="methods to compare")
    parser.add_argument("--streams", nargs="+", help="names of streams, or of protocols; by default all streams")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of network and adapter")
    parser.add_argument("--views", type=int, help="views of the methods that use them; by default each method's own")
    parser.add_argument("--ablation", action="store_true", help="add VCoTTA without each of its inferences")
    parser.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    parser.add_argument("--out", type=Path, default=results_of("streams") / "streams.json", help="file to write")
    return parser


def chosen_streams(dataset: str, names: Sequence[str] | None) -> list[StreamSetting]:
    """Return the streams of a data set, or those that a name or a protocol among ``names`` means."""
    streams = stream_settings(dataset)
    known = list(dict.fromkeys([*(one.name for one in streams), *(one.protocol for one in streams)]))
    for name in names or ():
        if name not in known:
            raise unknown_name("stream", name, known)
    return [one for one in streams if names is None or one.name in names or one.protocol in names]


def spec_of(label: str, stream: StreamSetting, views: int | None, base: dict[str, Any]) -> RunSpec:
    """Return the run of a method, or of a row of the ablation, on a stream."""
    method, settings = ("vcotta", dict(ABLATION[label])) if label in ABLATION else (label, {})
    if views is not None and "views" in find_method(method).Config.__dataclass_fields__:
        settings["views"] = views
    spec = RunSpec(method, **base, options=settings, label=label)
    return replace(spec, protocol=stream.protocol, protocol_options=stream.options, batch_size=stream.batch_size)


def row_facts(spec: RunSpec, stream: StreamSetting, label: str, views: int | None) -> dict[str, Any]:
    """Return what identifies a row."""
    benchmark = find_benchmark(spec.data)
    images = len(benchmark.load().labels) if spec.limit is None else spec.limit
    return {
        "network": spec.network or benchmark.network,
        "stream": stream.protocol,
        "batch_size": stream.batch_size,
        "delta": stream.delta,
        "method": label,
        "start": spec.resolved_start,
        "images": images,
        "views": views,
        "seed": spec.seed,
    }


@contextmanager
def no_memory(wanted: bool = True) -> Iterator[None]:
    """Let every `ClassStatistics` forget each batch at once within the block, if wanted.

    The package has no such option. A tiny `vcotta.nn.class_statistics.MEMORY` would not do: the memory would still
    hold the batch before.
    """
    infer = ClassStatistics.infer

    def forgetful(self: ClassStatistics, *arguments: Any, **options: Any) -> Look:
        look = infer(self, *arguments, **options)
        return replace(look, memory=torch.zeros_like(look.memory))

    if wanted:
        ClassStatistics.infer = forgetful  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClassStatistics.infer = infer  # type: ignore[method-assign]


def device_name(device: str) -> str:
    """Return the name of a GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


if __name__ == "__main__":
    main()
