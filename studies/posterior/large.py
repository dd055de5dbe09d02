"""Warm-ups of a network that takes a GPU, and what VCoTTA does with the result.

What: for each warm-up, the scores of means and draws on clean images and on the four extra corruptions, severity 5, by
which settings may be chosen, and VCoTTA's errors on these as a stream; then VCoTTA with one thing changed, from the
warm-up that --keep names.
How: every warm-up starts from the same plain network. Corrupted images are made once, in the work folder, and so are
the warmed networks. A row is written as soon as it is there; rows that are in the file already are kept.

    python -m studies.posterior.large --dataset cifar10 --weights wrn.safetensors --device cuda --keep default \
        --warm-ups none before default "without AugMix"
    python -m studies.posterior.large --dataset imagenet --model resnet-50-v1 --weights resnet50.safetensors \
        --source folder:POOL --device cuda --limit 1000 --keep default
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from studies.files import results_of
from studies.imagenet.run import first_images
from studies.posterior.meaning import BEFORE, PLAIN, Meaning
from vcotta import Runtime, WarmUpConfig, to_variational, warm_up
from vcotta._util.files import read_json, write_json
from vcotta._util.progress import display
from vcotta.bayes import load_warmed, save_warmed
from vcotta.corruptions import EXTRA
from vcotta.data.corrupted import write_corrupted
from vcotta.experiments.benchmarks import find_benchmark, find_source
from vcotta.experiments.grid import run_spec
from vcotta.runs.spec import RunSpec

Row = dict[str, Any]
WARM_UPS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "before": BEFORE | PLAIN,
    "before, with AugMix": BEFORE,
    "default": {},
    "without AugMix": PLAIN,
    "three times the step": {"lr": 0.03},
    "a third of the step": {"lr": 0.003},
    "a third of the step, without AugMix": PLAIN | {"lr": 0.003},
    "30 times the divergence": {"kl_weight": 0.3},
}
"""``before`` takes one absolute step and learns no widths."""
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "prediction: a tenth of the source": {"prediction_alpha": 0.1},
    "outputs drawn": {"sampling": "local"},
    "ten times the divergence": {"kl_weight": 0.5},
    "no divergence": {"kl_weight": 0.0},
    "a full batch has 200 images": {"full_batch": 200},
    "a third of the step": {"lr": 0.01},
    "half the step": {"lr": 0.015},
    "twice the step": {"lr": 0.06},
    "slower average": {"beta": 0.997},
    "batch statistics": {"statistics": "batch"},
    "no label prior": {"label_prior": False},
    "32 views": {"views": 32},
    "2 views": {"views": 2},
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    study = Large(options)
    for name in options.warm_ups:
        study.warm_up(name)
    if options.keep:
        for variant in options.variants:
            study.variant(options.keep, variant)


class Large:
    """The rows, and what they are made of."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data = find_benchmark(options.dataset)
        self.source = find_source(options.source, self.data) if options.source else self.data
        self.runtime = Runtime(options.device)
        self.network = options.model or self.data.network
        self.plain = self.data.build(self.network, options.weights)
        test = first_images(self.data.load(), options.limit)
        self.folder = options.work / f"{options.dataset}-{len(test)}"
        write_corrupted(test, self.folder, (5,), corruptions=EXTRA, device=options.device)
        labels = np.array(test.labels)
        held_out = [(np.load(self.folder / f"{name}.npy", mmap_mode="r"), labels) for name in EXTRA]
        self.meaning = Meaning(self.runtime, self.data.batch_size, (test.images, labels), held_out)
        self.rows: list[Row] = read_json(options.out) if options.out.exists() else []

    def warm_up(self, name: str) -> None:
        """Add the row of a warm-up."""
        if self._is_there(name, "default", "warm-up"):
            return
        begun = time.monotonic()
        net, words = self._warmed(name)
        seconds = round(time.monotonic() - begun, 1)
        facts = {**self.meaning.of(net), "adapted": self._adapted(net, {}), "seconds": seconds, "words": words}
        self._add(name, "default", "warm-up", **facts)

    def variant(self, name: str, variant: str) -> None:
        """Add the row of VCoTTA with one thing changed."""
        if not self._is_there(name, variant, "variant"):
            net, _ = self._warmed(name)
            self._add(name, variant, "variant", adapted=self._adapted(net, VARIANTS[variant]))

    def _warmed(self, name: str) -> tuple[nn.Module, list[str]]:
        """The network after a warm-up, from its file if it was made before, and what the warm-up warned of."""
        settings, options = WARM_UPS[name], self.options
        name = name.replace(" ", "-").replace(",", "")
        path = options.work / f"{options.dataset}-{self.network}-{name}-{options.epochs}.safetensors"
        told = path.with_suffix(".json")
        if settings is None:
            return to_variational(self.plain).eval(), []
        if path.exists():
            return load_warmed(self.plain, path), read_json(told)
        config = WarmUpConfig(**settings)
        if options.epochs:
            config = replace(config, epochs=options.epochs)
        loader = self.source.source(config.seed, options.device)
        with warnings.catch_warnings(record=True) as caught, display() as task:
            warnings.simplefilter("always")
            net = warm_up(self.plain, loader, config, runtime=self.runtime, progress=task("Warm-up", "loss {:.3f}"))
        words = [str(each.message) for each in caught if issubclass(each.category, UserWarning)]
        write_json(told, words)
        save_warmed(net, path, **asdict(config))
        return net, words

    def _adapted(self, net: nn.Module, settings: Row) -> Row:
        spec = RunSpec(
            "vcotta",
            self.options.dataset,
            self.network,
            options={"views": self.options.views, **settings},
            corruptions=EXTRA,
            corrupted=self.folder,
            guard=False,
            device=self.options.device,
        )
        summary = run_spec(spec, model=net).summary()
        mean, domains = summary["mean"], summary["domains"]
        return {
            "error": round(100 * mean["error"], 3),
            "nll": round(mean["nll"], 4),
            "ece": round(mean["ece"], 4),
            "errors": [round(100 * domain["error"], 2) for domain in domains],
            "seconds": round(summary["seconds"], 1),
            "peak_gib": round(summary["peak_memory"] / 2**30, 2),
        }

    def _is_there(self, name: str, variant: str, what: str) -> bool:
        facts = self._facts(name, variant, what)
        return any(facts == {part: row[part] for part in facts} for row in self.rows)

    def _facts(self, name: str, variant: str, what: str) -> Row:
        """What identifies a row."""
        chosen = self.options
        facts = {"dataset": chosen.dataset, "network": self.network, "epochs": chosen.epochs, "views": chosen.views}
        return facts | {"warm_up": name, "variant": variant, "what": what, "limit": chosen.limit}

    def _add(self, name: str, variant: str, what: str, **values: Any) -> None:
        place = torch.cuda.get_device_name() if self.options.device.startswith("cuda") else "cpu"
        where = {"torch": str(torch.__version__), "hardware": place}
        self.rows.append(self._facts(name, variant, what) | values | where)
        write_json(self.options.out, self.rows)
        print(self.network, name, variant, values, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network; by default the data set's own")
    parser.add_argument("--weights", type=Path, required=True, help="its plain weights")
    parser.add_argument("--source", help="source images, folder:DIR; by default the data set's own training images")
    parser.add_argument("--warm-ups", nargs="+", choices=WARM_UPS, default=list(WARM_UPS), help="by default all")
    parser.add_argument("--keep", choices=WARM_UPS, help="the warm-up from which variants start; without it none do")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="by default all")
    parser.add_argument("--epochs", type=int, help="epochs of the warm-ups in place of five")
    parser.add_argument("--limit", type=int, default=2000, help="images of each corruption, and clean ones")
    parser.add_argument("--views", type=int, default=8, help="views of VCoTTA")
    parser.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    parser.add_argument("--work", type=Path, default=Path("runs/posterior"), help="folder of images and networks")
    parser.add_argument("--out", type=Path, default=results_of("posterior") / "large.json", help="file to write")
    return parser


if __name__ == "__main__":
    main()
