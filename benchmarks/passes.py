"""Time of a method's step beside that of its forward and backward passes alone.

What: for every method the milliseconds of a step, those of its passes, and their ratio. A ratio of 1 is a method that
does nothing but run networks; views, losses, filters, optimiser and averages come on top.
How: random weights and images, so thresholds may select other samples than on real data. ``--steps`` steps are timed
after ``--warm`` untimed ones. Then as many further steps are recorded pass by pass (network, images, statistics,
compiled or not, number of backwards), and each pass is repeated and timed with nothing in between, forward and backward
to the parameters that the method trains, or to the images if these are prompts. CUDA events on a GPU; the median step
and the median of a step's passes. A method that makes a second pass on the images it selects has another number of them
in every step, and a number not seen before is slow, probably because cuDNN plans for it: the median leaves such steps
out, the mean in the file does not.
A pass with inferred statistics is repeated with those of the batch, so what their inference adds comes on top.
Every method has its settings for CIFAR-10 and is prepared on two batches.

    python -m benchmarks.passes --json benchmarks/results/passes.json
    OMP_NUM_THREADS=1 python -m benchmarks.passes --device cpu --methods tent,sar
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.steps import ROTATED, add_common, describe, fill_common, free, step_times, ways_to_compute
from vcotta import Adapter, Runtime, build_adapter, to_variational
from vcotta._util.files import write_json
from vcotta.methods import find_method, list_general_methods
from vcotta.models import build_network
from vcotta.nn.batch_norm import Correction, batch_norms, use_batch_statistics


@dataclass
class Pass:
    """One pass as a method made it, and how many backwards went through it.

    ``correction`` is that of compiled passes, whose code includes it; without it they would be compiled anew.
    """

    net: nn.Module
    images: Tensor
    compiled: bool
    batch_statistics: bool
    views: int
    correction: Correction | None
    backwards: int = 0

    def count(self, gradient: Tensor) -> None:
        """Count a backward that went through this pass."""
        self.backwards += 1

    def again(self, runtime: Runtime) -> None:
        """Repeat the pass, with as many backwards."""
        use_batch_statistics(self.net, self.batch_statistics, self.views, self.correction)
        with torch.set_grad_enabled(self.backwards > 0):
            logits = runtime.forward(self.net, self.images, compiled=self.compiled)
            for left in reversed(range(self.backwards)):
                logits.sum().backward(retain_graph=left > 0)
        self.net.zero_grad(set_to_none=True)
        self.images.grad = None


@dataclass(frozen=True)
class Row:
    """What one method costs, in milliseconds a step: medians, and the mean; the passes counted are the last step's."""

    method: str
    forwards: int
    backwards: int
    step_ms: float
    passes_ms: float
    ratio: float
    mean_step_ms: float


@contextmanager
def recorded(made: list[Pass], adapter: Adapter) -> Iterator[None]:
    """Append the passes that an adapter makes within the block to a list."""
    forward = Runtime.forward
    inferred = getattr(adapter.config, "statistics", None) == "inferred"

    def record(self: Runtime, net: nn.Module, images: Tensor, *, compiled: bool = False) -> Tensor:
        norm = next(batch_norms(net))
        corrected, views = getattr(norm, "corrected", False), getattr(norm, "views", 1)
        correction: Any = [(one.scale, one.offset) for one in batch_norms(net)] if corrected else None
        alone = images.detach().requires_grad_(images.requires_grad)  # prompts are learned through their images
        made.append(Pass(net, alone, compiled, norm.training or inferred, views, correction))
        if compiled:
            return forward(self, net, images, compiled=True)
        hook = norm.register_forward_hook(lambda module, inputs, output: _watch(output, made[-1]))
        try:
            return forward(self, net, images)
        finally:
            hook.remove()

    Runtime.forward = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        Runtime.forward = forward  # type: ignore[method-assign]


def _watch(output: Tensor, one: Pass) -> None:
    """Watch the first normalisation layer: every gradient of a pass goes through it, as all methods train it."""
    if output.requires_grad:
        output.register_hook(one.count)


def measure(method: str, network: nn.Module, batches: Sequence[Tensor], runtime: Runtime, warm: int, steps: int) -> Row:
    """Return what a method costs."""
    device = runtime.device
    free(device)
    classes = network(batches[0][:1].cpu()).shape[-1]
    source = [(images, torch.arange(len(images), device=images.device) % classes) for images in batches[:2]]
    model = to_variational(network) if find_method(method).needs_variational else network
    adapter = build_adapter(method, model, source=source, dataset="cifar10", runtime=runtime, guard=False)

    def step(index: int) -> None:
        adapter(batches[index % len(batches)])

    times = step_times(step, warm + steps, device)[warm:]
    totals, made = [], list[Pass]()
    for index in range(steps):
        with recorded(made, adapter):
            step(index)
        made[0].again(runtime)
        totals.append(sum(step_times(lambda place: made[place].again(runtime), len(made), device)))
        made.clear()
    taken, alone, done = median(times), median(totals), adapter.last
    return Row(
        method,
        done["forwards"],
        done["backwards"],
        step_ms=1000 * taken,
        passes_ms=1000 * alone,
        ratio=taken / alone,
        mean_step_ms=1000 * mean(times),
    )


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(parser)
    parser.add_argument("--steps", type=int, default=10, help="timed steps (default 10)")
    parser.add_argument("--warm", type=int, default=20, help="untimed steps (default 20)")
    parser.add_argument(
        "--methods", default=",".join(list_general_methods()), help="by default all that take any network"
    )
    return fill_common(parser.parse_args(given))


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    way = ways_to_compute(options.device, options.warm, options.steps)[0]
    setting: dict[str, Any] = describe(options, [way])
    print("\n".join(f"{key}: {value}" for key, value in setting.items()))
    network, shape = build_network(options.network), (options.batch_size, 3, options.image_size, options.image_size)
    batches = [torch.rand(shape, device=options.device) for _ in range(ROTATED)]
    print(f"\n{'method':12}{'fwd':>5}{'bwd':>5}{'step ms':>10}{'passes ms':>11}{'ratio':>7}")
    rows = []
    for method in options.methods.split(","):
        rows.append(measure(method, network, batches, way.runtime, options.warm, options.steps))
        print(
            "{method:12}{forwards:5}{backwards:5}{step_ms:10.1f}{passes_ms:11.1f}{ratio:7.2f}".format(
                **asdict(rows[-1])
            )
        )
        if options.json:
            write_json(options.json, {"setting": setting, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
