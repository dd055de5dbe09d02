"""The tables of what attacks and long streams leave of an adapter."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from studies.files import read_result
from studies.markdown import listed, table


def guards_text() -> str:
    """Return the errors after each attack, with and without a guard."""
    found = read_result("guards", "guards.json")
    rows, setting = found["rows"], found["setting"]
    shown = []
    for attack, corruption in dict.fromkeys((row["attack"], row["corruption"]) for row in rows):
        same = [row for row in rows if (row["attack"], row["corruption"]) == (attack, corruption)]
        free, kept = ([row for row in same if row["guard"] == guard] for guard in (False, True))
        errors = (statistics.mean(row["error"] for row in part) for part in (free, kept))
        over = ", ".join(f"{max(row['error'] - row['bn'] for row in part):+.2f}" for part in (free, kept))
        bn = statistics.mean(row["bn"] for row in kept)
        alarms = ", ".join(str(row["first_action"] + 1) for row in kept if row.get("first_action") is not None)
        means = (f"{mean:.2f}" for mean in (bn, *errors))
        shown.append((attack or "nothing", corruption.replace("_", " "), *means, over, alarms))
    headings = ["200 batches of", "then", "BN", "without guard", "with guard"]
    headings += ["worst seed over BN: without, with", "first alarm"]
    same_records = "are the same" if all(one["same_records"] for one in found["ordinary"]) else "differ"
    note = (
        f"Error in per cent, mean over seeds {', '.join(map(str, setting['seeds']))}, batches of "
        f"{setting['batch_size']} ({setting['attack_batch_size']} in the attack), after "
        f"{' and '.join(setting['before']).replace('_', ' ')}; the first alarm is the attack's batch, by seed. On the "
        f"fifteen corruptions the records with and without the guard {same_records} (seeds "
        f"{', '.join(str(one['seed']) for one in found['ordinary'])}). torch {setting['torch']}, one CPU thread, "
        f"{setting['frost']} frost (`studies/guards/run.py`)."
    )
    return f"{table(headings, shown, left=2)}\n\n{note}"


def erosion_text() -> str:
    """Return the errors elsewhere after long streams, with and without a probe."""
    found = read_result("guards", "erosion.json")
    rows, setting = found["rows"], found["setting"]
    shown = []
    for stream in dict.fromkeys(row["stream"] for row in rows):
        free, kept = ([row for row in rows if (row["stream"], row["probe"]) == (stream, probe)] for probe in (0, 1))
        cells = [f"{mean_of(row['bn_error'] for row in kept):.2f}"]
        cells += [f"{mean_of(row['error'] for row in part):.2f}" for part in (free, kept)]
        for condition in ("none", "fog", "snow"):
            start = mean_of(row["course"][0]["errors"][condition] for row in kept)
            bn = mean_of(row["bn"][condition] for row in kept)
            worst = [mean_of(_worst(row, condition) for row in part) for part in (free, kept)]
            cells.append(f"{start:.1f}, {bn:.1f}: {worst[0]:.1f}, {worst[1]:.1f}")
        seeds = ", ".join(str(row["seed"]) for row in kept)
        shown.append((f"{stream} ({seeds})", *cells, ", ".join(str(len(row["events"])) for row in kept)))
    headings = ["stream (seeds)", "its error: BN", "without", "with probe", "clean", "fog", "snow", "events"]
    probe, tested, kept = setting["probe"], setting["tested"], [row for row in rows if row["probe"]]
    predicted = probe["images"] * (1 + len(probe["corruptions"]))
    lengths = sorted({row["batches"] for row in rows})
    share = sum(predicted * (row["looks"] + len(row["events"]) + 1) for row in kept) / sum(r["passes"] for r in kept)
    note = (
        "Elsewhere: *start, BN: without, with a probe*, the latter two the worst of the looks after every "
        f"{setting['every']} batches, on {tested['none']} test digits ({tested['fog']} in fog), with nothing known of "
        "the stream. With a probe the worst look of any stream and seed is "
        f"{_beyond(kept, 'none')} points on clean digits and {_beyond(kept, 'fog')} in fog beyond where it began or "
        "BN, whichever is higher. Error in "
        f"per cent, mean over the seeds; events by seed. Streams of "
        f"{', '.join(map(str, lengths))} batches of {setting['batch_size']}. The "
        f"probe is {probe['images']} training images and their copies ({listed(probe['corruptions'])}, no snow: "
        f"{predicted} predictions), which cost {100 * share:.1f} % of the passes. torch {setting['torch']}, one CPU "
        f"thread, {setting['frost']} frost (`studies/guards/erosion.py`)."
    ).replace("_", " ")
    return f"{table(headings, shown)}\n\n{note}"


def label_free_text() -> str:
    """Return how often adapted networks contradict a sure source on corrupted copies of the stream's images."""
    rows = [row for row in read_result("guards", "erosion.json")["rows"] if not row["probe"]]
    shown = []
    for stream in dict.fromkeys(row["stream"] for row in rows):
        same = [row for row in rows if row["stream"] == stream]
        looks = [look["label_free"] for row in same for look in row["course"] if "label_free" in look]
        shares = [100 * look["against"] / max(1, look["sure"]) for look in looks]
        rises = [_worst(row, "fog") - row["course"][0]["errors"]["fog"] for row in same]
        shown.append((stream, f"{min(shares):.0f} to {max(shares):.0f}", f"{mean_of(rises):+.1f}"))
    return table(["stream", "contradicted, %", "fog, worst less start"], shown)


def mean_of(values: Iterable[float]) -> float:
    return statistics.mean(values)


def _beyond(rows: Iterable[dict[str, Any]], condition: str) -> str:
    beyond = (_worst(row, condition) - max(row["course"][0]["errors"][condition], row["bn"][condition]) for row in rows)
    return f"{max(beyond):+.1f}"


def _worst(row: dict[str, Any], condition: str) -> float:
    return max(look["errors"][condition] for look in row["course"])


TABLES: dict[str, Callable[[], str]] = {
    "guards": guards_text,
    "erosion": erosion_text,
    "label-free": label_free_text,
}
