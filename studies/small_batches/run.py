"""How many images the source's statistics should count as (`VCoTTAConfig.prior_images`).

What: the error of BN, with the mixture of statistics that VCoTTA has, on clean images and on the four held-out
corruptions, in batches of 1 to 30 images. Nothing is learned.
How: the first test images, corruptions at severity 5 (for digits by the constants of ImageNet-C, which are hard for
them). The digits network is trained and warmed up here; for another data set give a network's weights. One torch
thread. Rows of other networks in the file are kept.

    python -m studies.small_batches.run                                                       # digits, two minutes
    python -m studies.small_batches.run --dataset cifar10 --model resnet-20 --weights resnet20.pt   # four minutes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from studies.files import results_of
from vcotta import to_variational
from vcotta._util.files import write_json
from vcotta.bayes import is_variational
from vcotta.corruptions import EXTRA
from vcotta.experiments.build import start_network
from vcotta.experiments.grid import run_spec
from vcotta.methods import VCoTTA, VCoTTAConfig
from vcotta.runs.spec import RunSpec

SIZES = (1, 2, 4, 8, 16, 30)
PRIORS = (None, 4, 8, 16)


def error(spec: RunSpec, net: nn.Module, corruption: str, size: int, prior: int | None) -> float:
    """Return the error in per cent on the images of a spec with one corruption, in batches of one size."""
    variational = net if is_variational(net) else to_variational(net)
    share = VCoTTA(variational, VCoTTAConfig(prior_images=prior)).share_of_batch(size)
    options = {} if prior is None else {"statistics": "prior", "alpha": share}
    spec = replace(spec, corruptions=(corruption,), batch_size=size, options=options)
    return 100 * float(run_spec(spec, model=net).summary()["mean"]["error"])


def rows_of(spec: RunSpec, net: nn.Module, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for every size and prior: the error on clean images, and the mean over the corruptions."""
    rows = []
    for size in sizes:
        for prior in PRIORS:
            clean, *others = (error(spec, net, kind, size, prior) for kind in ("none", *EXTRA))
            corrupted = sum(others) / len(others)
            rows.append({"network": spec.label, "size": size, "prior": prior, "clean": clean, "corrupted": corrupted})
            print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="digits", help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network, as for `vcotta run`; by default the data set's own")
    parser.add_argument("--weights", type=Path, help="its weights; the digits network is trained")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="images in a batch")
    parser.add_argument("--images", type=int, default=300, help="images of each corruption")
    out = results_of("small_batches") / "small-batches.json"
    parser.add_argument("--out", type=Path, default=out, help="file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    name = options.dataset if options.model is None else f"{options.dataset}, {options.model}"
    spec = RunSpec(
        "bn",
        options.dataset,
        options.model,
        options.weights,
        start="warmed" if options.weights is None else None,
        table=224 if options.dataset == "digits" else None,
        limit=options.images,
        label=name,
    )
    kept = json.loads(options.out.read_text(encoding="utf-8"))["rows"] if options.out.exists() else []
    rows = [row for row in kept if row["network"] != name] + rows_of(spec, start_network(spec), options.sizes)
    write_json(options.out, {"setting": {"images": options.images, "torch": str(torch.__version__)}, "rows": rows})
    print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
