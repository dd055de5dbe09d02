"""A long stream of every kind: does the network stay sound?

What: the error of VCoTTA and of Source on clean test digits, along thousands of batches of corrupted ones.
How: VCoTTA with its default preset adapts to one kind of stream after another, again and again with new orders and
pixels. Every 100 batches `Adapter.predict`, which does not adapt, predicts a fixed set of clean digits in batches of
50, mixed in class. One torch thread.

    python -m studies.streams.long
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from studies.files import results_of
from vcotta._util.files import write_json
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.methods import Adapter
from vcotta.runs.spec import RunSpec

KINDS: dict[str, tuple[str, dict[str, float]]] = {
    "continual": ("continual", {}),
    "correlated": ("correlated", {"delta": 0.1}),
    "sorted": ("correlated", {"delta": 0.0}),
    "mixed_domains": ("mixed_domains", {}),
    "bursts": ("bursts", {}),
    "day_night": ("day_night", {}),
    "practical": ("practical", {}),
    "recurring": ("recurring", {"visits": 1}),
}
PROBE_BATCH = 50


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=3000, help="length of the stream")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--images", type=int, default=200, help="images of each domain in one turn of a kind")
    parser.add_argument("--every", type=int, default=100, help="batches between two measurements")
    parser.add_argument("--probe", type=int, default=300, help="clean test digits to predict")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=results_of("streams") / "long.json", help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    spec = RunSpec("vcotta", seed=options.seed)
    network = start_network(spec)
    adapter = adapter_for_spec(spec, model=network)
    left_alone = adapter_for_spec(RunSpec("source", start="warmed", seed=options.seed), model=network)
    probe = clean_digits(options.probe)
    source = error_on(left_alone, probe)
    found: dict[str, Any] = {"batch_size": options.batch_size, "images": options.images, "seed": options.seed}
    found |= {"streams": list(KINDS), "probe_images": options.probe, "torch": str(torch.__version__), "probe": []}
    stream = islice(every_kind(options.batch_size, options.images), options.batches)
    for number, (kind, images) in enumerate(stream, 1):
        adapter(images)
        if number % options.every == 0:
            error = error_on(adapter, probe)
            found["probe"].append({"batch": number, "error": error, "source": source, "stream": kind})
            print(f"batch {number}, {kind}: {error:.2f}, source {source:.2f}", flush=True)
            write_json(options.out, found)


def every_kind(batch_size: int, images: int) -> Iterator[tuple[str, Tensor]]:
    """Yield batches with their kind of stream, one kind after another without end, each turn with its own seed."""
    for turn in count():
        for kind, (protocol, numbers) in KINDS.items():
            order = {"protocol": protocol, "protocol_options": numbers, "stream_seed": turn}
            for batch in stream_for(RunSpec("vcotta", batch_size=batch_size, limit=images, **order)):
                yield kind, batch.images


def clean_digits(number: int) -> list[tuple[Tensor, Tensor]]:
    """Return the first clean test digits, which are mixed in class, in batches."""
    spec = RunSpec("source", corruptions=("none",), batch_size=PROBE_BATCH, limit=number)
    return [(batch.images, batch.labels) for batch in stream_for(spec)]


def error_on(adapter: Adapter, probe: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the error in per cent, without adapting."""
    wrong = sum(
        int((adapter.predict(images, samples=1).probabilities.argmax(1) != labels).sum()) for images, labels in probe
    )
    return round(100 * wrong / sum(len(labels) for _, labels in probe), 2)


if __name__ == "__main__":
    main()
