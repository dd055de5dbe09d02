"""A finished run: the files of its folder, and the scores computed from them alone.

A run is a folder: ``manifest.json`` (what was run, written first), ``records.jsonl`` (one line a batch, the same bytes
for the same run), ``timing.jsonl`` (what depends on the machine) and ``summary.json`` (written last, computed from the
others). While it runs there may be ``checkpoints`` to resume it from, and a lock.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vcotta import metrics

__all__ = [
    "FILES",
    "LOCK",
    "MANIFEST",
    "RECORDS",
    "SUMMARY",
    "TIMING",
    "Run",
    "check_folder",
    "read_lines",
    "read_manifest",
]

MANIFEST, RECORDS, TIMING, SUMMARY = "manifest.json", "records.jsonl", "timing.jsonl", "summary.json"
FILES = (SUMMARY, RECORDS, TIMING, MANIFEST)
LOCK = ".lock"
SCORES = ("error", "nll", "brier", "ece", "aurc")
SAMPLE_KEYS = ("labels", "predictions", "confidences")
MIXTURE_KEYS = ("domains", "severities")
RECORD_KEYS = {"batch", "domain", "severity", "n", "errors", "nll", "brier", *SAMPLE_KEYS, "last"}
TIMING_KEYS = {"batch", "seconds", "peak_memory"}


@dataclass(frozen=True)
class Run:
    """What happened on a stream.

    Attributes:
        manifest: What was run: stream, method, settings, seed, versions.
        records: One dictionary a batch: ``batch``, ``domain``, ``severity``, ``n``, ``errors`` (count), ``nll`` and
            ``brier`` (means over the batch; an infinite ``nll`` is None), ``labels``, ``predictions`` (-1 where a
            network that broke on the batch gave none, scored as wrong and as uniform), ``confidences``
            and the adapter's ``last``. A batch that mixes domains also has ``domains`` and ``severities``, one an
            image, and ``parts``, the ``nll`` and ``brier`` of each ``domain`` and ``severity`` in it.
        timing: One dictionary a batch: ``batch``, ``seconds`` of the adapter's call, ``peak_memory`` so far in bytes
            (of the run on a GPU, of the process on a CPU).
    """

    manifest: dict[str, Any]
    records: list[dict[str, Any]]
    timing: list[dict[str, Any]]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.manifest["method"])

    def summary(self) -> dict[str, Any]:
        """Return scores by domain and their unweighted means over domains, with cost and skipped steps.

        The images of mixed batches are scored with those of their domain, in the order that the manifest tells; the
        seconds of a batch are shared out among its images.

        Returns:
            ``method``; ``mean``, a dictionary of error (0 to 1), nll, brier, ece and aurc; ``domains``, a list of the
            same with ``domain``, ``severity``, ``n`` and ``seconds``; ``seconds``, ``peak_memory`` (bytes),
            ``forwards``, ``backwards`` (passes over a batch) and ``skipped`` (updates dropped), all of the whole run.
        """
        domains = []
        for _, members in groupby(
            zip(self.records, self.timing, strict=True), key=lambda pair: (pair[0]["domain"], pair[0]["severity"])
        ):
            parts: dict[tuple[str, int], list[dict[str, Any]]] = {}
            for record, line in members:
                for part in _by_domain(record, line["seconds"]):
                    parts.setdefault((part["domain"], part["severity"]), []).append(part)
            for domain, severity in sorted(parts, key=self._place):
                found = parts[domain, severity]
                seconds = sum(part["seconds"] for part in found)
                domains.append({"domain": domain, "severity": severity, **_scores(found), "seconds": seconds})
        return {
            "method": self.method,
            "mean": {score: sum(part[score] for part in domains) / len(domains) for score in SCORES},
            "domains": domains,
            "seconds": sum(line["seconds"] for line in self.timing),
            "peak_memory": max(line["peak_memory"] for line in self.timing),
            **{key: sum(record["last"].get(key) or 0 for record in self.records) for key in ("forwards", "backwards")},
            "skipped": sum(bool(record["last"].get("skipped")) for record in self.records),
        }

    def _place(self, domain: tuple[str, int]) -> tuple[int, int]:
        """Where a domain comes among those it was mixed with, whatever order they were drawn in."""
        order = self.manifest.get("stream", {}).get("order", [])
        return (order.index(domain[0]) if domain[0] in order else len(order)), domain[1]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """Read a finished run back from its folder.

        Raises:
            FileNotFoundError: There is no run in the folder.
            ValueError: The run is damaged, or was stopped before its end.
        """
        folder = Path(folder)
        for name in (MANIFEST, RECORDS, TIMING):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"Expected a run in {folder}, but it has no {name}. Run the stream there first."
                )
        manifest = read_manifest(folder)
        batches = manifest["batches"]
        records = read_lines(folder / RECORDS)
        timing = read_lines(folder / TIMING)
        if not len(records) == len(timing) == batches:
            raise ValueError(
                f"Expected {batches} batches in {folder}, but got {len(records)} records and {len(timing)} timings: "
                "the run was stopped before its end. Resume it, or run it again with overwrite."
            )
        for record in records:
            mixture = MIXTURE_KEYS if "domains" in record else ()
            if any(len(record.get(key, ())) != record["n"] for key in (*SAMPLE_KEYS, *mixture)):
                raise ValueError(f"Expected {folder / RECORDS} to be whole, but batch {record['batch']} is damaged.")
        return cls(manifest, records, timing)


def check_folder(folder: str | os.PathLike[str], overwrite: bool = False, resume: bool = False) -> None:
    """Raise `FileExistsError` if the folder already holds a run that is to be neither overwritten nor resumed."""
    if overwrite and resume:
        raise ValueError("Expected `resume` or `overwrite`, but got both. Choose what to do with a run that is there.")
    if not (overwrite or resume) and any((Path(folder) / name).exists() for name in FILES):
        kind = "a finished run" if (Path(folder) / SUMMARY).exists() else "a run that was stopped before its end"
        raise FileExistsError(
            f"Expected {folder} to hold no run yet, but it holds {kind}. Choose another, resume it (--resume) or "
            "overwrite it (--overwrite)."
        )


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the manifest of a run, finished or not.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = manifest["batches"], manifest["method"]
        list(manifest.get("stream", {}).get("order", []))
    except (ValueError, KeyError, TypeError, AttributeError) as reason:
        raise ValueError(f"Expected {path} to be the manifest of a run, but it is damaged.") from reason
    return manifest


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read ``records.jsonl`` or ``timing.jsonl`` of a run, finished or not.

    Raises:
        ValueError: A line is damaged or cut off.
    """
    keys = RECORD_KEYS if path.name == RECORDS else TIMING_KEYS
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not text.endswith("\n"):
            raise ValueError(
                f"Expected whole lines in {path}, but line {number} is cut off: the run was stopped while writing it. "
                "Resume it, or run it again with overwrite."
            )
        if not isinstance(line, dict) or not keys <= line.keys() or line["batch"] != number - 1:
            raise ValueError(f"Expected line {number} of {path} to be batch {number - 1} of a run, but it is damaged.")
        lines.append(line)
    return lines


def _by_domain(record: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """A record as one part a domain, each with its share of the seconds; most batches are of one domain."""
    if "domains" not in record:
        return [record | {"seconds": seconds}]
    kinds = list(zip(record["domains"], record["severities"], strict=True))
    parts = []
    for part in record["parts"]:
        chosen = [place for place, kind in enumerate(kinds) if kind == (part["domain"], part["severity"])]
        samples = {key: [record[key][place] for place in chosen] for key in SAMPLE_KEYS}
        wrong = sum(a != b for a, b in zip(samples["labels"], samples["predictions"], strict=True))
        share = seconds * len(chosen) / record["n"]
        parts.append(part | samples | {"n": len(chosen), "errors": wrong, "seconds": share})
    return parts


def _scores(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    n = sum(record["n"] for record in records)

    def joined(key: str) -> Tensor:
        return torch.tensor([value for record in records for value in record[key]], dtype=torch.float64)

    confidence, correct = joined("confidences"), joined("predictions") == joined("labels")
    nlls = [math.inf if record["nll"] is None else record["nll"] for record in records]
    return {
        "n": n,
        "error": sum(record["errors"] for record in records) / n,
        "nll": sum(nll * record["n"] for nll, record in zip(nlls, records, strict=True)) / n,
        "brier": sum(record["brier"] * record["n"] for record in records) / n,
        "ece": metrics.ece_of(confidence, correct),
        "aurc": metrics.aurc_of(confidence, correct),
    }
