"""Numbers of tables and figures: means over seeds with intervals, curves along a stream, reliability."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from vcotta.runs.metrics import BINS
from vcotta.runs.run import Run

__all__ = [
    "Curve",
    "Score",
    "Span",
    "along_stream",
    "domain_labels",
    "half_width",
    "mean_note",
    "noted",
    "printable",
    "reliability_bins",
    "risk_coverage",
    "spans",
    "varies",
    "without_rounding_noise",
]

TOTALS = frozenset({"forwards", "backwards", "skipped"})  # shown as totals, not as curves
Numbers = NDArray[np.float64]


def half_width(values: Sequence[float]) -> float:
    r"""Return half the width of the 95 % interval of a mean; not-a-number for fewer than two values.

    With :math:`n` values of standard deviation :math:`s` it is :math:`t_{0.975, n-1} \, s / \sqrt n`, where :math:`t`
    is the quantile of Student's distribution.

    Example:
        >>> round(half_width([1.0, 2.0, 3.0]), 3)
        2.484
    """
    count = len(values)
    if count < 2 or not np.isfinite(values).all():
        return math.nan
    return float(stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count))


def without_rounding_noise(value: float) -> float:
    """Return a number without the last bits of a sum, which would decide how tables and progress round a tie.

    Example:
        >>> f"{12.250000000000002:.1f}", f"{without_rounding_noise(12.250000000000002):.1f}"
        ('12.3', '12.2')
    """
    return round(value, 9)


@dataclass(frozen=True)
class Score:
    """A mean over seeds.

    Attributes:
        mean: The mean.
        width: Half the width of its 95 % interval (`half_width`); not-a-number for a single run.

    Example:
        >>> score = Score.of([4.0, 4.5, 4.4])
        >>> score.text(".1f"), Score.of([3.0]).text(".1f"), Score.of([math.inf, 1.0]).text(".1f")
        ('4.3 ± 0.7', '3.0', 'inf')
    """

    mean: float
    width: float = math.nan

    @classmethod
    def of(cls, values: Iterable[float]) -> Score:
        """Average values; the mean of none, or of some that include not-a-number, is not-a-number."""
        numbers = [float(value) for value in values]
        return cls(sum(numbers) / len(numbers), half_width(numbers)) if numbers else cls(math.nan)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval to show: the values are several, finite and not all equal."""
        return self.width > 0

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean where there is none."""
        return self.mean - self.width if self.has_interval else self.mean

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean where there is none."""
        return self.mean + self.width if self.has_interval else self.mean

    def text(self, form: str) -> str:
        """Return the mean and, where there is one, the half-width of its interval."""
        shown = f"{without_rounding_noise(self.mean):{form}}"
        return f"{shown} ± {without_rounding_noise(self.width):{form}}" if self.has_interval else shown


@dataclass(frozen=True)
class Curve:
    """A mean over runs along the stream with the ends of its 95 % interval; not-a-number where there is no value."""

    batches: Numbers
    mean: Numbers
    low: Numbers
    high: Numbers

    @property
    def known(self) -> bool:
        """Whether there is any value."""
        return bool(np.isfinite(self.mean).any())


@dataclass(frozen=True)
class Span:
    """The batches of one domain: from ``start`` up to, but without, ``end``."""

    label: str
    start: int
    end: int


def domain_labels(domains: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each domain: the corruption, with its severity if there are several.

    Example:
        >>> domain_labels([{"domain": "motion_blur", "severity": 5}, {"domain": "fog", "severity": 5}])
        ['motion blur', 'fog']
    """
    several = len({domain["severity"] for domain in domains}) > 1
    names = [printable(domain["domain"].replace("_", " ")) for domain in domains]
    return [f"{name} {domain['severity']}" if several else name for name, domain in zip(names, domains, strict=True)]


def printable(text: str) -> str:
    """Replace each character that cannot be shown."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def spans(run: Run) -> list[Span]:
    """Return the batches of each domain; batches that mix domains are one domain, named as in the records."""
    visits, ends = [], [0]
    for (domain, severity), members in groupby(run.records, key=lambda record: (record["domain"], record["severity"])):
        visits.append({"domain": domain, "severity": severity})
        ends.append(ends[-1] + sum(1 for _ in members))
    places = zip(domain_labels(visits), ends[:-1], ends[1:], strict=True)
    return [Span(label, start, end) for label, start, end in places]


def noted(runs: Sequence[Run]) -> list[str]:
    """Return the keys of ``last`` that hold numbers, such as ``alpha``, in order of appearance."""
    keys: dict[str, None] = {}
    for run in runs:
        for record in run.records:
            keys |= dict.fromkeys(key for key, value in record["last"].items() if np.isfinite(_number(value)))
    return [key for key in keys if key not in TOTALS]


def mean_note(runs: Sequence[Run], key: str) -> float:
    """Return the mean of a value of ``last`` over all batches that have it; not-a-number if none has."""
    return _mean(np.array([_value(record, key) for run in runs for record in run.records]))


def varies(runs: Sequence[Run], key: str) -> bool:
    """Return whether a value of ``last`` changes along the stream; a missing one does not."""
    values = along_stream(runs, key).mean
    kept = values[np.isfinite(values)]
    return bool((kept != kept[:1]).any())


def along_stream(runs: Sequence[Run], key: str | None = None, most: int = 160) -> Curve:
    """Return the error in per cent, or a value of ``last``, of each batch as a mean over runs.

    In a long stream neighbouring batches of one domain are averaged, to at most ``most`` points and one a domain.
    """
    lines = np.array([[_value(record, key) for record in run.records] for run in runs])
    step = -(-lines.shape[1] // most)
    parts = [
        slice(start, min(start + step, span.end))
        for span in spans(runs[0])
        for start in range(span.start, span.end, step)
    ]
    table = [[_mean(line[part]) for part in parts] for line in lines]
    scores = [Score.of(value for value in column if np.isfinite(value)) for column in zip(*table, strict=True)]
    mean, low, high = (np.array([getattr(score, end) for score in scores]) for end in ("mean", "low", "high"))
    return Curve(np.array([(part.start + part.stop - 1) / 2 for part in parts]), mean, low, high)


def reliability_bins(runs: Sequence[Run]) -> list[tuple[float, float, int]]:
    """Return (mean confidence, accuracy, predictions) of each ECE bin that is not empty, pooled over the stream."""
    confidence, correct = _predictions(runs)
    bins = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    chosen = [bins == place for place in range(BINS)]
    return [(float(confidence[c].mean()), float(correct[c].mean()), int(c.sum())) for c in chosen if c.any()]


def risk_coverage(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    """Return coverages (0 to 1] and the error, from 0 to 1, among that share of the most confident predictions.

    Predictions of equal confidence count with the mean error of their group, as in `vcotta.runs.metrics.aurc_of`.
    """
    confidence, correct = _predictions(runs)
    _, group, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    share = np.bincount(group, ~correct) / size
    risk = np.repeat(share, size).cumsum() / np.arange(1, len(confidence) + 1)
    kept = np.unique(np.ceil(np.linspace(0, 1, 101)[1:] * len(confidence)).astype(int))
    return kept / len(confidence), risk[kept - 1]


def _predictions(runs: Sequence[Run]) -> tuple[Numbers, NDArray[np.bool_]]:
    """The confidence of each prediction of the runs, and whether it was right."""
    records = [record for run in runs for record in run.records]
    confidence = np.concatenate([np.asarray(record["confidences"], np.float64) for record in records])
    correct = np.concatenate([np.equal(record["labels"], record["predictions"]) for record in records])
    return confidence, correct


def _value(record: Mapping[str, Any], key: str | None) -> float:
    return 100 * record["errors"] / record["n"] if key is None else _number(record["last"].get(key))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _mean(values: Numbers) -> float:
    kept = values[np.isfinite(values)]
    return float(kept.mean()) if len(kept) else math.nan
