"""Finding runs, checking that they followed one stream, and grouping the seeds of a method."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcotta._util.warn import warn
from vcotta.methods import find_method, list_methods, marked
from vcotta.report.stats import Score, domain_labels, printable
from vcotta.runs.run import MANIFEST, Run, Summary

__all__ = [
    "WHOLE_RUN",
    "Group",
    "as_groups",
    "best_first",
    "check_same_stream",
    "find_runs",
    "frost_textures",
    "group_runs",
    "labelled",
    "manifest_part",
    "warmed_networks",
]

WHOLE_RUN = ("seconds", "peak_memory", "forwards", "backwards", "skipped")
NAMED_SETTINGS = 3
LONGEST_LABEL = 60


@dataclass(frozen=True)
class Group:
    """Runs of one method with one setting on one stream, which differ in their seeds.

    Attributes:
        label: The method, with the mark of a reconstruction, and the settings in which it differs from other groups of
            that method.
        runs: The runs, one for each seed.
        summaries: Their summaries.
        domains: Names of the domains.
    """

    label: str
    runs: tuple[Run, ...]
    summaries: tuple[Summary, ...]
    domains: tuple[str, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def seeds(self) -> list[str]:
        """Seeds of the runs."""
        return [str(run.manifest.get("seed")) for run in self.runs]

    @property
    def error(self) -> Score:
        """Mean error over domains in per cent."""
        return self.score("error")

    def score(self, key: str) -> Score:
        """Return a mean over domains, such as ``error`` (per cent) or ``nll``, or a total, such as ``seconds``."""
        if key in WHOLE_RUN:
            return Score.of(summary[key] for summary in self.summaries)  # type: ignore[literal-required]
        return Score.of((100 if key == "error" else 1) * summary["mean"][key] for summary in self.summaries)

    def domain_errors(self) -> list[Score]:
        """Return the error on each domain in per cent."""
        lines = [[100 * part["error"] for part in summary["domains"]] for summary in self.summaries]
        return [Score.of(column) for column in zip(*lines, strict=True)]

    def passes(self) -> Score:
        """Return the forward and backward passes of a batch, on average."""
        return Score.of(
            (summary["forwards"] + summary["backwards"]) / len(run.records)
            for run, summary in zip(self.runs, self.summaries, strict=True)
        )

    def domain_seconds(self) -> Score:
        """Return the seconds of a domain, on average."""
        return Score.of(summary["seconds"] / len(summary["domains"]) for summary in self.summaries)


def find_runs(folders: Sequence[str | os.PathLike[str]]) -> dict[str, Run]:
    """Return runs by the name of their folder.

    Args:
        folders: Folders of runs, which must be complete, or folders that contain runs at any depth; incomplete runs
            among those are left out with a warning.

    Raises:
        FileNotFoundError: A folder does not exist or contains no complete run.
        ValueError: A run is damaged or was stopped before its end.
    """
    found: dict[Path, tuple[str, Run]] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise FileNotFoundError(
                f"Expected a folder with runs, but {folder} is not a folder. Give folders that `vcotta run` wrote."
            )
        runs = {folder: Run.load(folder)} if (folder / MANIFEST).is_file() else _runs_below(folder)
        if not runs:
            raise FileNotFoundError(
                f"Expected runs in {folder}, but found no complete one. Give folders that `vcotta run` wrote."
            )
        for place, run in runs.items():
            found.setdefault(place.resolve(), (str(place), run))
    if not found:
        raise ValueError("Expected at least one folder with runs, but got none.")
    return dict(found.values())


def check_same_stream(runs: Mapping[str, Run]) -> None:
    """Raise ValueError unless all runs, given by name, followed one stream; its seed may differ."""
    first, *others = runs.items()
    ours = _stream_facts(first[1])
    for name, run in others:
        theirs = _stream_facts(run)
        for fact in {**ours, **theirs}:
            if ours.get(fact) != theirs.get(fact):
                raise ValueError(
                    f"Expected all runs to follow one stream, but {first[0]} and {name} differ in their {fact}: "
                    f"{_short(ours.get(fact))} and {_short(theirs.get(fact))}. Report runs of one stream at a time."
                )


def frost_textures(run: Run) -> object:
    """Return the textures of ``frost``; earlier versions wrote them beside the stream, not in it."""
    return manifest_part(run, "stream").get("frost") or run.manifest.get("frost")


def manifest_part(run: Run, key: str) -> dict[str, Any]:
    """Return an object of the manifest, such as ``stream``; an empty one if it is missing."""
    found: object = run.manifest.get(key)
    return found if isinstance(found, dict) else {}


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed, in order of appearance.

    Each seed may have its own start network; where one seed has several, each network is a group of its own.

    Raises:
        ValueError: There is no run, or they visit different domains.
    """
    warmed = warmed_networks(runs)
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(_as_text(_settings(run, warmed)), []).append(run)
    parts = [part for members in together.values() for part in _by_network(members)]
    groups = [labelled(label, part) for label, part in zip(_labels(parts, warmed), parts, strict=True)]
    _check_domains([(group.method, group.domains) for group in groups])
    return groups


def warmed_networks(runs: Iterable[Run]) -> frozenset[str]:
    """Return the hashes of the warmed networks: those that a method on variational networks started from."""
    variational = {name for name in list_methods() if find_method(name).needs_variational}
    return frozenset(
        str(run.manifest.get("weights_sha256"))
        for run in runs
        if run.method in variational or manifest_part(run, "spec").get("start") == "warmed"
    )


def as_groups(runs: Sequence[Run] | Sequence[Group]) -> list[Group]:
    """Group runs; return groups as they are."""
    groups = [group for group in runs if isinstance(group, Group)]
    return groups or group_runs([run for run in runs if isinstance(run, Run)])


def best_first(groups: Sequence[Group]) -> list[Group]:
    """Sort groups by their mean error."""
    return sorted(groups, key=lambda group: group.error.mean)


def labelled(label: str, runs: Sequence[Run]) -> Group:
    """Return runs of one stream as a group with a given label."""
    summaries = [run.summary() for run in runs]
    domains = [tuple(domain_labels(summary["domains"])) for summary in summaries]
    _check_domains(list(zip((run.method for run in runs), domains, strict=True)))
    return Group(label, tuple(runs), tuple(summaries), domains[0])


def _runs_below(folder: Path) -> dict[Path, Run]:
    runs = {}
    for manifest in sorted(folder.rglob(MANIFEST)):
        try:
            runs[manifest.parent] = Run.load(manifest.parent)
        except (OSError, ValueError) as reason:
            warn(f"{manifest.parent} is left out. {reason}")
    return runs


def _check_domains(found: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Raise unless all methods, given with their domains, visited the same domains."""
    if not found:
        raise ValueError("Expected at least one run, but got none.")
    for method, domains in found:
        if domains != found[0][1]:
            raise ValueError(
                f"Expected all runs to visit the same domains, but `{method}` and `{found[0][0]}` differ. "
                "Report runs of one stream at a time."
            )


def _stream_facts(run: Run) -> dict[str, Any]:
    """All that determines a stream, without its seed."""
    visited = [(record["domain"], record["severity"], record["n"]) for record in run.records]
    stated = {key: value for key, value in manifest_part(run, "stream").items() if key not in ("seed", "frost")}
    order = stated.pop("order", None) or list(dict.fromkeys(domain for domain, _, _ in visited))
    facts = {"corruptions": order, **{key.replace("_", " "): value for key, value in stated.items()}}
    if "frost" in order:
        facts["frost textures"] = frost_textures(run)
    return facts | {"batches": visited}


def _settings(run: Run, warmed: frozenset[str]) -> dict[str, Any]:
    """What determines a run beside its stream, its seed and, if several are alike, its network."""
    return {
        "method": run.method,
        "warmed": str(run.manifest.get("weights_sha256")) in warmed,
        **{f"config {key}": value for key, value in manifest_part(run, "config").items()},
        "guard": bool(run.manifest.get("guard")),
        "network": run.manifest.get("network"),
        "precision": manifest_part(run, "runtime").get("precision"),
    }


def _by_network(runs: list[Run]) -> list[list[Run]]:
    """Split runs by their starting weights if one seed comes with several."""
    starts = [(str(run.manifest.get("seed")), str(run.manifest.get("weights_sha256"))) for run in runs]
    if len({seed for seed, _ in starts}) == len(set(starts)):
        return [runs]
    parts: dict[str, list[Run]] = {}
    for (_, weights), run in zip(starts, runs, strict=True):
        parts.setdefault(weights, []).append(run)
    return list(parts.values())


def _labels(parts: Sequence[Sequence[Run]], warmed: frozenset[str]) -> list[str]:
    """Name each group by its method and what distinguishes it from others of that method."""
    runs = [part[0] for part in parts]
    labels = [_name(run, [other for other in runs if other.method == run.method], warmed) for run in runs]
    endings: tuple[Callable[[Run], str], ...] = (
        lambda run: f"weights {str(run.manifest.get('weights_sha256'))[:6]}",
        lambda run: hashlib.sha256(_as_text(_settings(run, warmed)).encode()).hexdigest()[:6],
    )
    for ending in endings:
        labels = [
            f"{label} {ending(run)}" if labels.count(label) > 1 else label
            for run, label in zip(runs, labels, strict=True)
        ]
    return labels


def _name(run: Run, others: Sequence[Run], warmed: frozenset[str]) -> str:
    """The method, and the first settings in which it differs from others of that method."""
    ours, theirs = _settings(run, warmed), [_settings(other, warmed) for other in others]
    differing = [key for key in ours if any(other.get(key) != ours[key] for other in theirs)]
    method = marked(run.method)
    method = f"{method} (warmed)" if "warmed" in differing and ours["warmed"] else method
    words = [f"{key.removeprefix('config ')}={ours[key]}" for key in differing if key != "warmed"]
    shown = printable(" ".join([method, *words[:NAMED_SETTINGS]]))
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[: LONGEST_LABEL - 1]}…"


def _as_text(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _short(value: object) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
