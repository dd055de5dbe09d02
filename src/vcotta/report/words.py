"""What the numbers say, in sentences: the ranking, and what to keep in mind when reading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vcotta._messages import counted
from vcotta.report.groups import Group
from vcotta.report.tables import COLUMNS

__all__ = ["listed", "ranking", "remarks", "stream_sentence"]

NAMES = {"nll": "likelihood (NLL)", "ece": "calibration (ECE)", "aurc": "knowing when it is wrong (AURC)"}


def listed(parts: Sequence[str]) -> str:
    """Join words as a sentence does.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def stream_sentence(group: Group) -> str:
    """Return what the runs met: data, corruptions, images and batches."""
    run = group.runs[0]
    stream = run.manifest.get("stream")
    facts: dict[str, Any] = stream if isinstance(stream, dict) else {}
    data = facts.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    kinds = len(group.domains)
    levels = sorted({str(part["severity"]) for part in group.summaries[0]["domains"] if part["severity"]})
    at = f" at severit{'y' if len(levels) == 1 else 'ies'} {listed(levels)}" if levels else ""
    images = sum(record["n"] for record in run.records)
    return (
        f"{str(facts.get('protocol', 'one')).capitalize()} stream{f' of {name}' if name else ''}: {kinds} "
        f"domain{'s' * (kinds > 1)}{at}, {counted(images, 'image')} in "
        f"{counted(len(run.records), 'batch', 'batches')}, one pass."
    )


def ranking(groups: Sequence[Group]) -> list[str]:
    """Return the ranking in sentences, best first.

    Args:
        groups: All of one stream.
    """
    ranked = sorted(groups, key=lambda group: group.score("error").mean)
    errors = [f"{group.label} {group.score('error').text('.1f')}\N{NO-BREAK SPACE}%" for group in ranked]
    if len(ranked) == 1:
        return [f"The mean error over domains: {errors[0]}."]
    said = [f"Lowest mean error: {errors[0]}, then {listed(errors[1:])}."]
    first, second = (group.score("error") for group in ranked[:2])
    if first.high >= second.low and (first.several or second.several):
        said.append(
            f"The ranges of {ranked[0].label} and {ranked[1].label} overlap: which is first may depend on the seed."
        )
    source = next((group for group in ranked if group.method == "source"), None)
    if source is not None and source is not ranked[0]:
        worse = [group.label for group in ranked[ranked.index(source) + 1 :]]
        before, after = source.score("error").mean, first.mean
        said.append(
            f"Without adaptation the error is {before:.1f} %; {ranked[0].label} takes away "
            f"{100 * (before - after) / before:.0f} % of it."
            + (f" Worse than no adaptation: {listed(worse)}." if worse else "")
        )
    for key, name in NAMES.items():
        best = min(groups, key=lambda group: group.score(key).mean)
        form = COLUMNS.get(key, ("", ".3f"))[1]
        said.append(f"Best in {name}: {best.label} with {best.score(key).text(form)}.")
    return said


def remarks(groups: Sequence[Group]) -> list[str]:
    """Return what a reader has to know before comparing."""
    said = []
    runs = [run for group in groups for run in group.runs]
    if all(len(group.runs) == 1 for group in groups):
        said.append("One run a method: no range over seeds can be told, and small differences may be chance.")
    elif len({tuple(sorted(map(str, group.seeds))) for group in groups}) > 1:
        each = listed([f"{group.label} {listed(sorted(map(str, group.seeds)))}" for group in groups])
        said.append(f"The methods were not run with the same seeds: {each}.")
    for group in groups:
        if len(set(map(str, group.seeds))) < len(group.runs):
            said.append(f"{group.label} counts a seed more than once, so its range may look too small.")
        if skipped := group.score("skipped").mean:
            said.append(f"{group.label} dropped {skipped:.0f} of {len(group.runs[0].records)} updates.")
        lost = sum(p == -1 for run in group.runs for record in run.records for p in record["predictions"])
        if lost:
            said.append(f"{group.label} gave no prediction for {lost} images, which count as wrong.")
    said += _starts(groups)
    machines = sorted({str(run.manifest.get("hardware")) for run in runs})
    if len(machines) > 1:
        said.append(f"The runs were made on different machines ({listed(machines)}): do not compare their seconds.")
    return said


def _starts(groups: Sequence[Group]) -> list[str]:
    """Say which methods started from which network, where one seed has several."""
    by_start: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        starts = [(str(run.manifest.get("seed")), str(run.manifest.get("weights_sha256"))) for run in group.runs]
        for start in dict.fromkeys(starts):
            by_start.setdefault(start, []).append(group.label)
    seeds = [seed for seed, _ in by_start]
    several = [tuple(labels) for (seed, _), labels in by_start.items() if seeds.count(seed) > 1]
    if not several:
        return []
    first, *others = dict.fromkeys(several)
    each = ", ".join([f"{listed(first)} from one", *(f"{listed(labels)} from another" for labels in others)])
    return [
        f"Not all methods started from the same network: {each}. A warm-up on source data, which others do not see, "
        "may be part of the difference; BN on the warmed network tells how much it earns alone."
    ]
