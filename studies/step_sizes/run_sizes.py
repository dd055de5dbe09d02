"""Measure how large a network's weights are, against which the step of an optimiser such as Adam is large or small.

What: the root mean square of each convolution and the median of the absolute scales of each BatchNorm layer, of both
the median over the layers, the smallest and the largest; and the root mean square of single layers (``--layers``).
How: read from the file of the weights. A row is added to the result file.

    python -m studies.step_sizes.run_sizes --weights wrn.safetensors --called "weight decay 1e-4" \
        --layers block1.layer.2.conv2 --out studies/step_sizes/results/weight-sizes.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor, nn

from vcotta._util.files import sha256, write_json
from vcotta.experiments.benchmarks import find_benchmark


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
    parser.add_argument("--called", default="", help="what the table calls the network")
    parser.add_argument("--layers", nargs="+", default=[], help="layers to list by name")
    parser.add_argument("--out", type=Path, required=True, help="file for the rows")
    options = parser.parse_args(given)
    benchmark = find_benchmark(options.dataset)
    found = sizes(benchmark.build(options.network, options.weights), options.layers)
    about = {
        "network": options.network or benchmark.network,
        "called": options.called,
        "weights_sha256": sha256(options.weights),
    }
    rows = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    write_json(options.out, [*rows, about | found])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
