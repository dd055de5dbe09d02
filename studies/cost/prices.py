"""The price list: error, milliseconds and memory of every method, and of VCoTTA by its views, on one stream.

What: every method on the corruptions of a data set, and VCoTTA with 0 to 32 views: the error, the median time of a step
and the highest memory. With ``--reference`` also TENT, CoTTA, ROID, EATA and RMT of a checkout of
mariodoebler/test-time-adaptation, on the same network and batches in the same run, with its settings.
How: CPU time on one thread and resident memory of a process for each row, or CUDA events and torch's peak on a GPU. The
first `UNTIMED` steps are not timed. Methods have the settings of the data set, and those that learn from source data do
so before the stream. VCoTTA starts from a warmed network, the others from the plain one. Rows are added to
``results/steps.json``; earlier rows of the same data set are replaced.

    python -m studies.cost.prices --limit 50
    python -m studies.cost.prices --limit 100 --methods tent cotta --reference ../test-time-adaptation

On a GPU, in one run:

    python -m studies.cost.prices --data cifar10 --weights NET --warmed WARMED --corrupted CIFAR-10-C --device cuda
        --limit 2000 --reference ../test-time-adaptation
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.steps import Clock, free, on_gpu, processor
from benchmarks.steps import peak_gib as gpu_gib
from studies.checkouts import commit_of
from studies.cost.reference import CLASSES, OURS, REPOSITORY, no_gradient, reference_step
from studies.cost.run import peak_gib
from studies.files import results_of
from vcotta import __version__, list_methods
from vcotta._util.files import write_json
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.experiments.build import adapter_for_spec, start_network, stream_for
from vcotta.methods import find_method, list_general_methods
from vcotta.runs.spec import RunSpec

UNTIMED = 3  # steps
VIEWS: dict[str, tuple[int | None, ...]] = {"vcotta": (0, 2, 4, 8, 16, 32)}

Row = dict[str, Any]


def spec_of(options: argparse.Namespace, method: str, views: int | None) -> RunSpec:
    """Return the description of a row's run."""
    given = {} if views is None else {"views": views}
    return RunSpec(
        method,
        data=options.data,
        network=options.network,
        weights=options.warmed if find_method(method).needs_variational else options.weights,
        options=given | (OURS.get(method, {}) if options.reference else {}),
        corrupted=options.corrupted,
        limit=options.limit,
        batch_size=options.batch_size,
        seed=options.seed,
        device=options.device,
    )


def run_stream(step: Callable[[Tensor], Tensor], spec: RunSpec) -> tuple[float, float]:
    """Return median milliseconds of a step, and the error in per cent."""
    device, seconds, wrong, images = spec.device, list[float](), torch.zeros(()), 0
    for batch in stream_for(spec):
        inputs = batch.images.to(device)
        clock, started = Clock(device), time.process_time()
        clock.stamp()
        outputs = step(inputs)
        clock.stamp()
        seconds.append(clock.intervals()[0] if on_gpu(device) else time.process_time() - started)
        wrong = wrong + (outputs.argmax(1).cpu() != torch.as_tensor(batch.labels).cpu()).sum()
        images += len(inputs)
    return 1000 * statistics.median(seconds[UNTIMED:] or seconds), 100 * float(wrong) / images


def measure(options: argparse.Namespace, method: str, views: int | None) -> Row:
    """Return the row of a method."""
    torch.set_num_threads(options.threads)
    free(options.device)
    spec = spec_of(options, method, views)
    ms, error = run_stream(adapter_for_spec(spec), spec)
    benchmark = find_benchmark(spec.data)
    memory = gpu_gib(spec.device) if on_gpu(spec.device) else peak_gib()
    return {
        "dataset": spec.data,
        "network": spec.network or benchmark.network,
        "method": method,
        "views": getattr(spec.config, "views", None),
        "batch_size": spec.batch_size or benchmark.batch_size,
        "ms_per_batch": round(ms, 2),
        "peak_gib": round(memory or 0.0, 3),
        "error": round(error, 3),
        "reference_ms": None,
        "reference_error": None,
    }


def measure_reference(options: argparse.Namespace, method: str) -> Row:
    """Return the columns of the checkout's method."""
    torch.set_num_threads(options.threads)
    free(options.device)
    spec = spec_of(options, method, None)
    benchmark = find_benchmark(spec.data)
    net = start_network(spec).to(spec.device)
    size = spec.batch_size or benchmark.batch_size
    source = [(images.to(spec.device), labels) for images, labels in benchmark.source(spec.seed, "cpu", size)]
    torch.manual_seed(spec.seed)
    with tempfile.TemporaryDirectory() as folder:
        full = [(images, labels) for images, labels in source if len(images) == size]
        with reference_step(options.reference, method, net, full, spec.data, Path(folder)) as (step, missing):
            ms, error = run_stream(lambda images: no_gradient(step, images), spec)
    return {
        "reference_ms": round(ms, 2),
        "reference_error": round(error, 3),
        "reference_stand_ins": missing,
    }


def in_process(function: Callable[..., Row], *arguments: Any) -> Row:
    """Call a function in a process of its own, so that memory and imports are its own."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(function, arguments)


def write_rows(path: Path, rows: Sequence[Row], setting: dict[str, Any]) -> None:
    """Add rows of one data set to a file, in place of those it has of this data set."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"setting": {}, "rows": []}
    dataset = setting["dataset"]
    found["rows"] = [row for row in found["rows"] if row["dataset"] != dataset] + list(rows)
    found["prices"] = {**found.get("prices", {}), dataset: setting}
    write_json(path, found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits", help="data set (default digits)")
    parser.add_argument("--network", help="network (default the data set's own)")
    parser.add_argument("--weights", type=Path, help="weights of the plain network; digits trains its own")
    parser.add_argument("--warmed", type=Path, help="file of `vcotta warmup`; digits warms its own network up")
    parser.add_argument("--corrupted", type=Path, help="folder of corrupted files, such as CIFAR-10-C")
    parser.add_argument("--limit", type=int, help="images of each corruption (default all)")
    parser.add_argument("--batch-size", type=int, help="images in a batch (default the data set's own)")
    parser.add_argument("--seed", type=int, default=0, help="seed of network and adapter")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list_general_methods(),
        choices=list_methods(),
        help="by default all that take any network",
    )
    parser.add_argument("--reference", type=Path, help=f"a checkout of {REPOSITORY}")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads (default 1)")
    parser.add_argument("--out", type=Path, default=results_of("cost") / "steps.json", help="file to add to")
    options = parser.parse_args(arguments)
    gpu = on_gpu(options.device)
    setting = {
        "dataset": options.data,
        "hardware": torch.cuda.get_device_name(options.device) if gpu else processor(),
        "threads": options.threads,
        "clock": "CUDA events" if gpu else "CPU time",
        "images_per_corruption": options.limit,
        "seed": options.seed,
        "runs": 1,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if gpu else None,
        "vcotta": __version__,
        "reference": None if options.reference is None else f"{REPOSITORY} {commit_of(options.reference)[:7]}",
    }
    rows: list[Row] = []
    for method in options.methods:
        for views in VIEWS.get(method, (None,)):
            row = measure(options, method, views) if gpu else in_process(measure, options, method, views)
            if options.reference is not None and method in CLASSES:
                row |= in_process(measure_reference, options, method)
            rows.append(row)
            print(row, flush=True)
            write_rows(options.out, rows, setting)


if __name__ == "__main__":
    main()
