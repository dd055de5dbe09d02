"""The table of what the methods' descriptions leave open."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table


def open_choices_text() -> str:
    """Return for each question its answers: mean error and NLL, and by seed the error over that of the first answer.

    The standard error of that difference is over the corruptions and severities.
    """
    found = read_result("open_choices", "open-choices.json")
    shown = []
    for choice in found["choices"]:
        question = [f"`{choice['method']}`", choice["question"] + _with(choice["given"])]
        seeds = sorted(set.intersection(*(set(one["seed"]) for one in choice["answers"])))
        usual = _of_seeds(choice["answers"][0], "errors", seeds)
        for place, one in enumerate(choice["answers"]):
            parts, errors, nlls = (_of_seeds(one, score, seeds) for score in ("errors", "error", "nll"))
            over = ", ".join(_difference(ours, first) for ours, first in zip(parts, usual, strict=True))
            scores = (f"{statistics.mean(errors):.2f}", over if place else "in force", f"{statistics.mean(nlls):.3f}")
            shown.append((*(question if place == 0 else ("", "")), _options(one["answer"]), *scores))
    rows = found["rows"]
    facts, images = rows[0]["facts"], " or ".join(sorted({str(row["images"]) for row in rows}))
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    note = (
        f"ResNet-20 for CIFAR-10, {images} images of each of the four extra corruptions at severities 3, 4 and 5, "
        f"batches of 200, seed {seeds}; ± is the standard error of the difference over the twelve corruptions and "
        f"severities. {facts['hardware']}, torch {facts['versions']['torch']} (`studies/open_choices/run.py`)."
    )
    headings = ["Method", "Left open", "Answer", "Error %", "over the one in force", "NLL"]
    return f"{table(headings, shown, left=3)}\n\n{note}"


def _of_seeds(answer: dict[str, Any], score: str, seeds: list[int]) -> list[Any]:
    return [answer[score][answer["seed"].index(seed)] for seed in seeds]


def _difference(errors: list[float], usual: list[float]) -> str:
    """Return the mean difference over corruptions and severities, with its standard error."""
    over = [ours - first for ours, first in zip(errors, usual, strict=True)]
    return f"{statistics.mean(over):+.2f} ± {statistics.stdev(over) / len(over) ** 0.5:.2f}"


def _options(options: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in options.items()).replace("'", '"') or "neither"


def _with(given: dict[str, Any]) -> str:
    return f", with {_options(given)}" if given else ""


TABLES: dict[str, Callable[[], str]] = {"open-choices": open_choices_text}
