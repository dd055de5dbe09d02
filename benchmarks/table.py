"""The tables of speed, drawn from benchmarks/results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studies.markdown import table

RESULTS = Path(__file__).parent / "results"


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def corruptions_text() -> str:
    """Return how long corrupting takes, in two sentences."""
    result = _read("corruptions.json")
    setting = result["setting"]
    ours, same_work, rival = (result["sum"][key] for key in ("ours", "ours_224", "rival"))
    return (
        f"All fifteen together take {ours:.2f} ms per image of {setting['image_size']} px on one CPU thread "
        f"({setting['cpu']}); with the constants of ImageNet-C {same_work:.2f} ms, where the package "
        f"imagecorruptions-imaug takes {rival:.2f} ms in the same run ({rival / same_work:.1f} times as long). "
        f"15 x 10 000 images take {result['whole_set']['seconds']:.0f} s with two processes "
        "(`benchmarks/corruptions.py`)."
    )


def load_text() -> str:
    """Return what a server under load did."""
    run = _read("load.json")
    refused = {status: count for status, count in run["by_status"].items() if status[0] == "4"}
    counts = ", ".join(f"{count} times {status}" for status, count in refused.items())
    memory = run["resident_mib"]
    return (
        f"Under load (`benchmarks/load.py`, {run['minutes']:.0f} minutes, {run['clients']} clients, the digits' "
        f"bundle, {run['machine']}): {run['requests']} requests, {run['by_status']['200']} answered, "
        f"{sum(refused.values())} refused as they should be ({counts}), "
        f"{run['by_status'].get('hung up', 0)} hung up in the middle; {run['wrong_answers']} wrong answers, "
        f"{run['server_errors']} server errors. Valid requests, of 1 to 50 images, took {run['seconds_p50']:.2f} s in "
        f"the median and {run['seconds_p99']:.2f} s at the 99th percentile, with {run['images_a_second']:.0f} images "
        f"per second in all; {run['accuracy']:.1%} of the digits were named rightly. The server's memory was "
        f"{memory['start']} MiB at the start and {memory['max']} MiB at most ({memory['max_by_minute'][1]} MiB in the "
        f"second minute)."
    )


def serve_memory_text() -> str:
    """Return the table of a server's memory, with a copy of the state for every batch and without."""
    found = _read("serve-memory.json")
    setting, rows = found["setting"], found["rows"]
    columns = {
        "after_start_mib": "after the start",
        "between_requests_mib": "between requests",
        "peak_of_requests_mib": "highest, requests",
        "peak_of_checkpoint_mib": "highest, checkpoint",
        "cpu_seconds_a_request": "CPU s per request",
    }
    names = {"before": "a copy of the state for every batch (before)", "after": "restore point and journal (now)"}
    body = [(names[row], *(f"{rows[row][key]:g}" for key in columns)) for row in names]
    after = rows["after"]
    note = (
        f"Resident memory in MiB of `vcotta serve`: {setting['method']} with one view on a {after['network']} "
        f"({after['parameters'] / 1e6:.1f} million parameters, a state of {after['state_mib']} MiB), requests of "
        f"{setting['images']} images of {setting['size']} x {setting['size']} pixels, one thread on a CPU, torch "
        f"{found['versions']['torch']} (`benchmarks/serve_memory.py`)."
    )
    return table(["", *columns.values()], body) + f"\n\n{note}"


def train_step_text() -> str:
    """Return the table of what a training step with AugMix costs."""
    found = _read("train-step.json")
    setting = found["setting"]
    note = (
        f"{setting['network']}, three forms of {setting['batch_size']} images per step, compiled; "
        f"{setting['hardware']}, torch {setting['torch']}; {setting['timing']} (`benchmarks/train_step.py`)."
    )
    return table(["", "ms"], [(row["what"], f"{row['ms']:.1f}") for row in found["rows"]]) + f"\n\n{note}"


def times_text() -> str:
    """Return the table of commands and how long they took."""
    rows = []
    for row in _read("gpu-times.json"):
        where = row["device"] + (f", torch {row['torch']}" if row["torch"] else "")
        error = "" if row["clean_error"] is None else f"{100 * row['clean_error']:.2f}"
        rows.append((row["work"], f"`{row['command']}`", where, row["seconds"], error))
    return table(["What", "Command", "Where", "Seconds", "Clean error %"], rows, left=3) + (
        "\n\nSeconds by the wall clock."
    )


def passes_text() -> str:
    """Return the table of every method's step beside its passes alone."""
    found = _read("passes.json")
    setting = found["setting"]
    rows = [
        (
            row["method"],
            f"{row['forwards']}, {row['backwards']}",
            *(f"{row[key]:.1f}" for key in ("step_ms", "passes_ms")),
            f"{row['ratio']:.2f}",
        )
        for row in found["rows"]
    ]
    note = f"{setting['network']}, batches of {setting['batch_size']}, {setting['hardware']}, torch {setting['torch']}"
    headings = ["Method", "forwards, backwards", "step, ms", "its passes alone, ms", "ratio"]
    return table(headings, rows) + f"\n\n{note}; random images (`benchmarks/passes.py`)."


def adapt_text() -> str:
    """Return the table of what adaptation costs on the fast path and on the plain one."""
    found = _read("adapt.json")
    ways, setting = list(found["setting"]["ways"]), found["setting"]
    rows = []
    for name in dict.fromkeys(row["method"] for row in found["rows"]):
        same = {row["way"]: row for row in found["rows"] if row["method"] == name}
        gain = same[ways[-1]]["seconds"] / same[ways[0]]["seconds"]
        rows.append((name, *(cell for way in ways for cell in _cost(same[way])), f"{gain:.1f}"))
    columns = [c for way in ways for c in (f"{way}: seconds per corruption", "TFLOP/s", "of the ceiling", "peak GiB")]
    words = ", ".join(f"{key} {value}" for key, value in setting.items() if isinstance(value, str))
    warm = "; ".join(f"{way}: {row['epoch_seconds']:.1f} s" for way, row in zip(ways, found["warm_up"], strict=False))
    note = (
        f"The ceiling is {found['ceiling']['tflops']:.0f} TFLOP/s ({found['ceiling']['product']}). An epoch of the "
        f"warm-up: {warm or 'not measured'}. {words}."
    )
    return table(["", *columns, "times faster"], rows) + f"\n\n{note}"


def _cost(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['seconds']:.2f}",
        f"{row['tflops']:.0f}",
        f"{100 * row['share']:.0f} %",
        f"{row['peak_gib'] or 0:.2f}",
    )


TABLES: dict[str, Callable[[], str]] = {
    "corruptions": corruptions_text,
    "load": load_text,
    "serve-memory": serve_memory_text,
    "train-step": train_step_text,
    "times": times_text,
    "passes": passes_text,
    "adapt": adapt_text,
}
