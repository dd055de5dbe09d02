"""The table of what attacks leave of an adapter."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from studies.files import read_result
from studies.markdown import table


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


TABLES: dict[str, Callable[[], str]] = {"guards": guards_text}
