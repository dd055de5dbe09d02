"""A run as files and as an object: what was run, a record of each batch, and the scores computed from them.

A run is a folder: ``manifest.json`` (what was run, written first), ``records.jsonl`` (one line for each batch, the same
bytes for the same run), ``timing.jsonl`` (what depends on the machine) and ``summary.json`` (written last, computed
from the others). An unfinished run may also have ``checkpoints`` to resume it from, and a lock file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NotRequired, Required, TypedDict, TypeVar, cast

import torch
from torch import Tensor

from vcotta._util.files import parse_json, read_json
from vcotta.runs import metrics

__all__ = [
    "FILES",
    "LOCK",
    "MANIFEST",
    "RECORDS",
    "SUMMARY",
    "TIMING",
    "DomainSummary",
    "Manifest",
    "Record",
    "Run",
    "Summary",
    "Timing",
    "check_folder",
    "read_manifest",
    "read_records",
    "read_timing",
]

MANIFEST, RECORDS, TIMING, SUMMARY = "manifest.json", "records.jsonl", "timing.jsonl", "summary.json"
FILES = (SUMMARY, RECORDS, TIMING, MANIFEST)
LOCK = ".lock"
SCORES: Final = ("error", "nll", "brier", "ece", "aurc")
_LARGEST_CLASS: Final = 2**31 - 1


class Part(TypedDict):
    """Scores of the images of one domain in a batch that mixes several."""

    domain: str
    severity: int
    nll: float | None
    brier: float


class Record(TypedDict):
    """One batch of a run: a line of ``records.jsonl``.

    ``batch``, ``domain`` and ``severity`` are those of the `Batch`, ``last`` is `Adapter.last`. A mixed batch also has
    the corruption and severity of each image, and the scores of each domain in it.

    Of a method that infers which classes a batch holds, ``last`` has ``effective_classes`` (1 to the number of
    classes), ``class_diversity`` (the same as a share of what a batch in random order would hold, 0 to 1),
    ``random_order`` (the probability that labels come in random order) and ``batch_share`` (share of this and recent
    batches in BatchNorm's statistics, 0 to 1). With the statistics of the batch alone, the first two are in a few
    records only and the others in none; records of earlier versions have none of the four.

    Attributes:
        n: Number of images.
        errors: Number of wrong predictions.
        nll: Mean negative log-likelihood in nats; None if it is infinite.
        brier: Mean Brier score.
        predictions: The predicted class of each image; -1 if the network's output was not a number, which counts as
            wrong and as a uniform prediction.
        confidences: The probability of each predicted class.
    """

    batch: int
    domain: str
    severity: int
    n: int
    errors: int
    nll: float | None
    brier: float
    labels: list[int]
    predictions: list[int]
    confidences: list[float]
    last: dict[str, Any]
    domains: NotRequired[list[str]]
    severities: NotRequired[list[int]]
    parts: NotRequired[list[Part]]


class Timing(TypedDict):
    """What one batch cost: a line of ``timing.jsonl``.

    Attributes:
        batch: Index in the stream, from 0.
        seconds: Time of the adapter's call.
        peak_memory: Largest memory so far in bytes: of the run on a GPU, of the process on a CPU.
    """

    batch: int
    seconds: float
    peak_memory: int


class Manifest(TypedDict, total=False):
    """What was run, where and how: ``manifest.json``.

    ``stream`` is from `Stream.describe`, ``weights_sha256`` the hash of the tensors that the adapter started from,
    ``distributed`` the processes that shared each batch; ``resumed`` has an entry for each time the run was resumed. A
    run made from a `RunSpec` also has ``spec``, the name and file of its ``network``, and the settings of its
    ``training`` and ``warm_up`` where these were done for the run. Earlier versions wrote ``dataset`` and ``frost``,
    which are now in ``spec`` and ``stream``.
    """

    method: Required[str]
    batches: Required[int]
    config: dict[str, Any]
    seed: int
    guard: dict[str, Any] | None
    runtime: dict[str, Any]
    stream: dict[str, Any]
    weights_sha256: str
    versions: dict[str, str]
    platform: str
    hardware: str
    distributed: dict[str, Any] | None
    command: list[str]
    resumed: list[dict[str, Any]]
    spec: dict[str, Any]
    network: str
    weights_file_sha256: str | None
    training: dict[str, Any] | None
    warm_up: dict[str, Any] | None
    dataset: str
    frost: str


class DomainSummary(TypedDict):
    """Scores of one domain."""

    domain: str
    severity: int
    n: int
    error: float
    nll: float
    brier: float
    ece: float
    aurc: float
    seconds: float


class Summary(TypedDict):
    """Scores and cost of a run.

    Attributes:
        method: Name of the method.
        mean: Unweighted means over domains of error (0 to 1), nll, brier, ece and aurc.
        domains: The same for each domain, with its number of images and its seconds.
        seconds: Time of all batches.
        peak_memory: Largest memory in bytes.
        forwards: Forward passes over a batch.
        backwards: Backward passes over a batch.
        skipped: Updates that were dropped.
    """

    method: str
    mean: dict[str, float]
    domains: list[DomainSummary]
    seconds: float
    peak_memory: int
    forwards: int
    backwards: int
    skipped: int


@dataclass(frozen=True)
class Run:
    """What happened on a stream: what was run, and the predictions and cost of each batch."""

    manifest: Manifest
    records: list[Record]
    timing: list[Timing]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.manifest["method"])

    def summary(self) -> Summary:
        """Return the scores of each domain, their unweighted means over domains, and the cost of the run.

        A domain is a stretch of batches with one corruption and severity. The images of mixed batches are scored with
        those of their domain, domains in the order of the manifest; the seconds of a batch are divided equally among
        its images. Frames that the stream declares ``unscored``, such as blank ones of ``bursts``, count only in the
        cost of the run; the images before and after them are one stretch.
        """
        unscored = self.manifest.get("stream", {}).get("unscored", ())
        pairs = [pair for pair in zip(self.records, self.timing, strict=True) if pair[0]["domain"] not in unscored]
        domains = []
        for _, members in groupby(pairs, key=lambda pair: (pair[0]["domain"], pair[0]["severity"])):
            parts: dict[tuple[str, int], list[dict[str, Any]]] = {}
            for record, line in members:
                for part in _by_domain(record, line["seconds"]):
                    parts.setdefault((part["domain"], part["severity"]), []).append(part)
            domains += [_domain_summary(*domain, parts[domain]) for domain in sorted(parts, key=self._position)]
        return {
            "method": self.method,
            "mean": {score: sum(part[score] for part in domains) / len(domains) for score in SCORES},
            "domains": domains,
            "seconds": sum(line["seconds"] for line in self.timing),
            "peak_memory": max(line["peak_memory"] for line in self.timing),
            "forwards": sum(record["last"].get("forwards") or 0 for record in self.records),
            "backwards": sum(record["last"].get("backwards") or 0 for record in self.records),
            "skipped": sum(bool(record["last"].get("skipped")) for record in self.records),
        }

    def _position(self, domain: tuple[str, int]) -> tuple[int, int]:
        """Sort key of a domain among those it was mixed with."""
        order = self.manifest.get("stream", {}).get("order", [])
        return (order.index(domain[0]) if domain[0] in order else len(order)), domain[1]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a finished run back from its folder.

        Raises:
            FileNotFoundError: There is no run in the folder.
            ValueError: The run is damaged, or was stopped before its end; the message names the file and the line.
        """
        folder = Path(folder)
        for name in (MANIFEST, RECORDS, TIMING):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"Expected a run in {folder}, but it has no {name}. Run the stream there first."
                )
        manifest = read_manifest(folder)
        records, timing = read_records(folder, manifest), read_timing(folder)
        if not len(records) == len(timing) == manifest["batches"]:
            raise ValueError(
                f"Expected {manifest['batches']} batches in {folder}, but got {len(records)} records and {len(timing)} "
                "timings: the run was stopped before its end. Resume it, or overwrite it."
            )
        return cls(manifest, records, timing)


def check_folder(folder: str | os.PathLike[str], overwrite: bool = False, resume: bool = False) -> None:
    """Raise `FileExistsError` if the folder already holds a run that is to be neither overwritten nor resumed."""
    if overwrite and resume:
        raise ValueError("Expected `resume` or `overwrite`, but got both. Choose one.")
    if not (overwrite or resume) and any((Path(folder) / name).exists() for name in FILES):
        kind = "a finished run" if (Path(folder) / SUMMARY).exists() else "a run that was stopped before its end"
        raise FileExistsError(
            f"Expected {folder} to hold no run yet, but it holds {kind}. Choose another folder, resume it (--resume) "
            "or overwrite it (--overwrite)."
        )


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a run, finished or not.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged.
    """
    path = Path(folder) / MANIFEST
    manifest = read_json(path)
    try:
        whole = _is_count(manifest["batches"]) and isinstance(manifest["method"], str)
        list(manifest.get("stream", {}).get("order", []))
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"Expected {path} to be the manifest of a run, but it is damaged. Run the stream again.")
    return cast(Manifest, manifest)


def read_records(folder: str | os.PathLike[str], manifest: Manifest | None = None) -> list[Record]:
    """Read ``records.jsonl`` of a run, finished or not; labels must be of the manifest's classes.

    Raises:
        ValueError: A line is damaged or cut off.
    """
    data = manifest.get("stream", {}).get("data") if manifest else None
    classes = data.get("classes") if isinstance(data, dict) else None
    largest = classes - 1 if isinstance(classes, int) and classes > 0 else _LARGEST_CLASS
    return _read_lines(Path(folder) / RECORDS, lambda line: _record_problem(line, largest), Record)


def read_timing(folder: str | os.PathLike[str]) -> list[Timing]:
    """Read ``timing.jsonl`` of a run, finished or not; raises `ValueError` if a line is damaged or cut off."""
    return _read_lines(Path(folder) / TIMING, _timing_problem, Timing)


Line = TypeVar("Line")


def _read_lines(path: Path, problem: Callable[[dict[str, Any]], str], kind: type[Line]) -> list[Line]:
    lines: list[Any] = []
    for number, text in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not text.endswith(b"\n"):
            raise ValueError(
                f"Expected whole lines in {path}, but line {number} is cut off: the run was killed while writing it. "
                "Resume it, or overwrite it."
            )
        try:
            line = parse_json(text.decode(), str(path))
            found = problem(line) if line["batch"] == number - 1 else f"its batch is {line['batch']!r}"
        except (ValueError, TypeError, KeyError, OverflowError):
            found = "it is no complete JSON object"
        if found:
            raise ValueError(
                f"Expected line {number} of {path} to be batch {number - 1} of a run, but it is damaged: {found}. "
                "Run the stream again."
            )
        lines.append(line)
    return lines


def _record_problem(line: dict[str, Any], largest: int) -> str:
    """Return what is wrong with a record, the empty text for a good one."""
    n, mixed = line["n"], "domains" in line
    if not (_is_count(n) and n and _is_count(line["errors"]) and line["errors"] <= n):
        return f"{line['errors']!r} errors of {n!r} images"
    for key in ("labels", "predictions", "confidences", *(("domains", "severities") if mixed else ())):
        if not isinstance(line[key], list) or len(line[key]) != n:
            return f"`{key}` are not {n}"
    if not all(_is_count(label) and label <= largest for label in line["labels"]):
        return f"`labels` must be whole numbers from 0 to {largest}"
    if not all(_is_count(guess + 1) and guess <= _LARGEST_CLASS for guess in line["predictions"]):
        return "`predictions` must be whole numbers from -1"
    if not all(_is_finite(value) and 0 <= value <= 1 for value in line["confidences"]):
        return "`confidences` must be from 0 to 1"
    for scores in (line, *(line["parts"] if mixed else ())):
        if not ((scores["nll"] is None or _is_finite(scores["nll"])) and _is_finite(scores["brier"])):
            return "a score is not a finite number"
        if not (isinstance(scores["domain"], str) and _is_count(scores["severity"])):
            return "it names no domain"
    return "" if isinstance(line["last"], dict) else "`last` is no object"


def _timing_problem(line: dict[str, Any]) -> str:
    good = _is_finite(line["seconds"]) and line["seconds"] >= 0 and _is_count(line["peak_memory"])
    return "" if good else "a cost is not a finite number"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _by_domain(record: Record, seconds: float) -> list[dict[str, Any]]:
    """Split a record into one part for each domain, each with its share of the seconds."""
    if "domains" not in record:
        return [{**record, "seconds": seconds}]
    kinds = list(zip(record["domains"], record["severities"], strict=True))
    parts = []
    for part in record["parts"]:
        chosen = [index for index, kind in enumerate(kinds) if kind == (part["domain"], part["severity"])]
        labels, predictions, confidences = (
            [values[index] for index in chosen]
            for values in (record["labels"], record["predictions"], record["confidences"])
        )
        wrong = sum(label != guess for label, guess in zip(labels, predictions, strict=True))
        samples = {"labels": labels, "predictions": predictions, "confidences": confidences}
        cost = {"n": len(chosen), "errors": wrong, "seconds": seconds * len(chosen) / record["n"]}
        parts.append({**part, **samples, **cost})
    return parts


def _domain_summary(domain: str, severity: int, parts: Sequence[dict[str, Any]]) -> DomainSummary:
    n = sum(part["n"] for part in parts)

    def joined(key: str) -> Tensor:
        return torch.tensor([value for part in parts for value in part[key]], dtype=torch.float64)

    confidence, correct = joined("confidences"), joined("predictions") == joined("labels")
    nlls = [math.inf if part["nll"] is None else part["nll"] for part in parts]
    return {
        "domain": domain,
        "severity": severity,
        "n": n,
        "error": sum(part["errors"] for part in parts) / n,
        "nll": sum(nll * part["n"] for nll, part in zip(nlls, parts, strict=True)) / n,
        "brier": sum(part["brier"] * part["n"] for part in parts) / n,
        "ece": metrics.ece_of(confidence, correct),
        "aurc": metrics.aurc_of(confidence, correct),
        "seconds": sum(part["seconds"] for part in parts),
    }
