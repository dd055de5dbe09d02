"""How much of the prediction should be the source's? Rules that share it out, on streams that VCoTTA has adapted to.

What: on the streams of `studies.posterior.run`, error and NLL of the pooled prediction of source, teacher and student
with fixed shares and with shares that follow what the networks say; and how far each rule is from the fixed share that
is best for a stream in hindsight.
How: VCoTTA adapts by its defaults, without a guard, and what its networks say of each batch is kept. The rules then
predict from that, in order and without labels; no rule changes what is learned, and none knows the label prior. Source
and student predict the image, the teacher half from the image and half from its views. Two shares follow the stream,
with means over about the last 200 images: by entropy, a nat more entropy makes a network's odds e^-10 times as large;
by agreement, a nat more cross-entropy to the mean of all networks does.

    python -m studies.posterior.shares                                       # digits, about five minutes
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from studies.files import results_of
from studies.posterior.run import STREAMS, Study
from studies.posterior.run import parser as streams_parser
from vcotta import __version__
from vcotta._util.files import write_json
from vcotta.experiments.build import stream_for
from vcotta.methods import VCoTTA
from vcotta.methods.parts.losses import cross_entropy, entropy

Said = list[Tensor]
"""Log-probabilities of source, teacher and student for a batch."""
FIXED = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the source beside the teacher."""
IMAGES, ODDS = 200, 10.0


class Rule:
    """A prediction from what the networks say of one batch after another.

    Args:
        shares: Of source, teacher and student at the start.
        doubt: How much each network's answers speak against it; None for fixed shares.
    """

    def __init__(self, shares: Sequence[float], doubt: Callable[[Said], Tensor] | None = None) -> None:
        self.shares, self.doubt = torch.tensor(shares), doubt
        self.mean = torch.zeros(len(shares))

    def __call__(self, said: Said) -> Tensor:
        """Predict a batch, then learn from it."""
        asked = said[: len(self.shares)]
        shares = (self.shares.log() - ODDS * self.mean).softmax(0)
        if self.doubt is not None:
            weight = len(said[0]) / (len(said[0]) + IMAGES)
            self.mean = torch.lerp(self.mean, self.doubt(asked), weight)
        return torch.stack([share * one for share, one in zip(shares, asked, strict=True) if share]).sum(0)


def by_entropy(said: Said) -> Tensor:
    """Mean entropy of each network."""
    return torch.stack([entropy(one).mean() for one in said])


def by_agreement(said: Said) -> Tensor:
    """Cross-entropy of each network to the mean of all."""
    together = torch.stack(said).mean(0).log_softmax(-1)
    return torch.stack([cross_entropy(together, one).mean() for one in said])


def rules() -> dict[str, Rule]:
    """Return the rules by name, as they begin."""
    fixed = {f"source {share:g}": Rule([share, 1 - share]) for share in FIXED}
    return fixed | {
        "a third each, with the student": Rule([1 / 3, 1 / 3, 1 / 3]),
        "half and half, by entropy": Rule([0.5, 0.5], by_entropy),
        "half and half, by agreement": Rule([0.5, 0.5], by_agreement),
        "a third each, by agreement": Rule([1 / 3, 1 / 3, 1 / 3], by_agreement),
    }


class Listening(VCoTTA):
    """VCoTTA that keeps what its networks say of the batch at hand."""

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Ask the student, too, before its step."""
        with torch.no_grad():
            student = self.logits(self.networks["student"], images).log_softmax(-1)
        self.own = super().predict_and_adapt(images)
        self.said = [*self.priors, student]
        return self.own

    def _log_probs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        source, teacher = super()._log_probs(images)
        self.priors = [source[0], (teacher[0] + teacher[1:].mean(0)) / 2]
        return source, teacher


def kept(study: Study, network: str, seed: int, stream: str) -> Iterator[tuple[Tensor, Said, Tensor]]:
    """Yield for each batch the adapter's prediction, before the label prior, that of each network, and labels."""
    spec = study.spec(seed, stream, {}, STREAMS[stream])
    adapter = Listening(copy.deepcopy(study.warm(network, seed, "default")), spec.config, seed=seed)
    for batch in stream_for(spec).batches():
        adapter(batch.images)
        yield adapter.own, adapter.said, torch.as_tensor(batch.labels)


def scores(kept: Sequence[tuple[Tensor, Said, Tensor]]) -> list[dict[str, Any]]:
    """Return error and NLL of the adapter's own prediction and of each rule."""
    labels = torch.cat([truth for *_, truth in kept])
    predicted = {"default": torch.cat([own for own, *_ in kept])}
    predicted |= {name: torch.cat([rule(said) for _, said, _ in kept]) for name, rule in rules().items()}
    return [
        {
            "rule": name,
            "error": round(100 * (log_probs.argmax(1) != labels).double().mean().item(), 3),
            "nll": round(F.cross_entropy(log_probs, labels).item(), 4),
        }
        for name, log_probs in predicted.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(options)
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        for seed in options.seeds:
            for stream in STREAMS:
                facts = {"network": network, "seed": seed, "stream": stream, "limit": options.limit}
                facts |= {"torch": str(torch.__version__), "version": __version__}
                rows += [facts | row for row in scores(list(kept(study, network, seed, stream)))]
                write_json(options.out, rows)
                print(network, seed, stream, flush=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command: that of the streams, with another file and fewer images."""
    found = streams_parser()
    found.description = __doc__
    found.set_defaults(limit=400, out=results_of("posterior") / "shares.json")
    return found


if __name__ == "__main__":
    main()
