"""Runs that differ in nothing but the seed, taken together: each score is a mean with its range."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vcotta.report.domains import same_domains
from vcotta.runs import Run

__all__ = ["Group", "Score", "as_groups", "group_runs", "labelled"]

WHOLE_RUN = ("seconds", "peak_memory", "forwards", "backwards", "skipped")
NAMED_SETTINGS = 3


@dataclass(frozen=True)
class Score:
    """A mean over runs, with the lowest and the highest.

    Example:
        >>> score = Score.of([4.0, 4.5])
        >>> score.text(".1f"), Score.of([3.0]).text(".1f"), Score.of([math.inf]).text(".1f")
        ('4.2 (4.0–4.5)', '3.0', 'inf')
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Score:
        """Summarise values; a mean with not-a-number in it is not a number."""
        numbers = [float(value) for value in values]
        if not numbers or any(math.isnan(number) for number in numbers):
            return cls(math.nan, math.nan, math.nan)
        return cls(sum(numbers) / len(numbers), min(numbers), max(numbers))

    @property
    def several(self) -> bool:
        """Whether there is a range to tell."""
        return self.low < self.high

    def text(self, form: str) -> str:
        """Return the mean and, where there is one, the range."""
        shown = f"{self.mean:{form}}"
        return f"{shown} ({self.low:{form}}–{self.high:{form}})" if self.several else shown


@dataclass(frozen=True)
class Group:
    """Runs of one method with one setting on one stream.

    Attributes:
        label: Name to show: the method, with the settings in which it differs from others of its name.
        runs: The runs, one a seed.
        summaries: Their summaries.
        domains: Names of the domains.
    """

    label: str
    runs: tuple[Run, ...]
    summaries: tuple[dict[str, Any], ...]
    domains: tuple[str, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def seeds(self) -> list[Any]:
        """Seeds of the runs."""
        return [run.manifest.get("seed") for run in self.runs]

    def score(self, key: str) -> Score:
        """Return a mean over domains, such as ``error`` (per cent) or ``nll``, or a total, such as ``seconds``."""
        if key in WHOLE_RUN:
            return Score.of(summary[key] for summary in self.summaries)
        return Score.of(_scale(key) * summary["mean"][key] for summary in self.summaries)

    def domain_score(self, place: int, key: str = "error") -> Score:
        """Return a score on one domain; error in per cent."""
        return Score.of(_scale(key) * summary["domains"][place][key] for summary in self.summaries)

    def passes(self) -> Score:
        """Return the forward and backward passes of a batch, on average."""
        return Score.of(
            (summary["forwards"] + summary["backwards"]) / len(run.records)
            for run, summary in zip(self.runs, self.summaries, strict=True)
        )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Take together what differs in the seed alone, in order of appearance.

    Runs of one seed that started from different weights stay apart, and so do all that share their weights.

    Args:
        runs: Runs that visit the same domains.

    Raises:
        ValueError: There is no run, or they visit different domains.
    """
    summaries, domains = same_domains(runs)
    together: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        together.setdefault(json.dumps(_setting(run), sort_keys=True, default=str), []).append(place)
    parts: list[list[int]] = []
    for places in together.values():
        parts += _apart([runs[place] for place in places], places)
    labels = _labels([[runs[place] for place in part] for part in parts])
    return [
        Group(label, tuple(runs[p] for p in part), tuple(summaries[p] for p in part), tuple(domains))
        for label, part in zip(labels, parts, strict=True)
    ]


def as_groups(runs: Sequence[Run] | Sequence[Group]) -> list[Group]:
    """Return groups as they are, and group runs."""
    groups = [group for group in runs if isinstance(group, Group)]
    return groups or group_runs([run for run in runs if isinstance(run, Run)])


def labelled(label: str, runs: Sequence[Run]) -> Group:
    """Take runs of one stream together under a name of the caller's."""
    summaries, domains = same_domains(runs)
    return Group(label, tuple(runs), tuple(summaries), tuple(domains))


def _scale(key: str) -> float:
    return 100.0 if key == "error" else 1.0


def _setting(run: Run) -> dict[str, Any]:
    """What a run was told, but for its seed."""
    config, runtime = run.manifest.get("config"), run.manifest.get("runtime")
    return {
        "method": run.method,
        **({f"config {key}": value for key, value in config.items()} if isinstance(config, dict) else {}),
        "network": run.manifest.get("network"),
        "precision": runtime.get("precision") if isinstance(runtime, dict) else None,
    }


def _apart(runs: list[Run], places: list[int]) -> list[list[int]]:
    """Split runs by their weights if one seed comes with several; a network trained by seed differs by it rightly."""
    weights = [(run.manifest.get("seed"), run.manifest.get("weights_sha256")) for run in runs]
    if len({seed for seed, _ in set(weights)}) == len(set(weights)):
        return [places]
    parts: dict[Any, list[int]] = {}
    for (_, digest), place in zip(weights, places, strict=True):
        parts.setdefault(str(digest), []).append(place)
    return list(parts.values())


def _labels(parts: list[list[Run]]) -> list[str]:
    """Name each part by its method and what sets it apart from others of that method, whatever their order."""
    runs = [part[0] for part in parts]
    labels = [_name(run, [other for other in runs if other.method == run.method]) for run in runs]
    for tell in (_weights, _digest):
        both = zip(runs, labels, strict=True)
        labels = [f"{label} {tell(run)}" if labels.count(label) > 1 else label for run, label in both]
    return labels


def _name(run: Run, rivals: list[Run]) -> str:
    """The method, and the first settings in which it differs from others of its name."""
    ours, all_settings = _setting(run), [_setting(rival) for rival in rivals]
    differing = [key for key in ours if any(other.get(key) != ours[key] for other in all_settings)]
    words = [f"{key.removeprefix('config ')}={ours[key]}" for key in differing[:NAMED_SETTINGS]]
    return _printable(" ".join([run.method, *words]))


def _weights(run: Run) -> str:
    return f"weights {str(run.manifest.get('weights_sha256'))[:6]}"


def _digest(run: Run) -> str:
    """A word for settings that have too many differences to be named."""
    return hashlib.sha256(json.dumps(_setting(run), sort_keys=True, default=str).encode()).hexdigest()[:6]


def _printable(text: str, most: int = 60) -> str:
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
