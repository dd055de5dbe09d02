"""How large a network's weights are: what the step of an optimiser such as Adam is large or small against.

What: the root mean square of each convolution and the median of the absolute scales of each BatchNorm layer, of both
the median over the layers, the smallest and the largest; and the root mean square of single layers (``--layers``).
How: read off the weights' file. A row is added to the file that is there.

    python benchmarks/sizes.py --weights wrn.safetensors --called "weight decay 1e-4" --layers block1.layer.2.conv2 \
        --out docs/results/weight-sizes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor, nn

from vcotta.experiments.benchmark import find_benchmark
from vcotta.files import sha256, write_json


def spread(values: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": median(values), "smallest": min(values), "largest": max(values)}


def rms(weight: Tensor) -> float:
    return weight.square().mean().sqrt().item()


def sizes(net: nn.Module, layers: Sequence[str] = ()) -> dict[str, Any]:
    """Return the sizes of a network's weights."""
    convolutions = [rms(layer.weight) for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    scales = [layer.weight.abs().median().item() for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    named = {name: rms(net.get_submodule(name).weight) for name in layers}
    return {"convolutions": spread(convolutions), "scales": spread(scales), "layers": named}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--network", help="by default the data set's own")
    parser.add_argument("--called", default="", help="what to tell of the network in the table")
    parser.add_argument("--layers", nargs="+", default=[], help="layers to tell by name")
    parser.add_argument("--out", type=Path, required=True, help="file for the rows")
    asked = parser.parse_args(given)
    benchmark = find_benchmark(asked.dataset)
    found = sizes(benchmark.build(asked.network, asked.weights), asked.layers)
    about = {
        "network": asked.network or benchmark.network,
        "called": asked.called,
        "weights_sha256": sha256(asked.weights),
    }
    rows = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else []
    write_json(asked.out, [*rows, about | found])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
