"""Compare the answers to what the public descriptions of the methods leave open, on held-out corruptions.

What: for each question that paper and code of a method do not answer, or answer differently, the error and NLL of every
answer. The first answer of a question is the one in force.
How: ResNet-20 on CIFAR-10 (the weights of akamaster, error 8.27 %), the four extra corruptions at severities 3 to 5,
600 images of each, batches of 200, one continual stream of 36 batches; the fifteen corruptions that are reported are
never used. All answers see the same pixels. A seed is that of the pixels, of the views and of the preparation. Methods
that learn from the source get 10 000 training images; view averages are over 4 views to be affordable. CPU, one torch
thread a process. A run that the result file has already is not repeated.

    vcotta data prepare cifar10
    python -m studies.open_choices.run --weights resnet20.pt                  # a seed: about an hour of one core
    python -m studies.open_choices.run --weights resnet20.pt --only "rmt: replay" "tca: intra" --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from studies.files import results_of
from vcotta._util.files import write_json
from vcotta.corruptions import EXTRA
from vcotta.experiments.grid import run_spec
from vcotta.methods import find_method
from vcotta.runs.spec import RunSpec

SPEC = RunSpec("bn", "cifar10", "resnet-20", corruptions=EXTRA, severity=(3, 4, 5))
"""What all runs have in common."""
SOURCE_SHARE = 0.2

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
    Choice("tca", "intra-class term", each("intra", "compact", "spread"), FEW),
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


def settings(choice: Choice, answer: Options) -> Options:
    """Return all settings of a method under an answer."""
    return asdict(spec_of(SPEC, choice, answer).config)


def spec_of(spec: RunSpec, choice: Choice, answer: Options, seed: int = 0) -> RunSpec:
    """Return the run of an answer."""
    options = {"dataset": "cifar10", **choice.given, **answer}
    share = 1.0 if find_method(choice.method).card.source == "nothing" else SOURCE_SHARE
    return replace(spec, method=choice.method, options=options, source_share=share, seed=seed, stream_seed=seed)


def specs_of(spec: RunSpec, choices: Sequence[Choice], seeds: Sequence[int]) -> list[RunSpec]:
    """Return the runs that the choices need; answers with the same settings share one."""
    answers = [(choice, answer) for choice in choices for answer in choice.answers]
    return list(dict.fromkeys(spec_of(spec, choice, answer, seed) for seed in seeds for choice, answer in answers))


def measure(spec: RunSpec) -> dict[str, Any]:
    """Run a spec and return its row, with the hardware and versions under ``facts``."""
    torch.set_num_threads(1)
    run = run_spec(spec)
    mean = run.summary()["mean"]
    return {
        "method": spec.method,
        "config": asdict(spec.config),
        "seed": spec.seed,
        "images": run.manifest["stream"]["images_per_domain"],
        "error": 100 * mean["error"],
        "nll": mean["nll"],
        "errors": [100 * part["error"] for part in run.summary()["domains"]],
        "facts": {key: run.manifest[key] for key in ("versions", "hardware", "runtime", "weights_sha256")},
    }


def answered(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """Return the choices with the scores of each answer, as the table shows them."""
    found = []
    for choice in CHOICES:
        answers = []
        for answer in choice.answers:
            which = (choice.method, settings(choice, answer), limit)
            same = [row for row in rows if (row["method"], row["config"], row["images"]) == which]
            scores = ("seed", "error", "nll", "errors")
            answers.append({"answer": answer, **{key: [row[key] for row in same] for key in scores}})
        found.append({"method": choice.method, "question": choice.question, "given": choice.given, "answers": answers})
    return found


def study(spec: RunSpec, choices: Sequence[Choice], seeds: Sequence[int], out: Path, pool: Executor) -> None:
    """Run all answers that the file does not have yet, and write it anew after each."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    done = [(row["method"], row["config"], row["seed"], row["images"]) for row in rows]
    missing = [
        one
        for one in specs_of(spec, choices, seeds)
        if (one.method, asdict(one.config), one.seed, one.limit) not in done
    ]
    for future in as_completed([pool.submit(measure, one) for one in missing]):
        rows.append(future.result())
        write_json(out, {"choices": answered(rows, spec.limit), "rows": rows})
        print({key: rows[-1][key] for key in ("method", "config", "seed", "error", "nll")}, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True, help="weights of the ResNet-20")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="the choices whose 'method: question' has them")
    parser.add_argument("--limit", type=int, default=600, help="images of each corruption and severity")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=results_of("open_choices") / "open-choices.json")
    options = parser.parse_args(arguments)
    names = {f"{choice.method}: {choice.question}": choice for choice in CHOICES}
    chosen = [choice for name, choice in names.items() if any(words in name for words in options.only or [""])]
    spec = replace(SPEC, weights=options.weights, limit=options.limit)
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        study(spec, chosen, options.seeds, options.out, pool)


if __name__ == "__main__":
    main()
