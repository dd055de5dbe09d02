"""Does the posterior mean anything, and is anything at test time better for it?

What: three parts, on the four extra corruptions, on which settings may be chosen, severity 5.
  warmups  one network after several warm-ups: clean error, that of eight draws of the posterior, BN on the corrupted
           images with means and draws, VCoTTA, and how much the standard deviations vary within a layer;
  cuts     the error when 30, 50 or 70 % of the weights are set to zero, chosen by |mean| / sigma and otherwise;
  streams  VCoTTA as it is and with one thing changed, on ordinary and on hard streams, without a guard.
How: every warm-up starts from the same plain network, every variant from the same warmed one. The networks are those of
the digits and a small one of three convolutions that nothing here was tuned on, trained here by the seed; another
network and data set can be given with plain weights. A row is written as soon as it is there; rows that are in the file
already are kept, so an interrupted study continues.

    python -m studies.posterior.run --limit 400                              # digits, about 50 minutes
    python -m studies.posterior.run --parts warmups cuts --seeds 0 --dataset cifar10 --model resnet-20 \
        --weights resnet20.safetensors --source-limit 10000 --limit 500 --epochs 3 --batch-size 100
    python -m studies.posterior.run --dataset cifar10 --model wrn-28-10 --weights wrn.safetensors --device cuda
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vcotta
from studies.files import results_of
from studies.posterior.meaning import BEFORE, PLAIN, Meaning
from vcotta import Runtime, WarmUpConfig, to_variational, warm_up
from vcotta._util.files import write_json
from vcotta.bayes import variational_parameters
from vcotta.bayes.layers import variational_layers
from vcotta.corruptions import EXTRA, corrupt
from vcotta.data import batches
from vcotta.experiments.benchmarks import DIGITS_TRAINING, Benchmark, find_benchmark
from vcotta.experiments.grid import run_spec
from vcotta.methods.vcotta import VCoTTA
from vcotta.runs.spec import RunSpec
from vcotta.training.trainer import train

VIEWS = 4
TABLES = {"digits": 224}
"""Severity constants with which digits are about as hard as on the fifteen corruptions."""

WARM_UPS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "before: one absolute step": BEFORE | PLAIN,
    "default": {},
    "without AugMix": PLAIN,
    "half the travel of sigma": PLAIN | {"sigma_travel": 8.0},
    "five times the divergence": PLAIN | {"kl_weight": 0.05},
    "widths from 0.1": PLAIN | {"sigma_ratio": 0.1},
    "widths from 1": PLAIN | {"sigma_ratio": 1.0},
    "three times the step": PLAIN | {"lr": 0.03},
    "a third of the step": PLAIN | {"lr": 0.003},
    "twice the epochs": PLAIN | {"epochs": 10},
}
"""Each with one thing changed from ``without AugMix``."""
UNITS_OF_SIGMA = "steps in units of sigma"
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "outputs drawn": {"sampling": "local"},
    "weights drawn": {"sampling": "weight"},
    UNITS_OF_SIGMA: {},
    "no divergence": {"kl_weight": 0.0},
    "ten times the divergence": {"kl_weight": 0.5},
    "the ELBO's divergence": {"kl_weight": None, "kl_lambda": -1.0},  # batch size, for -1
    "prediction of the teacher alone": {"prediction_alpha": 0.0},
    "prediction: a tenth of the source": {"prediction_alpha": 0.1},
    "prediction of the source alone": {"prediction_alpha": 1.0},
}
STREAMS: dict[str, dict[str, Any]] = {
    "continual": {},
    "severity 3": {"severity": 3},
    "four rounds": {"protocol": "loops", "protocol_options": {"rounds": 4}},
    "three times the step": {},
    "bursts": {"protocol": "bursts"},
    "correlated, delta 0.1": {"protocol": "correlated", "protocol_options": {"delta": 0.1}},
}


class SmallNet(nn.Module):
    """Three convolutions with BatchNorm and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _block(32, 32, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.fc(self.features(images).mean((2, 3)))
        return logits


def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(options)
    for seed in options.seeds:
        for network in options.networks if options.dataset == "digits" else [options.model]:
            for part in options.parts:
                getattr(study, part)(network, seed)


class Study:
    """The rows, and what they are made of."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.data: Benchmark = find_benchmark(options.dataset)
        self.runtime = Runtime(options.device)
        self.warm = functools.cache(self._warm)
        self.plain = functools.cache(self._plain)
        self.meaning = functools.cache(self._meaning)
        self.rows: dict[str, list[dict[str, Any]]] = {"warmups": [], "cuts": [], "streams": []}
        if options.out.exists():
            self.rows |= json.loads(options.out.read_text(encoding="utf-8"))

    def warmups(self, network: str, seed: int) -> None:
        """Add a row for each warm-up."""
        for name in WARM_UPS:
            if self._new("warmups", network, seed, name):
                net = self.warm(network, seed, name)
                self._add("warmups", network, seed, name, **self.meaning().of(net), **self._adapted(net, seed))

    def cuts(self, network: str, seed: int) -> None:
        """Add a row for each way to choose the weights that are set to zero."""
        net = self.warm(network, seed, "default")
        for share in (0.3, 0.5, 0.7):
            for rule in ("|mean| / sigma", "|mean|", "sigma", "random"):
                if self._new("cuts", network, seed, f"{rule}, {share}"):
                    error, nll = self.meaning().scores(cut(net, share, rule, seed), *self._test(), batchwise=True)
                    self._add("cuts", network, seed, f"{rule}, {share}", rule=rule, share=share, error=error, nll=nll)

    def streams(self, network: str, seed: int) -> None:
        """Add a row for each stream and variant."""
        for stream, words in STREAMS.items():
            for name, settings in VARIANTS.items():
                if self._new("streams", network, seed, f"{stream}: {name}"):
                    spec = self.spec(seed, stream, settings, words)
                    with units_of_sigma() if name == UNITS_OF_SIGMA else nullcontext():
                        mean = run_spec(spec, model=self.warm(network, seed, "default")).summary()["mean"]
                    scores = {"error": round(100 * mean["error"], 3), "nll": round(mean["nll"], 4)}
                    self._add("streams", network, seed, f"{stream}: {name}", stream=stream, variant=name, **scores)

    def spec(self, seed: int, stream: str, settings: dict[str, Any], words: dict[str, Any]) -> RunSpec:
        """Return the run of VCoTTA on a stream."""
        size = self.options.batch_size or self.data.batch_size
        settings = {"views": VIEWS, **settings}
        if settings.get("kl_lambda"):
            settings["kl_lambda"] = float(size)
        spec = RunSpec(
            "vcotta",
            self.options.dataset,
            None if self.data.trains_itself else self.options.model,
            options=settings,
            corruptions=EXTRA,
            table=TABLES.get(self.options.dataset),
            batch_size=size,
            limit=self.options.limit,
            seed=seed,
            guard=False,
            device=self.options.device,
        )
        if stream == "three times the step":
            spec = replace(spec, options=settings | {"lr": 3 * spec.config.lr})
        return replace(spec, **words)

    def _plain(self, network: str, seed: int) -> nn.Module:
        if not self.data.trains_itself:
            return self.data.build(self.options.model, self.options.weights)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = SmallNet() if network == "small" else self.data.build(None, seed=seed)
        return train(net, self.data.source(seed), DIGITS_TRAINING)

    def _warm(self, network: str, seed: int, name: str) -> nn.Module:
        settings, plain = WARM_UPS[name], self.plain(network, seed)
        if settings is None:
            return to_variational(plain).eval()
        config = replace(WarmUpConfig(flip=not self.data.trains_itself, seed=seed), **settings)
        if self.options.epochs:
            config = replace(config, epochs=config.epochs * self.options.epochs // WarmUpConfig().epochs)
        data = self.data.training_images()
        count = self.options.source_limit or len(data)
        loader = batches(
            np.asarray(data.images)[:count], data.labels[:count], 50 if count < 5000 else 64, shuffle_seed=seed
        )
        return warm_up(plain, loader, config, runtime=self.runtime, progress=False)

    def _meaning(self) -> Meaning:
        test, labels = self._test()
        limit = self.options.limit or len(test)
        table = TABLES.get(self.options.dataset)
        held_out = [(corrupt(test[:limit], name, severity=5, table=table), labels[:limit]) for name in EXTRA]
        size = self.options.batch_size or self.data.batch_size
        return Meaning(self.runtime, size, (test, labels), held_out)

    def _adapted(self, net: nn.Module, seed: int) -> dict[str, Any]:
        mean = run_spec(self.spec(seed, "continual", {}, {}), model=net).summary()["mean"]
        return {"adapted": {"error": round(100 * mean["error"], 3), "nll": round(mean["nll"], 4)}}

    def _test(self) -> tuple[Any, Any]:
        data = self.data.load()
        return np.asarray(data.images)[: self.options.clean], data.labels[: self.options.clean]

    def _new(self, part: str, network: str, seed: int, name: str) -> bool:
        return all((row["network"], row["seed"], row["name"]) != (network, seed, name) for row in self.rows[part])

    def _add(self, part: str, network: str, seed: int, name: str, **values: Any) -> None:
        facts = {"torch": str(torch.__version__), "device": self.options.device, "version": vcotta.__version__}
        facts |= {"dataset": self.options.dataset, "limit": self.options.limit}
        self.rows[part].append({"network": network, "seed": seed, "name": name, **values, **facts})
        write_json(self.options.out, self.rows)
        print(network, seed, name, values, flush=True)


@torch.no_grad()
def cut(net: nn.Module, share: float, rule: str, seed: int = 0) -> nn.Module:
    """Return a copy without a share of its variational weights, those of smallest value by a rule.

    Values are relative to the layer, so that the rule chooses among all layers.
    """
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    layers = [layer for _, layer in variational_layers(net)]
    values = []
    for layer in layers:
        sigma, size = F.softplus(layer.weight_rho), layer.weight.square().mean().sqrt()
        values.append(
            {
                "|mean| / sigma": layer.weight.abs() / sigma,
                "|mean|": layer.weight.abs() / size,
                "sigma": -sigma / size,
                "random": torch.rand(layer.weight.shape, generator=generator).to(sigma.device),
            }[rule]
        )
    bound = torch.cat([value.flatten() for value in values]).cpu().numpy()
    least = float(np.quantile(bound, share))
    for layer, value in zip(layers, values, strict=True):
        layer.weight[value < least] = 0
    return net


@contextmanager
def units_of_sigma() -> Iterator[None]:
    """Let VCoTTA's steps within the block be in proportion to each weight's standard deviation.

    The mean step of a tensor stays as it is. The package has no such option, as it wins nowhere.
    """
    minimise = VCoTTA.minimise

    def scaled(self: VCoTTA, loss: Tensor, when: Tensor | None = None) -> Tensor:
        student = self.networks["student"]
        before = [(mean, mean.detach().clone(), F.softplus(rho)) for _, mean, rho in variational_parameters(student)]
        done = minimise(self, loss, when)
        with torch.no_grad():
            for mean, old, sigma in before:
                mean.copy_(torch.lerp(old, mean, sigma / sigma.mean()))
        return done

    VCoTTA.minimise = scaled  # type: ignore[method-assign]
    try:
        yield
    finally:
        VCoTTA.minimise = minimise  # type: ignore[method-assign]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["warmups", "cuts", "streams"]
    found.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what to measure")
    found.add_argument("--networks", nargs="+", default=["digits", "small"], help="networks on digits")
    found.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of network and adapter")
    found.add_argument("--dataset", default="digits", help="data set, as for `vcotta run`")
    found.add_argument("--model", help="network of another data set")
    found.add_argument("--weights", type=Path, help="its plain weights")
    found.add_argument("--source-limit", type=int, help="source images of the warm-up; by default all")
    found.add_argument("--epochs", type=int, help="epochs of the warm-up in place of five")
    found.add_argument("--limit", type=int, help="images of each corruption; by default all")
    found.add_argument("--clean", type=int, help="clean test images; by default all")
    found.add_argument("--batch-size", type=int, help="by default the data set's own")
    found.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    found.add_argument("--out", type=Path, default=results_of("posterior") / "posterior.json", help="file to write")
    return found


if __name__ == "__main__":
    main()
