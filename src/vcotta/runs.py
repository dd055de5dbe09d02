"""A finished run: the files of its folder, and the scores computed from them alone.

A run is a folder: ``manifest.json`` (what was run, written first), ``records.jsonl`` (one line a batch, the same bytes
for the same run), ``timing.jsonl`` (what depends on the machine) and ``summary.json`` (written last, computed from the
others).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vcotta import metrics

__all__ = ["FILES", "MANIFEST", "RECORDS", "SUMMARY", "TIMING", "Run", "check_folder"]

MANIFEST, RECORDS, TIMING, SUMMARY = "manifest.json", "records.jsonl", "timing.jsonl", "summary.json"
FILES = (SUMMARY, RECORDS, TIMING, MANIFEST)
SCORES = ("error", "nll", "brier", "ece", "aurc")
SAMPLE_KEYS = ("labels", "predictions", "confidences")
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
            and the adapter's ``last``.
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

        Returns:
            ``method``; ``mean``, a dictionary of error (0 to 1), nll, brier, ece and aurc; ``domains``, a list of the
            same with ``domain``, ``severity``, ``n`` and ``seconds``; ``seconds``, ``peak_memory`` (bytes),
            ``forwards``, ``backwards`` (passes over a batch) and ``skipped`` (updates dropped), all of the whole run.
        """
        domains = []
        for (domain, severity), members in groupby(
            zip(self.records, self.timing, strict=True), key=lambda pair: (pair[0]["domain"], pair[0]["severity"])
        ):
            records, timing = zip(*members, strict=True)
            scores = _scores(records)
            seconds = sum(line["seconds"] for line in timing)
            domains.append({"domain": domain, "severity": severity, **scores, "seconds": seconds})
        return {
            "method": self.method,
            "mean": {score: sum(part[score] for part in domains) / len(domains) for score in SCORES},
            "domains": domains,
            "seconds": sum(line["seconds"] for line in self.timing),
            "peak_memory": max(line["peak_memory"] for line in self.timing),
            **{key: sum(record["last"].get(key) or 0 for record in self.records) for key in ("forwards", "backwards")},
            "skipped": sum(bool(record["last"].get("skipped")) for record in self.records),
        }

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
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            batches, _ = manifest["batches"], manifest["method"]
        except (ValueError, KeyError, TypeError) as reason:
            raise ValueError(
                f"Expected {folder / MANIFEST} to be the manifest of a run, but it is damaged."
            ) from reason
        records = _read_lines(folder / RECORDS, RECORD_KEYS)
        timing = _read_lines(folder / TIMING, TIMING_KEYS)
        if not len(records) == len(timing) == batches:
            raise ValueError(
                f"Expected {batches} batches in {folder}, but got {len(records)} records and {len(timing)} timings: "
                "the run was stopped before its end. Run it again with overwrite."
            )
        for record in records:
            if any(len(record[key]) != record["n"] for key in SAMPLE_KEYS):
                raise ValueError(f"Expected {folder / RECORDS} to be whole, but batch {record['batch']} is damaged.")
        return cls(manifest, records, timing)


def check_folder(folder: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Raise `FileExistsError` if the folder already holds a run that is not to be overwritten."""
    if not overwrite and any((Path(folder) / name).exists() for name in FILES):
        kind = "a finished run" if (Path(folder) / SUMMARY).exists() else "a run that was stopped before its end"
        raise FileExistsError(
            f"Expected {folder} to hold no run yet, but it holds {kind}. Choose another, or overwrite it."
        )


def _scores(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    records = list(records)
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


def _read_lines(path: Path, keys: set[str]) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not text.endswith("\n"):
            raise ValueError(
                f"Expected whole lines in {path}, but line {number} is cut off: the run was stopped while writing it. "
                "Run it again with overwrite."
            )
        if not isinstance(line, dict) or not keys <= line.keys() or line["batch"] != number - 1:
            raise ValueError(f"Expected line {number} of {path} to be batch {number - 1} of a run, but it is damaged.")
        lines.append(line)
    return lines
