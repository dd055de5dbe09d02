"""The tables of streams: each method where labels come in clumps, batches are small, and domains mix or return."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from studies.files import results_of
from studies.markdown import listed, table
from studies.streams.run import ABLATION
from vcotta.experiments.streams import stream_name
from vcotta.streams.protocols import PROTOCOLS

RESULTS = results_of("streams")
DIGITS = "digits"
CLOSE = 0.3
"""Points in per cent by which a method may miss the lowest error and still count as best."""
COMMAND = "python -m studies.streams.run"


class Stream(NamedTuple):
    """A stream of the file; runs with another number of images are a stream of their own."""

    protocol: str
    batch_size: int
    delta: float | None
    images: int

    @property
    def name(self) -> str:
        """Its name, as `vcotta.experiments.streams` has it."""
        return stream_name(self.protocol, self.delta, self.batch_size)

    @property
    def words(self) -> str:
        """The protocol, and how labels are correlated where the study varies it."""
        if self.protocol != "correlated":
            return self.protocol
        return f"correlated, delta {self.delta:g}" if self.delta else "correlated, sorted"


Cells = dict[tuple[Stream, str], float]


def rows_of(network: str | None = None, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the rows of the file, or those of a network; none if there is no file."""
    path = folder / "streams.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return [row for row in rows if network in (None, row["network"])]


def networks(folder: Path = RESULTS) -> list[str]:
    """Return the networks of the file, the digits' first."""
    return sorted({row["network"] for row in rows_of(folder=folder)}, key=lambda name: (name != DIGITS, name))


def mean_errors(rows: Sequence[dict[str, Any]]) -> Cells:
    """Return the error by stream and method, the mean over seeds."""
    found: dict[tuple[Stream, str], list[float]] = {}
    for row in rows:
        stream = Stream(row["stream"], row["batch_size"], row["delta"], row["images"])
        found.setdefault((stream, row["method"]), []).append(row["error"])
    return {key: statistics.fmean(errors) for key, errors in found.items()}


def comparison(network: str, folder: Path = RESULTS) -> tuple[list[Stream], list[str], Cells]:
    """Return a network's streams, the methods compared on them, and the errors, without the ablation."""
    cells = mean_errors([row for row in rows_of(network, folder) if row["method"] not in ABLATION])
    streams = sorted({stream for stream, _ in cells}, key=_place)
    return streams, list(dict.fromkeys(method for _, method in cells)), cells


def _place(stream: Stream) -> tuple[int, float, int]:
    """Protocols in their usual order, from random order to sorted labels and from large batches to small ones."""
    return list(PROTOCOLS).index(stream.protocol), -(stream.delta or 0), -stream.batch_size


def streams_text(network: str = DIGITS, folder: Path = RESULTS) -> str:
    """Return a network's heat map and its table: the error by stream and method, the lowest of each row in bold."""
    rows = [row for row in rows_of(network, folder) if row["method"] not in ABLATION]
    if not rows:
        return f"Not run on {network} yet: `{COMMAND}`."
    streams, methods, cells = comparison(network, folder)
    picture = f"![Error of each method on each stream, {network}](results/streams-{network}.png)"
    return "\n\n".join([picture, _table(streams, methods, cells), _note(rows)])


def summary_text(folder: Path = RESULTS) -> str:
    """Say, for each network, where VCoTTA is not among the best, and how it compares with Source."""
    lines = []
    for network in networks(folder):
        streams, methods, cells = comparison(network, folder)
        ours = {stream: cells[stream, "vcotta"] for stream in streams if (stream, "vcotta") in cells}
        if not ours:
            continue
        behind, above = [], []
        for stream, error in ours.items():
            others = {method: cells[stream, method] for method in methods if (stream, method) in cells}
            best = min(others, key=others.__getitem__)
            if error > others[best] + CLOSE:
                behind.append(f"{stream.name} ({error:.1f} %, {best} {others[best]:.1f} %)")
            above.append(error - others.get("source", error))
        good = f"{len(ours) - len(behind)} of {len(ours)}"
        lines.append(
            f"On {network} VCoTTA has the lowest error, or is within {CLOSE} points of it, on {good} streams"
            + (f", but not on {listed(behind)}" if behind else "")
            + f". It is {_beside(max(above))} Source on its worst stream."
        )
    return " ".join(lines) or f"Not run yet: `{COMMAND}`."


def _beside(points: float) -> str:
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'}"


def other_networks_text(folder: Path = RESULTS) -> str:
    """Return the tables of all networks but the digits'."""
    others = [network for network in networks(folder) if network != DIGITS]
    if not others:
        return f"Not run on other networks yet: `{COMMAND} --dataset cifar10 --weights FILE`."
    return "\n\n".join(f"### {network}\n\n{streams_text(network, folder)}" for network in others)


def ablation_text(folder: Path = RESULTS) -> str:
    """Return the error of VCoTTA without each of its inferences, a row a stream on which any was left out."""
    labels, parts = ["vcotta", *ABLATION], []
    for network in networks(folder):
        rows = [row for row in rows_of(network, folder) if row["method"] in labels]
        cells = mean_errors(rows)
        streams = list(dict.fromkeys(stream for stream, method in cells if method in ABLATION))
        if streams:
            kept = [label for label in labels if any((stream, label) in cells for stream in streams)]
            parts += [f"On {network}:", _table(streams, kept, cells), _note(rows)]
    return "\n\n".join(parts) or f"Not run yet: `{COMMAND} --ablation`."


def long_text(folder: Path = RESULTS) -> str:
    """Say how far the error on clean images rose above Source's along the long stream."""
    path = folder / "long.json"
    if not path.exists():
        return "Not run yet: `python -m studies.streams.long`."
    found = json.loads(path.read_text(encoding="utf-8"))
    probes = found["probe"]
    worst = max(probes, key=lambda one: one["error"] - one["source"])
    return (
        f"Along {probes[-1]['batch']} batches of {found['batch_size']} digits, {listed(found['streams'])} in turn, "
        f"VCoTTA's error on {found['probe_images']} clean test digits, measured every {probes[0]['batch']} batches, is "
        f"at worst {worst['error'] - worst['source']:+.2f} points from Source's: {worst['error']:.2f} % and "
        f"{worst['source']:.2f} %, after batch {worst['batch']}, in {worst['stream']}. Seed {found['seed']}, torch "
        f"{found['torch']} (`studies/streams/long.py`)."
    )


def cifar100_text(folder: Path = RESULTS) -> str:
    """Return in words how the methods fare on RoTTA's protocol with a hundred classes."""
    rows = json.loads((folder / "cifar100.json").read_text(encoding="utf-8"))
    errors = ", ".join(f"{row['method']} {row['error']:.1f}" for row in sorted(rows, key=lambda row: row["error"]))
    first = rows[0]
    return (
        f"CIFAR100-C, `{first['stream']}`, batches of {first['batch_size']}, {first['images']} images of each "
        f"corruption, {first['network']}, {first['views']} views, seed {first['seed']}, torch {first['torch']}, "
        f"error in per cent: {errors}."
    )


def _table(streams: Sequence[Stream], methods: Sequence[str], cells: Cells) -> str:
    shown = []
    for stream in streams:
        errors = [cells.get((stream, method)) for method in methods]
        least = min(error for error in errors if error is not None)
        words = ("-" if e is None else f"**{e:.1f}**" if e == least else f"{e:.1f}" for e in errors)
        shown.append((stream.words, stream.batch_size, stream.images, *words))
    return table(["Stream", "Batch", "Images", *methods], shown)


def _note(rows: Sequence[dict[str, Any]]) -> str:
    """Say how the runs were made; "-" in a table is a run that is missing."""
    seeds = {}
    for row in rows:
        seeds.setdefault((row["stream"], row["batch_size"], row["delta"], row["images"], row["method"]), set()).add(
            row["seed"]
        )
    numbers = sorted({len(found) for found in seeds.values()})
    count = (
        f"{numbers[0]} seed{'s' * (numbers[-1] > 1)}" if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"
    )
    views = sorted({row["views"] for row in rows if row["views"] is not None})
    few = f", {listed([str(n) for n in views])} views" if views else ""
    made = listed(sorted({f"torch {row['torch']} on {row['device']}" for row in rows}))
    return (
        f"Error in per cent, images of each domain at severity 5, all from the same warmed network{few}, mean "
        f"over {count}; {made} (`studies/streams/run.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {
    "streams-cifar100": cifar100_text,
    "streams-summary": summary_text,
    "streams": streams_text,
    "streams-networks": other_networks_text,
    "streams-ablation": ablation_text,
    "streams-long": long_text,
}
