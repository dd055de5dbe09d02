"""Time of adaptation: every method on the fast path and on the plain one, beside what the hardware can do.

What: seconds a corruption of 10 000 images, FLOP/s and their share of the measured ceiling (a bf16 product of random
matrices, 8192 x 8192), peak memory, and the seconds of the first, untimed step, in which torch compiles.
How: random weights, and random images in [0, 1] that are on the device before the clock starts; the cost depends on
neither. A row is extrapolated from the median of ``--steps`` steps after ``--warm`` untimed ones, each timed with CUDA
events around ``adapter(images)``. The fast path is ``Runtime(device)``: bf16, channels_last, compiled views. The plain
path is float32 with none of these and with TF32 off; its share is of the bf16 ceiling too. Each row has the memory to
itself, and its peak covers the first step. Compiled code is dropped between rows, but torch's cache on disk is not: a
second run shows shorter first steps.

FLOPs are those of torch's `FlopCounterMode`, two a multiply-add, for convolutions and matrix products alone. One eager
forward of the plain network is counted; the rest follows from the passes of ``adapter.last``, a backward costing two
forwards. Two methods differ. VCoTTA's student looks at the image and at a view of it, and its one backward goes through
both passes. TENT trains the normalisation layers alone, and a backward without the gradients of the other weights costs
one forward.

    python -m benchmarks.adapt --warmup --json benchmarks/results/adapt.json
    python -m benchmarks.adapt --methods cotta,vcotta-32 --steps 30
    OMP_NUM_THREADS=1 python -m benchmarks.adapt --device cpu

On the CPU three ways are compared, with one thread and a small network: plain, channels_last (ch_last), and bf16 with
channels_last. The seconds are those of 1 000 images; the ceiling is a float32 product, 1024 x 1024: bf16 may pass it.

With ``--warmup`` the variational warm-up follows: seconds a step at batch 256 and those of an epoch of 50 000 images
that they imply, in an epoch after the first (which also checks its data), by CUDA events between one report of
`vcotta.bayes.warm_up` and the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.steps import (
    ROTATED,
    Clock,
    Way,
    add_common,
    describe,
    fill_common,
    free,
    on_gpu,
    peak_gib,
    step_times,
    synchronise,
    tf32,
    ways_to_compute,
)
from vcotta import Adapter, Runtime, WarmUpConfig, build_adapter, to_variational
from vcotta._util.files import write_json
from vcotta.bayes import warm_up
from vcotta.models import build_network

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "source": ("source", {}),
    "bn": ("bn", {}),
    "tent": ("tent", {}),
    "cotta": ("cotta", {"views": 32, "threshold": 2.0}),  # no confidence reaches 2: the views are always used
    "vcotta-0": ("vcotta", {"views": 0}),
    "vcotta-8": ("vcotta", {"views": 8}),
    "vcotta-32": ("vcotta", {"views": 32}),
}
EXTRA = {"tent": -1, "vcotta": 2}  # forwards that a batch costs beyond forwards + 2 backwards, see above
WARM_UP_BATCH, WARM_UP_STEPS, EPOCH = 256, 10, 50_000


@dataclass(frozen=True)
class Row:
    """What one method costs one way; ``peak_gib`` is None on the CPU, ``passes`` are in forwards of the network."""

    method: str
    way: str
    forwards: int
    backwards: int
    passes: int
    first_step_seconds: float
    step_seconds: float
    seconds: float
    tflops: float
    share: float
    peak_gib: float | None


@dataclass(frozen=True)
class Work:
    """What all rows share: the network, images in batches on the device, FLOPs an image and FLOP/s of the ceiling."""

    network: nn.Module
    batches: Sequence[Tensor]
    flops_an_image: int
    ceiling: float
    images: int  # that a row's seconds are for


def ceiling(device: str, size: int, repeats: int) -> float:
    """Return the FLOP/s of a square matrix product of random numbers: bf16 on a GPU, float32 on the CPU."""
    dtype = torch.bfloat16 if on_gpu(device) else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    times = step_times(lambda _: torch.mm(a, b, out=out), 2 * repeats, device)
    return 2 * size**3 / median(times[repeats:])


def forward_flops(network: nn.Module, image_size: int) -> int:
    """Return the FLOPs of one eager forward of the plain network on one image."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, image_size, image_size))
    return counter.get_total_flops()


def passes(method: str, last: Mapping[str, Any]) -> int:
    """Return what a batch costs, in forwards of the plain network."""
    return last["forwards"] + 2 * last["backwards"] + EXTRA.get(method, 0)


def make_adapter(name: str, network: nn.Module, runtime: Runtime) -> Adapter:
    method, options = METHODS[name]
    model = to_variational(network) if method == "vcotta" else network
    return build_adapter(method, model, runtime=runtime, guard=False, **options)


def measure(name: str, way: Way, work: Work) -> Row:
    """Return the cost of one method one way."""
    device = way.runtime.device
    free(device)
    adapter = make_adapter(name, work.network, way.runtime)

    def step(index: int) -> None:
        adapter(work.batches[index % len(work.batches)])

    with tf32(way.tf32):
        synchronise(device)
        start = time.perf_counter()
        step(0)
        synchronise(device)
        first = time.perf_counter() - start
        seconds = median(step_times(step, way.warm - 1 + way.steps, device)[way.warm - 1 :])
    batch = len(work.batches[0])
    cost = passes(METHODS[name][0], adapter.last)
    rate = cost * batch * work.flops_an_image / seconds
    return Row(
        method=name,
        way=way.name,
        forwards=adapter.last["forwards"],
        backwards=adapter.last["backwards"],
        passes=cost,
        first_step_seconds=first,
        step_seconds=seconds,
        seconds=seconds * work.images / batch,
        tflops=rate / 1e12,
        share=rate / work.ceiling,
        peak_gib=peak_gib(device),
    )


def measure_warm_up(way: Way, work: Work, batch: int, steps: int) -> dict[str, Any]:
    """Return what a step of the variational warm-up costs one way."""
    device, clock = way.runtime.device, Clock(way.runtime.device)
    free(device)
    size = work.batches[0].shape[-1]
    with torch.no_grad():
        classes = work.network(torch.zeros(1, 3, size, size)).shape[-1]
    data = [
        (torch.rand(batch, 3, size, size, device=device), torch.randint(classes, (batch,), device=device))
        for _ in range(ROTATED)
    ]
    # The first epoch also checks its data, for which the host waits; the others, timed here, do not. A step is reported
    # at the end of the next one, and the last one right after the one before, so the last interval is left out.
    loader = [data[index % ROTATED] for index in range(max(way.warm, steps) + 2)]

    with tf32(way.tf32):
        config = WarmUpConfig(epochs=2, statistics_images=2)
        warm_up(work.network, loader, config, runtime=way.runtime, progress=lambda *_: clock.stamp())
    times = clock.intervals()[-steps - 1 : -1]
    seconds = median(times)
    rate = 6 * batch * work.flops_an_image / seconds
    return {
        "way": way.name,
        "batch_size": batch,
        "steps": len(times),
        "step_seconds": seconds,
        "epoch_seconds": seconds * EPOCH / batch,
        "tflops": rate / 1e12,
        "share": rate / work.ceiling,
        "peak_gib": peak_gib(device),
    }


def cell(value: float | None, form: str) -> str:
    return f"{'' if value is None else format(value, form):>9}"


def header(ways: Sequence[Way], images: int) -> str:
    """Return the two lines above the rows: what a column is, and for which way."""
    names = [way.name for way in ways]
    others = [name for name in names if name != "plain"]
    groups = {
        f"s / {images} images": names,
        "plain /": others,
        "TFLOP/s": names,
        "of ceiling": names,
        "peak GiB": names if on_gpu(ways[0].runtime.device) else [],
        "first step s": names,
    }
    above = "".join(f"{title:>{9 * len(columns)}}" for title, columns in groups.items() if columns)
    below = "".join(f"{name:>9}" for columns in groups.values() for name in columns)
    return f"{'':22}{above}\n{'method':10}{'fwd':>6}{'bwd':>6}{below}"


def line(rows: Sequence[Row]) -> str:
    """Return one method's numbers, all ways side by side."""
    plain = next(row for row in rows if row.way == "plain")
    cells = [cell(row.seconds, ".2f") for row in rows]
    cells += [cell(plain.seconds / row.seconds, ".2f") for row in rows if row is not plain]
    cells += [cell(row.tflops, ".3g") for row in rows]
    cells += [cell(row.share, ".1%") for row in rows]
    cells += [cell(row.peak_gib, ".2f") for row in rows if row.peak_gib is not None]
    cells += [cell(row.first_step_seconds, ".2f") for row in rows]
    return f"{plain.method:10}{plain.forwards:>6}{plain.backwards:>6}" + "".join(cells)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser)
    parser.add_argument("--steps", type=int, help="timed steps of every row (default 10 fast, 3 plain, 3 on the CPU)")
    parser.add_argument("--warm", type=int, help="untimed steps of every row (default 3 fast, 1 plain, 1 on the CPU)")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)} (default all)")
    parser.add_argument("--warmup", action="store_true", help="measure the variational warm-up as well")
    options = parser.parse_args()
    options.methods = options.methods.split(",")
    if unknown := [name for name in options.methods if name not in METHODS]:
        parser.error(f"expected --methods to be of {', '.join(METHODS)}, but got {unknown[0]!r}")
    if any(count is not None and count < 1 for count in (options.steps, options.warm, options.batch_size)):
        parser.error("expected --steps, --warm and --batch-size to be at least 1")
    return fill_common(options)


def prepare(options: argparse.Namespace) -> Work:
    """Measure the ceiling, then make the network and the images."""
    gpu = on_gpu(options.device)
    network = build_network(options.network)
    shape = (options.batch_size, 3, options.image_size, options.image_size)
    return Work(
        network=network,
        batches=[torch.rand(shape, device=options.device) for _ in range(ROTATED)],
        flops_an_image=forward_flops(network, options.image_size),
        ceiling=ceiling(options.device, *((8192, 50) if gpu else (1024, 5))),
        images=10_000 if gpu else 1000,
    )


def print_warm_up(results: Sequence[Mapping[str, Any]]) -> None:
    print(f"\nvariational warm-up, batch {WARM_UP_BATCH}, an epoch of {EPOCH} images")
    print(f"{'':10}{'s / step':>9}{'s / epoch':>11}{'TFLOP/s':>9}{'of ceiling':>12}{'peak GiB':>10}")
    for row in results:
        rates = f"{row['tflops']:>9.3g}{row['share']:>12.1%}"
        memory = "" if row["peak_gib"] is None else f"{row['peak_gib']:>10.2f}"
        print(f"{row['way']:10}{row['step_seconds']:>9.3f}{row['epoch_seconds']:>11.1f}{rates}{memory}")


def main() -> None:
    options = arguments()
    gpu = on_gpu(options.device)
    ways = ways_to_compute(options.device, options.warm, options.steps)
    if gpu:
        torch.cuda.set_device(torch.device(options.device).index or 0)
    else:
        torch.set_num_threads(1)
    setting = describe(options, ways)
    for key, value in setting.items():
        print(f"{key}: {value}")
    work = prepare(options)
    product = "8192^3, bf16" if gpu else "1024^3, float32"
    print(f"ceiling: {work.ceiling / 1e12:.3g} TFLOP/s ({product})")
    print(f"one forward: {work.flops_an_image / 1e9:.3g} GFLOP an image\n")

    rows = []
    print(header(ways, work.images), flush=True)
    for name in options.methods:
        rows.append([measure(name, way, work) for way in ways])
        print(line(rows[-1]), flush=True)
    warmed = [measure_warm_up(way, work, WARM_UP_BATCH, WARM_UP_STEPS) for way in ways] if options.warmup else []
    if warmed:
        print_warm_up(warmed)
    if options.json:
        results = {
            "setting": setting | {"ways": {way.name: asdict(way) for way in ways}},
            "ceiling": {"product": product, "tflops": work.ceiling / 1e12},
            "gflop_a_forward_and_image": work.flops_an_image / 1e9,
            "seconds_are_for_images": work.images,
            "rows": [asdict(row) for ways_of_one in rows for row in ways_of_one],
            "warm_up": warmed,
        }
        write_json(options.json, results)


if __name__ == "__main__":
    main()
