"""The clean error of a network that somebody else trained, from files named on the command line.

What: the share of wrong predictions on labelled clean images, the number of them, the hash of the weights and the time.
How: any network that `vcotta.models.build_network` knows, images in [0, 1], float32, eval mode, one pass, one thread.
Where the error is not the expected one, `vcotta.check` says what may be wrong.

    python benchmarks/offtheshelf.py --images test_images.npy --labels test_labels.npy \
        --model resnet-20 --weights resnet20.pt --expected 0.0827
    python benchmarks/offtheshelf.py --images val_images.npy --labels val_labels.npy \
        --model my_network.py:factory --weights my_weights.pt

Images are uint8 (n, height, width, 3), labels integers (n,), both `.npy`; `vcotta data prepare` writes CIFAR like that.

Measured on CIFAR-10's 10 000 test images with akamaster's ResNets, torch 2.13 on one CPU thread: ResNet-20 8.27 %,
ResNet-32 7.37 %, ResNet-44 6.90 %, ResNet-56 6.61 %, exactly the published errors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from vcotta.check import check_network
from vcotta.data import ImageData
from vcotta.files import sha256, write_json
from vcotta.models import build_network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=Path, required=True, help="uint8 array (n, height, width, 3), .npy")
    parser.add_argument("--labels", type=Path, required=True, help="integer array (n,), .npy")
    parser.add_argument("--model", required=True, help="a name for build_network, or file.py:factory")
    parser.add_argument("--weights", type=Path, required=True, help="checkpoint")
    parser.add_argument("--expected", type=float, help="the published error, a fraction")
    parser.add_argument("--limit", type=int, help="use only this many images, spread evenly")
    parser.add_argument("--batch-size", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the result to this file too")
    asked = parser.parse_args()

    torch.set_num_threads(1)
    images = np.load(asked.images, mmap_mode="r", allow_pickle=False)
    labels = np.load(asked.labels, allow_pickle=False).astype(np.int64)
    data = ImageData(images, labels, tuple(map(str, range(int(labels.max()) + 1))), asked.images.stem)
    model = build_network(asked.model, len(data.class_names), asked.weights)
    start = time.perf_counter()
    report = check_network(model, data, limit=asked.limit, expected=asked.expected, batch_size=asked.batch_size)
    seconds = time.perf_counter() - start
    wrong = round(report.error * report.images)
    print(report)
    print(f"{asked.model}: {wrong} of {report.images} wrong, {report.error:.2%}, {seconds:.0f} s")
    for slip in report.slips:
        print(f"  {slip.without}: {slip.error:.1%}")
    if asked.json is not None:
        write_json(
            asked.json,
            {
                "model": asked.model,
                "weights_sha256": sha256(asked.weights),
                "images": report.images,
                "wrong": wrong,
                "error": report.error,
                "seconds": round(seconds, 1),
                "torch": str(torch.__version__),
            },
        )


if __name__ == "__main__":
    main()
