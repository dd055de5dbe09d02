"""Measure the clean error of a network that somebody else trained, on the test split of a prepared data set.

What: how many images it gets wrong, the hash of its weights file and the time.
How: any network that `vcotta.models.build_network` knows, images in [0, 1], float32, eval mode, one pass, one thread,
through the same data path as `vcotta check` and `vcotta run`. Where the error is not the expected one,
`vcotta.training.diagnose` says what may be wrong.

    python -m studies.methods.run_offtheshelf --dataset cifar10 --model resnet-20 --weights resnet20.pt \
        --title ResNet-20
    python -m studies.methods.run_offtheshelf --dataset imagenet --model my_network.py:factory --weights my_weights.pt \
        --expected 27 --title "My network"

With ``--json studies/methods/results/offtheshelf.json`` the row is kept for the page: a row of the same title and data
set is replaced.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from vcotta._util.files import sha256, write_json
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.models import expected_error
from vcotta.training.diagnose import check_network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dataset", required=True, help="a prepared data set, or folder:DIR")
    parser.add_argument("--model", required=True, help="a name for build_network, or file.py:factory")
    parser.add_argument("--weights", type=Path, required=True, help="checkpoint")
    parser.add_argument("--title", help="name of the network in the table; by default that of the model")
    parser.add_argument("--expected", type=float, help="the published error in per cent, where it is not known here")
    parser.add_argument("--limit", type=int, help="use only this many images, spread evenly")
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--json", type=Path, help="keep the row in this file")
    options = parser.parse_args()

    torch.set_num_threads(1)
    benchmark = find_benchmark(options.dataset)
    data, model = benchmark.load(), benchmark.build(options.model, options.weights)
    expected = expected_error(options.model, options.dataset) if options.expected is None else options.expected / 100
    start = time.perf_counter()
    report = check_network(model, data, limit=options.limit, expected=expected, batch_size=options.batch_size)
    seconds = time.perf_counter() - start
    wrong = round(report.error * report.images)
    print(report)
    print(f"{options.model}: {wrong} of {report.images} wrong, {report.error:.2%}, {seconds:.0f} s")
    for mistake in report.mistakes:
        print(f"  {mistake.without}: {mistake.error:.1%}")
    if options.json is not None:
        row = {
            "network": options.title or options.model.rsplit(":")[-1],
            "dataset": data.name,
            "images": report.images,
            "wrong": wrong,
            "error": report.error,
            "weights_sha256": sha256(options.weights),
            "torch": str(torch.__version__),
        }
        kept = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
        same = ("network", "dataset")
        write_json(options.json, [old for old in kept if any(old[key] != row[key] for key in same)] + [row])


if __name__ == "__main__":
    main()
