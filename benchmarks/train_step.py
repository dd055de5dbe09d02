"""Time of a training step with AugMix: grouped convolutions computed three ways, and AugMix for one or eight batches.

What: the milliseconds of a training step of a ResNeXt-29 4x32d (forward, loss, backward, SGD) with its grouped
convolutions as they are, as they are but with kernels that cuDNN chose by trying them, and as the dense convolutions
that `vcotta.training.train` makes of them on a GPU; and the milliseconds of AugMix for one batch and for eight at once.
How: random weights and images, 256 of them, three forms of each in a step. Compiled on a GPU. The median of ``--steps``
steps after ``--warm`` untimed ones, by CUDA events on a GPU.

    python -m benchmarks.train_step --json benchmarks/results/train-step.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.steps import on_gpu, processor, step_times
from vcotta import Runtime
from vcotta._util.files import write_json
from vcotta.models import build_network
from vcotta.nn.runtime import dense_groups
from vcotta.training.trainer import _TOGETHER, TrainConfig, _augmented, _loss

CONFIG = TrainConfig(epochs=1, lr=0.01, shift=4, flip=True, augmix=True)
CLASSES = 100


def training_step(runtime: Runtime, network: str, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Callable:
    """Return a step on the k-th of some augmented batches, of a network of its own."""
    net = runtime.place(build_network(network, CLASSES)).train()
    optimiser = torch.optim.SGD(net.parameters(), CONFIG.lr, CONFIG.momentum, nesterov=True)

    def step(k: int, dense: bool) -> None:
        images, labels = batches[k % len(batches)]
        with dense_groups(net) if dense else nullcontext():
            logits = runtime.forward(net, images, compiled=bool(runtime.compile))
            optimiser.zero_grad()
            _loss(logits, labels, CONFIG).backward()
            optimiser.step()

    return step


@contextmanager
def kernels_tried(tried: bool) -> Iterator[None]:
    """Let cuDNN choose its kernels by trying them, or not, within the block."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = tried
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    runtime = Runtime(options.device)
    given = [
        (torch.rand(options.batch_size, 3, 32, 32), torch.randint(CLASSES, (options.batch_size,)))
        for _ in range(_TOGETHER)
    ]
    given = [(runtime.place_images(images), labels.to(options.device)) for images, labels in given]

    def timed(work: Callable[[int], object]) -> float:
        for k in range(options.warm):
            work(k)
        return 1000 * median(step_times(work, options.steps, options.device))

    rows = []
    for what, dense, tried in (
        ("groups as they are", False, False),
        ("groups as they are, kernels tried", False, True),
        ("groups as dense convolutions", True, False),
    ):
        step = training_step(runtime, options.network, list(_augmented(given, CONFIG, runtime)))
        with kernels_tried(tried):
            rows.append({"what": what, "ms": timed(lambda k, step=step, dense=dense: step(k, dense))})
        print(rows[-1], flush=True)
    for count in (1, _TOGETHER):
        ms = timed(lambda k, count=count: list(_augmented(given[:count], CONFIG, runtime)))
        rows.append({"what": f"AugMix of {count} batch{'es' * (count > 1)}", "ms": ms})
        print(rows[-1], flush=True)
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--network", default="resnext-29-4x32d", help="a network with groups, for 100 classes")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--warm", type=int, default=4, help="untimed steps")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args(given)
    setting = {
        "hardware": torch.cuda.get_device_name(options.device) if on_gpu(options.device) else processor(),
        "torch": str(torch.__version__),
        "network": options.network,
        "batch_size": options.batch_size,
        "timing": f"median of {options.steps} steps",
    }
    rows = measure(options)
    if options.json:
        write_json(options.json, {"setting": setting, "rows": rows})


if __name__ == "__main__":
    main()
