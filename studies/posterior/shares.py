"""How much of the prediction should be the source's? Rules that share it out, on streams that VCoTTA has adapted to.

What: on the streams of `studies.posterior.run`, error and NLL of the pooled prediction of source, teacher and student
with fixed shares, and with shares that follow what the networks predict; and how far each rule is from the fixed share
that is best for a stream in hindsight.
How: VCoTTA adapts by its defaults, without a guard, and what its networks predict for each batch is recorded. The rules
then predict from that, in order and without labels. No rule changes what is learned, and none uses the label prior.
Source and student predict the image, the teacher half from the image and half from its views. Two shares follow the
stream, with means over about the last 200 images: by entropy, a nat more entropy makes a network's odds e^-10 times as
large; by agreement, a nat more cross-entropy to the mean of all networks does.

    python -m studies.posterior.shares                                       # digits, about five minutes
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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

LogProbs = list[Tensor]
"""Log-probabilities of source, teacher and student for a batch."""
FIXED = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
"""Shares of the source beside the teacher."""
HORIZON = 200
"""Images over which a penalty is averaged."""
SHARPNESS = 10.0
"""By how much a nat of penalty lowers the logarithm of a network's share."""


class Rule:
    """A prediction from the log-probabilities of several networks, batch after batch.

    Args:
        shares: Of source, teacher and student at the start; of the first two if there are two.
        penalty: What counts against each network, from its log-probabilities; None for fixed shares.
    """

    def __init__(self, shares: Sequence[float], penalty: Callable[[LogProbs], Tensor] | None = None) -> None:
        self.shares, self.penalty = torch.tensor(shares), penalty
        self.mean = torch.zeros(len(shares))

    def __call__(self, log_probs: LogProbs) -> Tensor:
        """Predict a batch, then update the shares."""
        used = log_probs[: len(self.shares)]
        shares = (self.shares.log() - SHARPNESS * self.mean).softmax(0)
        if self.penalty is not None:
            images = len(used[0])
            self.mean = torch.lerp(self.mean, self.penalty(used), images / (images + HORIZON))
        return torch.stack([share * one for share, one in zip(shares, used, strict=True) if share]).sum(0)


def mean_entropy(log_probs: LogProbs) -> Tensor:
    """The mean entropy of each network's predictions."""
    return torch.stack([entropy(one).mean() for one in log_probs])


def disagreement(log_probs: LogProbs) -> Tensor:
    """The mean cross-entropy of each network to the pooled prediction of all."""
    pooled = torch.stack(log_probs).mean(0).log_softmax(-1)
    return torch.stack([cross_entropy(pooled, one).mean() for one in log_probs])


def rules() -> dict[str, Rule]:
    """Return the rules by name, as they begin."""
    fixed = {f"source {share:g}": Rule([share, 1 - share]) for share in FIXED}
    return fixed | {
        "a third each, with the student": Rule([1 / 3, 1 / 3, 1 / 3]),
        "half and half, by entropy": Rule([0.5, 0.5], mean_entropy),
        "half and half, by agreement": Rule([0.5, 0.5], disagreement),
        "a third each, by agreement": Rule([1 / 3, 1 / 3, 1 / 3], disagreement),
    }


class RecordingVCoTTA(VCoTTA):
    """VCoTTA that keeps what its networks predict for the batch at hand.

    Attributes:
        pooled: The adapter's own prediction, before the label prior.
        log_probs: Those of source, teacher and student, before its step.
    """

    pooled: Tensor
    log_probs: LogProbs

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Run the student, too, before its step."""
        with torch.no_grad():
            student = self.logits(self.networks["student"], images).log_softmax(-1)
        self.pooled = super().predict_and_adapt(images)
        self.log_probs = [*self._priors, student]
        return self.pooled

    def _log_probs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        source, teacher = super()._log_probs(images)
        self._priors = [source[0], (teacher[0] + teacher[1:].mean(0)) / 2]
        return source, teacher


Recorded = tuple[Tensor, LogProbs, Tensor]
"""Of a batch: the adapter's prediction, that of each network, and the labels."""


def recorded(study: Study, network: str, seed: int, stream: str) -> Iterator[Recorded]:
    """Adapt to a stream, and yield what is needed of each batch."""
    spec = study.spec(seed, stream, {}, STREAMS[stream])
    adapter = RecordingVCoTTA(copy.deepcopy(study.warm(network, seed, "default")), spec.config, seed=seed)
    for batch in stream_for(spec).batches():
        adapter(batch.images)
        yield adapter.pooled, adapter.log_probs, torch.as_tensor(batch.labels)


def scores(batches: Sequence[Recorded]) -> list[dict[str, Any]]:
    """Return error and NLL of the adapter's own prediction and of each rule."""
    labels = torch.cat([truth for *_, truth in batches])
    predicted = {"default": torch.cat([pooled for pooled, *_ in batches])}
    for name, rule in rules().items():
        predicted[name] = torch.cat([rule(log_probs) for _, log_probs, _ in batches])
    return [
        {
            "rule": name,
            "error": round(100 * (log_probs.argmax(1) != labels).double().mean().item(), 3),
            "nll": round(F.cross_entropy(log_probs, labels).item(), 4),
        }
        for name, log_probs in predicted.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    study = Study(streams_parser().parse_args(["--limit", str(options.limit)]))
    rows: list[dict[str, Any]] = []
    for network in options.networks:
        for seed in options.seeds:
            for stream in STREAMS:
                facts = {"network": network, "seed": seed, "stream": stream, "limit": options.limit}
                facts |= {"torch": str(torch.__version__), "version": __version__}
                rows += [facts | row for row in scores(list(recorded(study, network, seed, stream)))]
                write_json(options.out, rows)
                print(network, seed, stream, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=["digits", "small"], help="networks on digits")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="seeds of network and adapter")
    parser.add_argument("--limit", type=int, default=400, help="images of each corruption")
    parser.add_argument("--out", type=Path, default=results_of("posterior") / "shares.json", help="file to write")
    return parser


if __name__ == "__main__":
    main()
