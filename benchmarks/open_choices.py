"""Open choices: what the public descriptions of the methods leave open, settled on held-out corruptions.

What: for each question that paper and code of a method do not answer, or answer differently, the error and NLL of every
answer, one beside the other. The first answer of a question is the one in force.
How: ResNet-20 on CIFAR-10 (the weights of akamaster, error 8.27 %), the four extra corruptions at severities 3 to 5,
600 images of each, batches of 200, one continual stream of 36 batches; the fifteen corruptions that are reported are
never looked at. All answers see the same pixels. A seed is that of the pixels, of the views and of the preparation.
Methods that learn from the source get 10 000 training images; view averages are over 4 views to be affordable. CPU, one
torch thread a process, channels_last. Whatever is in the result file is not run again.

    vcotta data prepare cifar10
    python benchmarks/open_choices.py --weights resnet20.pt                  # a seed: about an hour of one core
    python benchmarks/open_choices.py --weights resnet20.pt --only "rmt: replay" "tca: intra" --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vcotta.corruptions import EXTRA
from vcotta.evaluate import run_stream
from vcotta.experiments.benchmark import Benchmark, find_benchmark
from vcotta.experiments.setup import adapter_for, stream_for
from vcotta.files import write_json
from vcotta.methods import configure
from vcotta.runtime import Runtime
from vcotta.streams import Batch, Stream

NETWORK = "resnet-20"
SEVERITIES = (3, 4, 5)
SOURCE_SHARE = 0.2
ROOT = Path(__file__).parents[1]

Options = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A question about a method, and its possible answers.

    Attributes:
        method: The method.
        question: What is open.
        answers: Options of the method, those in force first.
        given: Options that all answers share.
    """

    method: str
    question: str
    answers: Sequence[Options]
    given: Options = field(default_factory=dict)


def each(option: str, *values: Any) -> list[Options]:
    """One answer for each value of an option."""
    return [{option: value} for value in values]


FEW = {"views": 4, "lr": 1e-3}  # the step that was in force when these were run
SWAPPED = {"topology": 0.15, "alignment": 0.025}
MIXED = [{"statistics": "prior", "alpha": share} for share in (0.1, 0.5, 0.9)]
CHOICES = (
    Choice("rmt", "warm-up on the source", each("warm_up_images", 50_000, 0)),
    Choice("rmt", "replay of source images", each("replay", 0.0, 1.0)),
    Choice("rmt", "how many images to replay from", each("replay_images", 2000, 10_000), {"replay": 1.0}),
    Choice("tca", "features that are compared", each("unit", True, False), FEW),
    Choice("tca", "intra-class term", each("intra", "compact", "distance", "spread"), FEW),
    Choice("tca", "share of the batch in a centre", each("centre_share", 1.0, 0.5, 0.1), FEW),
    Choice("tca", "whose classes centres follow", each("labels", "student", "teacher"), FEW),
    Choice("tca", "student's share in the prediction", each("student_share", 0.5, 0.3), FEW),
    Choice("tca", "weights of the two terms", [{"topology": 0.025, "alignment": 0.15}, SWAPPED], FEW),
    Choice("palm", "tensors no longer chosen", each("freeze_unselected", False, True)),
    Choice("santa", "weight of the anchoring", each("anchor", 1.0, 2.0)),
    Choice("surgeon", "layers trained", [{"layers": "normalisation"}, {"layers": "all", "lr": 2.2e-5}]),
    Choice("deyo", "drop asked for on CIFAR", each("drop", 0.2, 0.3)),
    Choice("roid", "what the prior multiplies", each("prior_correction", "logits", "probabilities", "none")),
    Choice("cmf", "what the prior multiplies", each("prior_correction", "logits", "probabilities")),
    Choice("bn", "statistics for batches of 200", [{"statistics": "batch"}, *MIXED, {"statistics": "ema"}]),
)


@dataclass(frozen=True)
class Cell:
    """One run: a method, all its settings, and a seed."""

    method: str
    config: Options
    seed: int


def config(choice: Choice, answer: Options) -> Options:
    """All settings of a method under an answer."""
    return asdict(configure(choice.method, dataset="cifar10", **choice.given, **answer))


def cells(choices: Sequence[Choice], seeds: Sequence[int]) -> list[Cell]:
    """The runs that the choices need; answers that come to the same settings share one."""
    asked = itertools.product(seeds, ((choice, answer) for choice in choices for answer in choice.answers))
    found = [Cell(choice.method, config(choice, answer), seed) for seed, (choice, answer) in asked]
    return [cell for place, cell in enumerate(found) if cell not in found[:place]]


class Kept:
    """A stream whose batches are made once."""

    def __init__(self, stream: Stream) -> None:
        self.made, self.describe = list(stream.batches()), stream.describe

    def __len__(self) -> int:
        return len(self.made)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from index ``start`` on."""
        yield from self.made[start:]


@functools.lru_cache(1)
def kept_stream(benchmark: Benchmark, seed: int, limit: int) -> Kept:
    """The stream of a seed, the latest one being kept."""
    return Kept(stream_for(benchmark, seed=seed, corruptions=EXTRA, severity=SEVERITIES, limit=limit))


def measure(cell: Cell, benchmark: Benchmark, weights: Path, limit: int) -> dict[str, Any]:
    """Run a cell; its row, and under ``facts`` what it was run with."""
    torch.set_num_threads(1)
    runtime = Runtime("cpu", channels_last=True)
    model = benchmark.build(NETWORK, weights)
    adapter = adapter_for(benchmark, cell.method, model, seed=cell.seed, runtime=runtime, **cell.config)
    run = run_stream(adapter, kept_stream(benchmark, cell.seed, limit))
    mean, manifest = run.summary()["mean"], run.manifest
    facts = {key: manifest[key] for key in ("versions", "hardware", "runtime", "weights_sha256")}
    row = asdict(cell) | {"images": limit, "error": 100 * mean["error"], "nll": mean["nll"]}
    row["errors"] = [100 * part["error"] for part in run.summary()["domains"]]
    return row | {"facts": facts}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="weights of the ResNet-20")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="the choices whose 'method: question' has them")
    parser.add_argument("--limit", type=int, default=600, help="images of each corruption and severity")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "open-choices.json")
    asked = parser.parse_args(arguments)
    benchmark = replace(find_benchmark("cifar10"), source_share=SOURCE_SHARE)
    rows = json.loads(asked.out.read_text(encoding="utf-8"))["rows"] if asked.out.exists() else []
    done = [(Cell(row["method"], row["config"], row["seed"]), row["images"]) for row in rows]
    names = {f"{choice.method}: {choice.question}": choice for choice in CHOICES}
    chosen = [choice for name, choice in names.items() if any(words in name for words in asked.only or [""])]
    todo = [cell for cell in cells(chosen, asked.seeds) if (cell, asked.limit) not in done]
    with ProcessPoolExecutor(asked.workers, multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, c, benchmark, asked.weights, asked.limit) for c in todo]):
            rows.append(future.result())
            write_json(asked.out, {"choices": told(rows, asked.limit), "rows": rows})
            print({key: rows[-1][key] for key in ("method", "config", "seed", "error", "nll")}, flush=True)
    write_json(asked.out, {"choices": told(rows, asked.limit), "rows": rows})


def told(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The choices with what was found for each answer, as the table tells it."""
    found = []
    for choice in CHOICES:
        answers = []
        for answer in choice.answers:
            cell = (choice.method, config(choice, answer), limit)
            same = [row for row in rows if (row["method"], row["config"], row["images"]) == cell]
            scores = ("seed", "error", "nll", "errors")
            answers.append({"answer": answer, **{key: [row[key] for row in same] for key in scores}})
        found.append({"method": choice.method, "question": choice.question, "given": choice.given, "answers": answers})
    return found


if __name__ == "__main__":
    main()
