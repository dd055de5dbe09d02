"""Run a method from networks that compute the same, or with another kernel for its Adam.

What: the error of a method from a network whose weights carry relative noise too small to see in its predictions
(``--noise``); from one whose convolutions are all multiplied by a number, and the statistics of its BatchNorm layers
with them, which the normalisation takes out again (``--scale``; Adam's steps are large or small against the size of the
weights); from one whose BatchNorm layers have scales and shifts multiplied by a number, by which the layers after them
are divided (``--norm-scale``, the same for methods that train nothing else); and with Adam's arithmetic in another
order (``--kernel``). Where the error moves, one run of the method says little, or its step size fits one network and
not another.
How: one run for each combination, on the four extra corruptions at severities 3 to 5 or on the fifteen at severity 5
(``--standard``). Rows are added to the result file.

    python -m studies.step_sizes.run --weights wrn.safetensors --methods tent --noise 1e-4 --seeds 1 2 3 --standard \
        --out studies/step_sizes/results/tent-starts.json
    python -m studies.step_sizes.run --weights resnet20.pt --network resnet-20 --methods obao rmt --scale 1 0.04 \
        --limit 1000 --out studies/step_sizes/results/scaled-starts.json
    python -m studies.step_sizes.run --weights resnet20.pt --network resnet-20 --methods tent roid --norm-scale 1 0.2 \
        --limit 1000 --out studies/step_sizes/results/scaled-norms.json
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcotta import Adapter, run_stream
from vcotta._util.files import write_json
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import adapter_for_spec, network_facts, start_network, stream_for
from vcotta.nn.optim import ScaledAdam
from vcotta.runs.spec import RunSpec

KERNELS = ("fused", "foreach", "single")


@dataclass(frozen=True)
class Start:
    """The network a run starts from, and the kernel of its optimiser.

    Attributes:
        noise: Standard deviation of the factor 1 + noise of every parameter.
        seed: Seed of the noise.
        scale: What all convolutions are multiplied by, in a network that normalises what comes out of them.
        norm_scale: What scales and shifts of all BatchNorm layers are multiplied by, and all layers but the first
            divided by, in a network whose other layers read what was normalised.
        kernel: Adam's implementation: one kernel for everything, one for each operation on all tensors, or one for each
            operation and tensor.
    """

    noise: float = 0.0
    seed: int = 0
    scale: float = 1.0
    norm_scale: float = 1.0
    kernel: str = "fused"

    @torch.no_grad()
    def move(self, model: nn.Module) -> nn.Module:
        """Change a network to this start, in place."""
        generator = torch.Generator().manual_seed(self.seed)
        for parameter in model.parameters() if self.noise else ():
            parameter.mul_(1 + self.noise * torch.randn(parameter.shape, generator=generator))
        for layer in model.modules() if self.scale != 1 else ():
            if isinstance(layer, nn.Conv2d):
                layer.weight.mul_(self.scale)
                if layer.bias is not None:
                    layer.bias.mul_(self.scale)
            elif isinstance(layer, nn.BatchNorm2d):
                layer.eps *= self.scale**2
                if layer.running_mean is not None:
                    layer.running_mean.mul_(self.scale)
                    layer.running_var.mul_(self.scale**2)
        read = [layer for layer in model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))][1:]
        for layer in model.modules() if self.norm_scale != 1 else ():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.mul_(self.norm_scale)
                layer.bias.mul_(self.norm_scale)
            elif layer in read:
                layer.weight.div_(self.norm_scale)  # a bias stays: what it is added to is unchanged
        return model


class _PlainAdam(torch.optim.Adam):
    """Adam whose steps cannot be skipped from the GPU, which only the fused kernel can."""

    def step(self, closure: Any = None) -> Any:
        vars(self).pop("found_inf", None)
        return super().step(closure)


def use_kernel(adapter: Adapter, kernel: str) -> None:
    """Let a new adapter's Adam use another kernel."""
    if kernel not in KERNELS:
        raise ValueError(f"Expected a kernel out of {', '.join(KERNELS)}, but got {kernel!r}.")
    if kernel == "fused":
        return
    if type(adapter.optimizer) not in (torch.optim.Adam, ScaledAdam):
        raise ValueError(f"Expected a method that steps with Adam, but {adapter.name} does not.")
    if adapter.optimizer.state:
        raise ValueError(f"Expected an optimiser that has not stepped yet, but that of {adapter.name} has.")
    groups = [
        {"params": [tensor], "lr": group["lr"] * scale}
        for group in adapter.optimizer.param_groups
        for tensor, scale in zip(group["params"], group.get("scales", [1.0] * len(group["params"])), strict=True)
    ]
    adapter.optimizer = _PlainAdam(groups, foreach=kernel == "foreach")


def measure(spec: RunSpec, start: Start) -> dict[str, Any]:
    """Return a row of the file."""
    adapter = adapter_for_spec(spec, model=start.move(start_network(spec)))
    use_kernel(adapter, start.kernel)
    run = run_stream(adapter, stream_for(spec))
    mean, parts = run.summary()["mean"], run.summary()["domains"]
    return {
        "method": spec.method,
        "options": dict(spec.options),
        "start": asdict(start),
        "error": 100 * mean["error"],
        "nll": mean["nll"],
        "errors": [100 * part["error"] for part in parts],
        "corruptions": [part["domain"] for part in parts],
        "images": run.manifest["stream"]["images_per_domain"],
        **{fact: run.manifest[fact] for fact in ("runtime", "hardware", "versions")},
        "network": network_facts(spec)["network"],
        "weights_sha256": spec.weights_file_sha256,
    }


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--weights", type=Path, required=True, help="weights of the network")
    parser.add_argument("--network", help="by default the data set's own")
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="OPTION=VALUE", help="options of the methods, as JSON")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds of the noise")
    parser.add_argument("--scale", type=float, nargs="+", default=[1.0])
    parser.add_argument("--norm-scale", type=float, nargs="+", default=[1.0])
    parser.add_argument("--kernel", nargs="+", default=["fused"], choices=KERNELS)
    parser.add_argument("--standard", action="store_true", help="the fifteen corruptions at severity 5")
    parser.add_argument("--limit", type=int, help="images of each corruption and severity; by default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True, help="file for the rows")
    asked = parser.parse_args(given)
    options = {name: json.loads(value) for name, value in (word.split("=", 1) for word in asked.set)}
    stream: dict[str, Any] = {} if asked.standard else {"corruptions": EXTRA, "severity": (3, 4, 5)}
    stream |= {"limit": asked.limit, "device": asked.device}
    specs = [  # a mistake is reported before the first run
        RunSpec(method, asked.dataset, asked.network, asked.weights, options, **stream) for method in asked.methods
    ]
    rows = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else []
    starts = itertools.product(asked.noise, asked.seeds, asked.scale, asked.norm_scale, asked.kernel)
    for spec, values in itertools.product(specs, starts):
        start = Start(*values)
        rows.append(measure(spec, start))
        write_json(asked.out, rows)
        print(
            f"{spec.method} {options or ''} {start}: {rows[-1]['error']:.2f} %, NLL {rows[-1]['nll']:.3f}", flush=True
        )


if __name__ == "__main__":
    main()
