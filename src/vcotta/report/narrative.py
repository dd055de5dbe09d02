"""The report in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from vcotta._util.errors import counted
from vcotta.methods import find_method, list_methods
from vcotta.report.groups import Group, best_first, manifest_part, warmed_networks
from vcotta.report.stats import mean_note, noted
from vcotta.report.tables import ALL_COLUMNS

__all__ = ["listed", "ranking", "remarks", "stream_sentence"]

NAMES = {"nll": "likelihood (NLL)", "ece": "calibration (ECE)", "aurc": "recognising its own errors (AURC)"}
DIVERSE = 0.5
"""Mean class diversity below which a stream looks correlated."""
ENOUGH_IMAGES = 16
"""Images from which the statistics of a batch are good enough to be used alone."""


def listed(parts: Sequence[str]) -> str:
    """Join words with commas and "and".

    Example:
        >>> listed(["a", "b", "c"])
        'a, b and c'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def stream_sentence(group: Group) -> str:
    """Return a sentence about the stream: data, corruptions, images and batches."""
    run, stream = group.runs[0], manifest_part(group.runs[0], "stream")
    data = stream.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    levels = sorted({str(part["severity"]) for part in group.summaries[0]["domains"] if part["severity"]})
    at = f" at severit{'y' if len(levels) == 1 else 'ies'} {listed(levels)}" if levels else ""
    images = sum(record["n"] for record in run.records)
    return (
        f"{str(stream.get('protocol', 'one')).capitalize()} stream{f' of {name}' if name else ''}: "
        f"{counted(len(group.domains), 'domain')}{at}, {counted(images, 'image')} in "
        f"{counted(len(run.records), 'batch', 'batches')}, one pass."
    )


def ranking(groups: Sequence[Group]) -> list[str]:
    """Return the ranking of groups of one stream in sentences."""
    ranked = best_first(groups)
    errors = [f"{group.label} {group.error.text('.1f')}\N{NO-BREAK SPACE}%" for group in ranked]
    if len(ranked) == 1:
        return [f"The mean error over domains: {errors[0]}."]
    lines = [f"Lowest mean error: {errors[0]}, then {listed(errors[1:])}."]
    first, second = (group.error for group in ranked[:2])
    if first.high >= second.low and (first.has_interval or second.has_interval):
        lines.append(
            f"The 95 % intervals of {ranked[0].label} and {ranked[1].label} overlap: which one is best may depend on "
            "the seed."
        )
    source = next((group for group in ranked if group.method == "source"), None)
    if source is not None and source is not ranked[0]:
        worse = [group.label for group in ranked[ranked.index(source) + 1 :]]
        before, after = source.error.mean, first.mean
        lines.append(
            f"Without adaptation the error is {before:.1f} %; {ranked[0].label} removes "
            f"{100 * (before - after) / before:.0f} % of it."
            + (f" Worse than no adaptation: {listed(worse)}." if worse else "")
        )
    for key, name in NAMES.items():
        best = min(groups, key=lambda group: group.score(key).mean)
        lines.append(f"Best in {name}: {best.label} with {best.score(key).text(ALL_COLUMNS[key][1])}.")
    return lines


def remarks(groups: Sequence[Group]) -> list[str]:
    """Return what a reader should know before comparing: seeds, dropped updates, batches, networks, machines."""
    lines = []
    if all(len(group.runs) == 1 for group in groups):
        lines.append("Each method was run once: there is no interval over seeds, and small differences may be chance.")
    elif len({tuple(sorted(group.seeds)) for group in groups}) > 1:
        each = listed([f"{group.label} {listed(sorted(group.seeds))}" for group in groups])
        lines.append(f"The methods were not run with the same seeds: {each}.")
    for group in groups:
        if len(set(group.seeds)) < len(group.runs):
            lines.append(f"{group.label} has a seed more than once, so its interval may be too narrow.")
        if skipped := group.score("skipped").mean:
            lines.append(f"{group.label} dropped {skipped:.0f} of {len(group.runs[0].records)} updates.")
        lost = sum(p == -1 for run in group.runs for record in run.records for p in record["predictions"])
        if lost:
            lines.append(f"{group.label} made no prediction for {counted(lost, 'image')}, which count as wrong.")
    lines += _correlated(groups) + _small_batches(groups) + _start_networks(groups)
    machines = sorted({str(run.manifest.get("hardware")) for group in groups for run in group.runs})
    if len(machines) > 1:
        lines.append(f"The runs were made on different machines ({listed(machines)}): do not compare their seconds.")
    return lines


def _correlated(groups: Sequence[Group]) -> list[str]:
    """Whether batches seem to hold few classes, and which methods that misleads."""
    seen = [group for group in groups if {"effective_classes", "class_diversity"} <= set(noted(group.runs))]
    runs = [run for group in seen for run in group.runs]
    diversity, classes = mean_note(runs, "class_diversity"), mean_note(runs, "effective_classes")
    shuffled = "random_order" in noted(runs) and mean_note(runs, "random_order") > DIVERSE
    if shuffled or not diversity < DIVERSE:
        return []
    misled = [group.label for group in groups if _statistics(group) == "batch"]
    more = f" That misleads methods that use the batch's statistics alone: {listed(misled)}." if misled else ""
    who = listed([group.label for group in seen])
    return [
        f"The labels look correlated: a batch seems to hold {classes:.1f} classes on average, {100 * diversity:.0f} % "
        f"of the variety of a random order (inferred by {who}).{more}"
    ]


def _small_batches(groups: Sequence[Group]) -> list[str]:
    """Which methods need larger batches."""
    most = max(record["n"] for record in groups[0].runs[0].records)
    poor = [group.label for group in groups if _statistics(group) == "batch"]
    if most >= ENOUGH_IMAGES or not poor:
        return []
    return [
        f"The batches hold at most {counted(most, 'image')}, too few for methods that use the batch's statistics alone "
        f"where the network has BatchNorm: {listed(poor)}."
    ]


def _statistics(group: Group) -> str | None:
    """The setting ``statistics`` of the runs; None for a method without it, or that is not known here."""
    if "batch_share" in noted(group.runs):
        return "inferred"
    settings = getattr(find_method(group.method), "Config", None) if group.method in list_methods() else None
    if not hasattr(settings, "statistics"):
        return None
    return str(manifest_part(group.runs[0], "config").get("statistics", "batch"))  # left out where it is "batch"


def _start_networks(groups: Sequence[Group]) -> list[str]:
    """Which methods started from which network, if one seed has several."""
    by_start: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for run, seed in zip(group.runs, group.seeds, strict=True):
            labels = by_start.setdefault((seed, str(run.manifest.get("weights_sha256"))), [])
            if group.label not in labels:
                labels.append(group.label)
    seeds = [seed for seed, _ in by_start]
    several = [tuple(labels) for (seed, _), labels in by_start.items() if seeds.count(seed) > 1]
    if not several:
        return []
    first, *others = dict.fromkeys(several)
    each = ", ".join([f"{listed(first)} from one", *(f"{listed(labels)} from another" for labels in others)])
    warmed = warmed_networks(run for group in groups for run in group.runs)
    starts = [str(group.runs[0].manifest.get("weights_sha256")) for group in groups if group.method == "bn"]
    shown = any(start in warmed for start in starts)
    how_much = "bn (warmed) shows how much." if shown else "run BN on the warmed network to see how much."
    return [
        f"Not all methods started from the same network: {each}. Part of the difference may come from a warm-up on "
        f"source data; {how_much}"
    ]
