"""What the student learns from, and whether it should predict, too: VCoTTA with one thing changed, on a large network.

What: error and NLL on the four extra corruptions at severity 5, one after another, of VCoTTA with one thing changed in
what the student learns; each of three predictions. And TCA's, with its own settings.
How: each variant starts from the same network and sees the same images in the same order, without a guard. What source,
teacher and student say is recorded before each step, so that no prediction changes what is learned. Rows that are in
the file are kept.

    vcotta train --dataset cifar10 --epochs 100 --batch-size 128 --lr 0.1 --rise 0 --weight-decay 1e-4 \
        --out wrn.safetensors
    vcotta warmup --dataset cifar10 --weights wrn.safetensors --out wrn-warm.safetensors
    python -m studies.posterior.learning --dataset cifar10 --weights wrn.safetensors --warmed wrn-warm.safetensors \
        --device cuda
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.files import results_of
from studies.imagenet.run import first_images
from vcotta import Runtime, build_adapter, corrupt, to_variational
from vcotta._util.files import read_json, write_json
from vcotta.bayes import load_warmed
from vcotta.corruptions import EXTRA
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.methods import VCoTTA, VCoTTAConfig
from vcotta.methods.parts.losses import cross_entropy, entropy
from vcotta.methods.parts.mean_teacher import update_teacher
from vcotta.nn.augment import augmix
from vcotta.nn.views import random_view

Row = dict[str, Any]
PREDICTIONS = ("its own", "half image, half views", "with a quarter of the student")


@dataclass(frozen=True)
class Variant:
    """What is changed.

    Attributes:
        settings: Settings of the method.
        strong_views: Whether AugMix changes the student's random view.
        replayed: How many recent batches the student learns from again, in new views, with the targets they had.
        surest: Whether images count by how sure their target is, exp(-2 H).
    """

    settings: dict[str, Any] = field(default_factory=dict)
    strong_views: bool = False
    replayed: int = 0
    surest: bool = False


VARIANTS = {
    "default": Variant(),
    "target as it is": Variant({"temperature": 1.0}),
    "a third of the step": Variant({"lr": 0.01}),
    "a quarter of the source in the target": Variant({"alpha": 0.25}),
    "TCA's loss, average and about its step": Variant({"loss": "sce", "temperature": 1.0, "beta": 0.999, "lr": 0.01}),
    "AugMix views for the student": Variant(strong_views=True),
    "three recent batches again": Variant(replayed=3),
    "sure targets count more": Variant(surest=True),
}


class LearningVCoTTA(VCoTTA):
    """VCoTTA that learns as a variant says and keeps what its networks predicted.

    Attributes:
        variant: What is changed.
        seen: Log-probabilities of source (batch), teacher (1 + views, batch) and student (batch) before the step.
    """

    variant = Variant()
    seen: tuple[Tensor, Tensor, Tensor]

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Run the student, too, before its step."""
        with torch.no_grad():
            self._student = self.logits(self.networks["student"], images).log_softmax(-1)
        return super().predict_and_adapt(images)

    def _log_probs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        source, teacher = super()._log_probs(images)
        self.seen = source[0], teacher, self._student
        return source, teacher

    def _update(self, images: Tensor, log_target: Tensor, kl: Tensor) -> None:
        student, variant = self.networks["student"], self.variant
        if variant.settings or variant == Variant():
            super()._update(images, log_target, kl)
            return
        weights = torch.exp(-2 * entropy(log_target)) if variant.surest else torch.ones_like(log_target[:, 0])
        distances = [cross_entropy(log_target, self._student_log_probs(x)) for x in (images, self._view(images))]
        fit = (torch.stack(distances).mean(0) * weights / weights.mean()).mean()
        recent: list[tuple[Tensor, Tensor]] = getattr(self, "_recent_batches", [])
        for old, target in recent:
            again = self.logits(student, self._view(old), replayed=True).log_softmax(-1)
            fit = fit + cross_entropy(target, again).mean() / len(recent)
        self._recent_batches = [*recent, (images, log_target)][-variant.replayed :] if variant.replayed else []
        beta = self.config.beta ** self._scale_step(len(images))
        update_teacher(self.networks["teacher"], student, beta, self.minimise(fit + kl))

    def _view(self, images: Tensor) -> Tensor:
        view = random_view(images, flip=self.config.flip, per_image=True)
        return self.runtime.place_images(augmix(view) if self.variant.strong_views else view)


def predictions(source: Tensor, teacher: Tensor, student: Tensor) -> dict[str, Tensor]:
    """Return what is predicted besides the adapter's own prediction, unnormalised log-probabilities."""
    views = teacher[1:].mean(0) if len(teacher) > 1 else teacher[0]
    halves = ((source + teacher[0]) / 2 + views) / 2
    return dict(zip(PREDICTIONS[1:], (halves, torch.lerp(halves, student, 0.25)), strict=True))


def scores(outputs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return error in per cent and NLL."""
    wrong = (outputs.argmax(-1) != labels).double().mean().item()
    return round(100 * wrong, 2), round(F.cross_entropy(outputs, labels).item(), 4)


class Learning:
    """The rows, and what they are made of."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.data = options, find_benchmark(options.dataset)
        self.network = options.model or self.data.network
        self.plain = self.data.build(self.network, options.weights)
        test = first_images(self.data.load(), options.limit)
        self.order = np.random.RandomState(1).permutation(len(test))  # the same in each run
        self.images, labels = np.asarray(test.images), np.asarray(test.labels, dtype=np.int64)
        self.labels = torch.from_numpy(labels[self.order])
        self.rows: list[Row] = read_json(options.out) if options.out.exists() else []

    def start(self, start: str) -> nn.Module:
        """The network to start from; the plain one gets standard deviations, which predictions do not use."""
        if start == "warmed" and self.options.warmed:
            return load_warmed(self.plain, self.options.warmed)
        return to_variational(self.plain).eval()

    def add(self, start: str, name: str) -> None:
        """Add a row, unless it is there."""
        facts = {"network": self.network, "start": start, "variant": name, "limit": len(self.labels)}
        facts |= {"batch_size": self.data.batch_size, "seed": self.options.seed}
        if any(facts == {part: row[part] for part in facts} for row in self.rows):
            return
        device = self.options.device
        place = torch.cuda.get_device_name() if device.startswith("cuda") else "cpu"
        row = facts | {"predictions": self._run(start, name), "torch": str(torch.__version__), "hardware": place}
        self.rows.append(row)
        write_json(self.options.out, self.rows)
        print(start, name, row["predictions"], flush=True)

    def _run(self, start: str, name: str) -> dict[str, Row]:
        """Adapt to the four corruptions, one after another."""
        runtime, seed = Runtime(self.options.device), self.options.seed
        if name == "tca":
            net = self.start(start) if start == "warmed" else self.plain
            adapter = build_adapter("tca", net, dataset=self.data.name, runtime=runtime, seed=seed, guard=None)
        else:
            settings = VCoTTA.settings_for(self.data.name, VARIANTS[name].settings)
            adapter = LearningVCoTTA(self.start(start), VCoTTAConfig(**settings), runtime=runtime, seed=seed)
            adapter.variant = VARIANTS[name]
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for corruption in EXTRA:
            images = corrupt(self.images, corruption, 5, device=self.options.device)[self.order]
            outputs: dict[str, list[Tensor]] = defaultdict(list)
            for batch in np.array_split(images, max(1, round(len(images) / self.data.batch_size))):
                shown = torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255
                outputs[PREDICTIONS[0]].append(adapter(shown).cpu())
                if isinstance(adapter, LearningVCoTTA):
                    for kind, output in predictions(*adapter.seen).items():
                        outputs[kind].append(output.cpu())
            for kind, parts in outputs.items():
                found[kind].append(scores(torch.cat(parts), self.labels))
        return {
            kind: {
                "error": round(float(np.mean([error for error, _ in pairs])), 2),
                "nll": round(float(np.mean([nll for _, nll in pairs])), 4),
                "errors": [error for error, _ in pairs],
            }
            for kind, pairs in found.items()
        }


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    study = Learning(options)
    for start in options.starts:
        for name in options.variants:
            study.add(start, name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="data set, as for `vcotta run`")
    parser.add_argument("--model", help="network; by default the data set's own")
    parser.add_argument("--weights", type=Path, required=True, help="its plain weights")
    parser.add_argument("--warmed", type=Path, help="the same network from `vcotta warmup`")
    parser.add_argument("--starts", nargs="+", choices=["warmed", "plain"], default=["warmed", "plain"])
    names = [*VARIANTS, "tca"]
    parser.add_argument("--variants", nargs="+", choices=names, default=names, help="by default all")
    parser.add_argument("--limit", type=int, default=4000, help="images of each corruption")
    parser.add_argument("--seed", type=int, default=0, help="seed of the adapter")
    parser.add_argument("--device", default="cpu", help="where to compute, such as cuda")
    parser.add_argument("--out", type=Path, default=results_of("posterior") / "learning.json", help="file to write")
    return parser


if __name__ == "__main__":
    main()
