"""The numbers behind the curves: reliability, risk and coverage, and what happened along the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcotta.metrics import BINS
from vcotta.report.domains import domain_labels
from vcotta.report.groups import Group
from vcotta.runs import Run

__all__ = [
    "Curve",
    "Span",
    "along_stream",
    "noted",
    "predictions",
    "reliability_bins",
    "risk_coverage",
    "spans",
    "varies",
]

COUNTED = frozenset({"forwards", "backwards", "skipped"})  # told as totals, not drawn
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A mean over runs along the stream, with its range; not-a-number where nothing was noted."""

    batches: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class Span:
    """Where a domain begins and ends, in batches."""

    label: str
    start: int
    end: int


def spans(group: Group) -> list[Span]:
    """Return the place of each domain in the stream; batches that mix domains are one, under the name they have."""
    visits, ends = [], [0]
    for (domain, severity), members in groupby(
        group.runs[0].records, key=lambda record: (record["domain"], record["severity"])
    ):
        visits.append({"domain": domain, "severity": severity})
        ends.append(ends[-1] + sum(1 for _ in members))
    places = zip(domain_labels({"domains": visits}), ends[:-1], ends[1:], strict=True)
    return [Span(label, start, end) for label, start, end in places]


def noted(groups: Sequence[Group]) -> list[str]:
    """Return what the adapters noted of their steps in numbers, such as ``alpha``, in order of appearance."""
    keys: dict[str, None] = {}
    for group in groups:
        for record in group.runs[0].records:
            keys |= dict.fromkeys(key for key, value in record["last"].items() if np.isfinite(_number(value)))
    return [key for key in keys if key not in COUNTED]


def varies(group: Group, key: str) -> bool:
    """Whether what an adapter noted changed along the stream; a fixed ``alpha`` does not, nor what was never noted."""
    values = along_stream(group, key).mean
    kept = values[np.isfinite(values)]
    return bool((kept != kept[:1]).any())


def along_stream(group: Group, key: str | None = None, most: int = 160) -> Curve:
    """Return the error in per cent, or a value noted by the adapter, batch by batch.

    A long stream is told in at most about ``most`` points: neighbouring batches of one domain are averaged.

    Args:
        group: Runs of one stream.
        key: A key of ``record["last"]``; None for the error.
        most: Number of points not to exceed by much.
    """
    lines = np.array([[_value(record, key) for record in run.records] for run in group.runs])
    step = -(-lines.shape[1] // most)
    parts = [
        slice(start, min(start + step, span.end))
        for span in spans(group)
        for start in range(span.start, span.end, step)
    ]
    table = np.array([[_mean(line[part]) for part in parts] for line in lines])
    centres = np.array([(part.start + part.stop - 1) / 2 for part in parts])
    columns = [column[np.isfinite(column)] for column in table.T]
    low, mean, high = (
        np.array([reduce(column) if len(column) else np.nan for column in columns])
        for reduce in (np.min, np.mean, np.max)
    )
    return Curve(centres, mean, low, high)


def predictions(runs: Sequence[Run]) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the confidence of each prediction of the runs, and whether it was right."""
    records = [record for run in runs for record in run.records]
    confidence = np.concatenate([np.asarray(record["confidences"], np.float64) for record in records])
    correct = np.concatenate([np.equal(record["labels"], record["predictions"]) for record in records])
    return confidence, correct


def reliability_bins(runs: Sequence[Run]) -> list[tuple[float, float, int]]:
    """Return (mean confidence, accuracy, predictions) of each bin of ECE that holds any, pooled over the stream."""
    confidence, correct = predictions(runs)
    bins = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    chosen = [bins == place for place in range(BINS)]
    return [(float(confidence[c].mean()), float(correct[c].mean()), int(c.sum())) for c in chosen if c.any()]


def risk_coverage(runs: Sequence[Run], points: int = 100) -> tuple[Numbers, Numbers]:
    """Return coverages (0 to 1] and the error, from 0 to 1, among that share of the most confident predictions.

    Predictions of equal confidence count with the mean error of their group, as in `vcotta.metrics.aurc_of`.
    """
    confidence, correct = predictions(runs)
    _, group, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    share = np.bincount(group, ~correct) / size
    risk = np.repeat(share, size).cumsum() / np.arange(1, len(confidence) + 1)
    kept = np.unique(np.ceil(np.linspace(0, 1, points + 1)[1:] * len(confidence)).astype(int))
    return kept / len(confidence), risk[kept - 1]


def _value(record: dict[str, Any], key: str | None) -> float:
    return 100 * record["errors"] / record["n"] if key is None else _number(record["last"].get(key))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def _mean(values: Numbers) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else float("nan")
