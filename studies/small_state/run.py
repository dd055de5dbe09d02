"""What VCoTTA loses and saves if only normalisation and classifier adapt: ``trains="norm"`` beside ``"all"``.

What: the error on the four extra corruptions, on which settings may be chosen, at severities 3 to 5 one after another,
and what an adapter takes: bytes of its tensors in memory, of a file of its state, and CPU time of a step.
How: errors are of one run for each network, seed and setting, 4 views, with the guard, from the same warmed network and
on the same stream; the digits network is made by the seed. Sizes are of random weights after two steps on random
images: tensors of the source, student, teacher and optimiser are counted once where they share memory; a state is a
file of ``vcotta.save(..., source=False)``. Times are the median CPU time of several steps after two untimed ones, the
two settings in turn, on one thread.

    python -m studies.small_state.run --data digits                      # about 3 minutes
    vcotta warmup --dataset cifar10 --model resnet-20 --weights resnet20.pt --epochs 2 --source-limit 20000 \
        --out resnet20-warm.safetensors
    python -m studies.small_state.run --data cifar10 --network resnet-20 --weights resnet20-warm.safetensors \
        --seeds 0 --batch-size 100 --limit 1000                          # about 10 minutes
    python -m studies.small_state.run --data none --sizes resnet-20 wrn-28-10
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import vcotta
from benchmarks.steps import processor
from studies.files import results_of
from vcotta import Adapter, build_adapter, to_variational
from vcotta._util.files import write_json
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import start_network
from vcotta.experiments.grid import run_spec
from vcotta.models import build_network
from vcotta.runs.spec import RunSpec

TRAINS = ("all", "norm")
VIEWS, SEVERITIES, UNTIMED = 4, (3, 4, 5), 2
TABLES = {"digits": 224}
"""Severity constants with which digits are about as hard as on the fifteen corruptions."""
SIDE, CLASSES = 32, 10


def errors(spec: RunSpec) -> list[dict[str, Any]]:
    """Return a row for each setting of one network and stream, and one without learning."""
    model, rows = start_network(spec), []
    for trains, more in (*((name, {}) for name in TRAINS), ("nothing", {"lr": 0.0})):
        options = {"views": VIEWS, **({} if more else {"trains": trains}), **more}
        words = {name: getattr(spec, name) for name in ("data", "network", "weights", "limit", "batch_size", "seed")}
        chosen = RunSpec(
            "vcotta",
            options=options,
            corruptions=EXTRA,
            severity=SEVERITIES,
            table=spec.table,
            stream_seed=spec.stream_seed,
            **words,
        )
        run = run_spec(chosen, model=model)
        summary = run.summary()
        rows.append(
            {
                "data": spec.data,
                "network": run.manifest.get("network"),
                "seed": spec.seed,
                "trains": trains,
                "error": 100 * summary["mean"]["error"],
                "nll": summary["mean"]["nll"],
                "errors": {f"{part['domain']} {part['severity']}": 100 * part["error"] for part in summary["domains"]},
                "images": run.manifest["stream"]["images_per_domain"],
                "batch_size": run.manifest["stream"]["batch_size"],
                "weights_sha256": run.manifest["weights_sha256"],
            }
        )
        print({key: rows[-1][key] for key in ("data", "seed", "trains", "error", "nll")}, flush=True)
    return rows


def tensor_bytes(adapter: Adapter) -> int:
    """Return the bytes of networks and optimiser, memory that tensors share counted once."""
    found = [t for net in (adapter.start, *adapter.networks.values()) for t in net.state_dict(keep_vars=True).values()]
    if adapter.optimizer is not None:
        found += [t for values in adapter.optimizer.state_dict()["state"].values() for t in values.values()]
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in found}.values())


def sizes(network: str, batch_size: int, steps: int) -> list[dict[str, Any]]:
    """Return a row for each setting: bytes in memory, bytes of a state's file, CPU time of a step."""
    torch.manual_seed(0)
    net = to_variational(build_network(network, CLASSES).eval())
    adapters = {name: build_adapter("vcotta", net, views=VIEWS, trains=name) for name in TRAINS}
    seconds: dict[str, list[float]] = {name: [] for name in TRAINS}
    for seed in range(UNTIMED + steps):
        images = torch.rand(batch_size, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        for name, adapter in adapters.items():
            started = time.process_time()
            adapter(images)
            seconds[name].append(time.process_time() - started)
    rows = []
    for name, adapter in adapters.items():
        with tempfile.TemporaryDirectory() as folder:
            vcotta.save(adapter, Path(folder) / "state", source=False)
            size = (Path(folder) / "state").stat().st_size
        rows.append(
            {
                "network": network,
                "trains": name,
                "source_bytes": sum(t.nbytes for t in adapter.start.state_dict().values()),
                "tensor_bytes": tensor_bytes(adapter),
                "file_bytes": size,
                "batch_size": batch_size,
                "ms_per_step": round(1000 * statistics.median(seconds[name][UNTIMED:]), 1),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="data set of the errors; none for sizes alone")
    parser.add_argument("--network", help="by default the data set's own")
    parser.add_argument("--weights", type=Path, help="a warmed network; digits are trained and warmed up here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--limit", type=int, help="images of each corruption and severity; by default all")
    parser.add_argument("--batch-size", type=int, help="by default the data set's own")
    parser.add_argument("--sizes", nargs="*", default=[], help="networks whose sizes and times are measured")
    parser.add_argument("--timed-batch", type=int, default=100, help="images in a timed batch")
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument(
        "--out", type=Path, default=results_of("small_state") / "small-state.json", help="rows are added"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {"errors": [], "sizes": []}
    if options.data != "none":
        for seed in options.seeds:
            spec = RunSpec(
                "vcotta",
                options.data,
                options.network,
                options.weights,
                table=TABLES.get(options.data),
                limit=options.limit,
                batch_size=options.batch_size,
                seed=seed,
                stream_seed=seed,
            )
            found["errors"] += errors(spec)
    for network in options.sizes:
        found["sizes"] += sizes(network, options.timed_batch, options.steps)
    old = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"errors": [], "sizes": []}
    names = {"errors": ("data", "network", "seed", "trains"), "sizes": ("network", "trains")}
    merged = {
        part: [row for row in old[part] if all(any(row[n] != new[n] for n in names[part]) for new in rows)] + rows
        for part, rows in found.items()
    }
    setting = {
        "views": VIEWS,
        "severities": list(SEVERITIES),
        "corruptions": list(EXTRA),
        "hardware": processor(),
        "threads": 1,
        "torch": str(torch.__version__),
        "vcotta": vcotta.__version__,
    }
    write_json(options.out, {"setting": setting, **merged})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
