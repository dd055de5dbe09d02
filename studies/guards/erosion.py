"""What a long stream of one kind leaves of an adapter elsewhere, with and without a probe.

What: VCoTTA (``preset="best"``, with its guard) on digits lives through a long stream of one kind: ``natural`` ones,
which nobody attacks (digits upside down or as negatives), and the ordinary ones of the benchmarks. Every 50
batches its networks, with nothing known of the stream, predict test digits without adapting: 300 clean ones and 300 in
snow, which no probe holds, and all 799 in fog. Beside it the plain network with BatchNorm's statistics of the batch
(BN). The probe is of 50 training images and their noisy, foggy and low-contrast copies.
How: the same stream with and without a probe; the error on the stream itself is that of the answers it gave. Without a
probe, also the signal that would need no labels: corrupted copies of the stream's latest images, how many of them the
source is sure of (0.9), and on how many of these the adapted network disagrees. One torch thread, CPU.

    python -m studies.guards.erosion                   # about 20 minutes on two cores, writes results/erosion.json
                                                       # after each stream, and continues where it was stopped
    python -m studies.guards.erosion --seeds 0 --batches 20 --streams negative --out try.json
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from studies.files import results_of
from studies.guards.run import BATCH, spec_of
from vcotta import Adapter, __version__, build_adapter, corrupt
from vcotta._util.files import read_json, write_json
from vcotta.data import load_digits, make_probe, to_tensor
from vcotta.data.probe import PROBE_CORRUPTIONS
from vcotta.experiments.build import start_network, stream_for
from vcotta.methods.guard import SURE
from vcotta.methods.probe import COST
from vcotta.nn.batch_norm import use_batch_statistics
from vcotta.runs.spec import RunSpec

PROBE = 50
EVERY = 50
SHOWN = 100
TESTED = {"none": 300, "fog": 799, "snow": 300}
LIMIT = 400
NATURAL: dict[str, Callable[[Tensor], Tensor]] = {
    "upside down": lambda images: images.flip(2),
    "negative": lambda images: 1 - images,
}
ORDINARY: dict[str, dict[str, float]] = {"continual": {}, "correlated": {"delta": 0.1}, "practical": {}}
KINDS = (*NATURAL, *ORDINARY)


def stream(kind: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a stream, images and labels; a natural one never ends."""
    if kind in ORDINARY:
        spec = RunSpec(
            "vcotta",
            protocol=kind,
            protocol_options=ORDINARY[kind],
            batch_size=BATCH,
            limit=LIMIT,
            seed=seed,
            stream_seed=seed,
        )
        yield from ((batch.images, batch.labels) for batch in stream_for(spec).batches())
        return
    digits = load_digits()[1]
    images, labels = to_tensor(digits.images), torch.from_numpy(digits.labels)
    draws = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(images), (BATCH,), generator=draws)
        yield NATURAL[kind](images[chosen]), labels[chosen]


def elsewhere() -> dict[str, tuple[Tensor, Tensor]]:
    """Return test digits under each condition."""
    digits, found = load_digits()[1], {}
    for name, count in TESTED.items():
        images, labels = digits.images[:count], torch.from_numpy(digits.labels[:count])
        found[name] = to_tensor(images if name == "none" else corrupt(images, name, 5, seed=7)), labels
    return found


def errors(adapter: Adapter, warmed: nn.Module) -> dict[str, float]:
    """Return the errors in per cent of an adapter's networks elsewhere."""
    fresh = build_adapter(adapter.name, warmed, config=adapter.config, guard=False)
    for role, net in fresh.networks.items():
        net.load_state_dict(adapter.networks[role].state_dict())
    found = {}
    for name, (images, labels) in elsewhere().items():
        batches = zip(images.split(SHOWN), labels.split(SHOWN), strict=True)
        wrong = sum(int((fresh.predict(x, samples=1).probabilities.argmax(1) != y).sum()) for x, y in batches)
        found[name] = 100 * wrong / len(labels)
    return found


@torch.no_grad()
def disagreement(adapter: Adapter, images: Tensor) -> dict[str, float]:
    """Return how often the adapted network contradicts a sure source on corrupted copies of images, and how many."""
    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    sure = against = 0
    for name in PROBE_CORRUPTIONS:
        copies = to_tensor(corrupt(pixels, name, 3, seed=5).numpy())
        nets = adapter.start, adapter.networks["teacher"]
        for net in nets:
            use_batch_statistics(net, True)
        source, adapted = (net(copies).softmax(1) for net in nets)
        confident = source.amax(1) > SURE
        sure += int(confident.sum())
        against += int((confident & (source.argmax(1) != adapted.argmax(1))).sum())
    return {"sure": sure, "against": against}


def of_stream(seed: int, kind: str, probe: bool, batches: int) -> dict[str, Any]:
    """Return what an adapter lives through on one stream."""
    torch.set_num_threads(1)
    warmed = start_network(spec_of("vcotta", seed, "fog"))
    given = make_probe(load_digits()[0], PROBE) if probe else None
    adapter = build_adapter("vcotta", warmed, dataset="digits", seed=seed, probe=given)
    still = build_adapter("bn", warmed)
    looks, events, passes, wrong, wrong_still, seen = 0, [], 0, 0, 0, 0
    course = [{"batch": 0, "errors": errors(adapter, warmed)}]
    for number, (images, labels) in enumerate(islice(stream(kind, seed), None if kind in ORDINARY else batches), 1):
        wrong += int((adapter(images).argmax(1) != labels).sum())
        wrong_still += int((still(images).argmax(1) != labels).sum())
        seen += len(labels)
        looks += "probe" in adapter.signals
        passes += len(labels) * (adapter.last["forwards"] + 2 * adapter.last["backwards"])
        if (event := adapter.last.get("guard")) and event["action"] != "note":
            events.append({"batch": number, **event})
        if number % EVERY == 0:
            course.append({"batch": number, "errors": errors(adapter, warmed)})
            if not probe:
                course[-1]["label_free"] = disagreement(adapter, images)
    bn = errors(build_adapter("bn", warmed), warmed)
    print(f"seed {seed}, {kind}, probe {probe}: {100 * wrong / seen:.2f}, {course[-1]['errors']}", flush=True)
    return {
        "seed": seed,
        "stream": kind,
        "probe": probe,
        "error": 100 * wrong / seen,
        "bn_error": 100 * wrong_still / seen,
        "batches": number,
        "bn": bn,
        "course": course,
        "events": events,
        "looks": looks,
        "passes": passes,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds of networks and streams")
    parser.add_argument("--streams", nargs="+", default=KINDS, choices=KINDS, help="kinds of streams")
    parser.add_argument("--batches", type=int, default=150, help="length of a natural stream")
    parser.add_argument("--workers", type=int, default=2, help="processes, one stream each")
    parser.add_argument("--out", type=Path, default=results_of("guards") / "erosion.json", help="file to write")
    options = parser.parse_args(arguments)
    setting = {
        "batches": options.batches,
        "batch_size": BATCH,
        "every": EVERY,
        "tested": TESTED,
        "images_of_a_domain": LIMIT,
        "probe": {"images": PROBE, "corruptions": list(PROBE_CORRUPTIONS), "cost": COST},
        "frost": stream_for(RunSpec("source")).describe()["frost"],
        "torch": str(torch.__version__),
        "vcotta": __version__,
    }
    found = read_json(options.out) if options.out.exists() else {}
    rows = found["rows"] if found.get("setting") == setting else []
    done = {(row["seed"], row["stream"], row["probe"]) for row in rows}
    tasks = [task for task in product(options.seeds, options.streams, (True, False)) if task not in done]
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for made in as_completed(pool.submit(of_stream, *task, options.batches) for task in tasks):
            rows.append(made.result())
            rows.sort(key=lambda row: (row["seed"], KINDS.index(row["stream"]), row["probe"]))
            write_json(options.out, {"setting": setting, "rows": rows})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
