"""Open one step of VCoTTA and keep every number of it.

What: VCoTTA with its default settings adapts to digits in Gaussian noise and then in low contrast; of one batch of 50
images the step is opened: what source and teacher say of three images, alpha, the target, the terms of the loss, how
far student and teacher move, and what the same images get after it.
How: digits, one CPU thread; under a minute. Beside the numbers, the three images are drawn for the page.

    python -m studies.worked_step.run
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import vcotta
from studies.files import ROOT, results_of
from vcotta._util.files import write_json
from vcotta.bayes import kl_divergence, variational_parameters
from vcotta.experiments.build import start_network, stream_for
from vcotta.methods import VCoTTA
from vcotta.methods.parts.losses import entropy
from vcotta.methods.parts.prior_mixture import mixing_weight
from vcotta.runs.spec import RunSpec

SPEC = RunSpec("vcotta", corruptions=("gaussian_noise", "contrast"), guard=False)
OPENED = 24
"""The batch that is opened: the ninth in low contrast, after sixteen in noise."""
PICTURE = ROOT / "docs" / "pictures" / "worked-step.png"


class OpenedVCoTTA(VCoTTA):
    """VCoTTA that keeps what source and teacher said of the latest batch, and what it made of that."""

    def _target(self, source: Tensor, teacher: Tensor, alpha: Tensor) -> Tensor:
        self.seen = {"source": source[0], "teacher": teacher[0], "alpha": alpha.squeeze(-1)}
        return super()._target(source, teacher, alpha)

    def _update(self, images: Tensor, log_target: Tensor, kl: Tensor) -> None:
        self.seen["target"] = log_target
        super()._update(images, log_target, kl)


def opened_step(adapter: OpenedVCoTTA, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """Take one step on a batch, and return its numbers."""
    before = adapter.state_dict()
    networks = {role: _weights(net) for role, net in adapter.networks.items()}
    kl_to_source, kl_to_teacher = _divergences(adapter)
    prediction = adapter(images)
    last, seen = dict(adapter.last), adapter.seen
    moved = {role: _moved(networks[role], _weights(net)) for role, net in adapter.networks.items()}
    kl_after, _ = _divergences(adapter)
    same = {name: before[name] for name in ("rng", "statistics", "label_prior")}  # views and what came before it
    adapter.load_state_dict(adapter.state_dict() | same)
    again = adapter.predict(images, samples=1).probabilities.log()
    rule = mixing_weight(seen["source"][None], seen["teacher"][None], "entropy", adapter.config.tau)
    entropies = {role: entropy(seen[role]) for role in ("source", "teacher")}
    rows = []
    for place in _chosen(entropies["source"], entropies["teacher"]):
        said = {
            role: _answer(log_probs[place])
            for role, log_probs in (*seen.items(), ("before", prediction), ("after", again))
            if role != "alpha"
        }
        said["source"]["entropy"], said["teacher"]["entropy"] = (float(entropies[role][place]) for role in entropies)
        row = {"place": place, "label": int(labels[place]), "alpha": float(seen["alpha"][place])}
        rows.append(row | {"alpha_by_entropy": float(rule[place])} | said)
    errors = {"source": seen["source"], "teacher": seen["teacher"], "before": prediction, "after": again}
    return {
        "step": adapter.steps,
        "images": rows,
        "errors": {name: int((said.argmax(1) != labels).sum()) for name, said in errors.items()},
        "loss": {
            "cross_entropy": last["fit"],
            "kl_to_source": kl_to_source,
            "kl_to_teacher": kl_to_teacher,
            "kappa": adapter.config.kl_weight,
            "kl_term": last["kl"],
            "sum": last["loss"],
        },
        "moved_in_sigmas": moved,
        "kl_to_source_after": kl_after,
    }


def _chosen(source: Tensor, teacher: Tensor) -> list[int]:
    """The image both are most confident of, and those on which the teacher or the source leads by most."""
    return [int((source + teacher).argmin()), int((source - teacher).argmax()), int((teacher - source).argmax())]


def _answer(log_probs: Tensor) -> dict[str, Any]:
    return {"class": int(log_probs.argmax()), "probability": float(log_probs.max().exp())}


def _weights(net: nn.Module) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of all weights."""
    found = list(variational_parameters(net))
    means = torch.cat([mean.detach().flatten() for _, mean, _ in found])
    return means, torch.cat([nn.functional.softplus(rho.detach()).flatten() for _, _, rho in found])


def _moved(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> float:
    """Root mean square of how far the means moved, in standard deviations."""
    return float(((new[0] - old[0]) / old[1]).square().mean().sqrt())


def _divergences(adapter: VCoTTA) -> tuple[float, float]:
    """KL of the student to source and to teacher, in nats per weight."""
    student, teacher = adapter.networks["student"], adapter.networks["teacher"]
    count = sum(mean.numel() for _, mean, _ in variational_parameters(student))
    with torch.no_grad():
        return float(kl_divergence(student, adapter.start) / count), float(kl_divergence(student, teacher) / count)


def draw(images: Tensor, path: Path) -> None:
    """Draw images side by side, four times as large, with transparent gaps."""
    opaque = torch.cat([images, torch.ones_like(images[:, :1])], 1)
    pixels = torch.cat(list(nn.functional.pad(opaque, (2, 2, 2, 2))), -1).permute(1, 2, 0)
    picture = Image.fromarray(pixels.mul(255).round().byte().numpy())
    picture.resize((4 * picture.width, 4 * picture.height), Image.Resampling.NEAREST).save(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=results_of("worked_step") / "worked_step.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--batch", type=int, default=OPENED, help="the batch that is opened, counted from 0")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    adapter = OpenedVCoTTA(start_network(SPEC), SPEC.config, seed=SPEC.seed)
    for place, batch in enumerate(stream_for(SPEC).batches()):
        if place == options.batch:
            break
        adapter(batch.images)
    found = opened_step(adapter, batch.images, batch.labels)
    stream = {"corruption": batch.domain, "batch_size": len(batch.labels)}
    write_json(
        options.out, {"spec": str(SPEC), "torch": torch.__version__, "vcotta": vcotta.__version__} | stream | found
    )
    draw(batch.images[[row["place"] for row in found["images"]]], options.picture)


if __name__ == "__main__":
    main()
