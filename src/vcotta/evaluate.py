"""Running an adapter along a stream, and the files that come of it.

A run is a folder: ``manifest.json`` (what was run, written first), ``records.jsonl`` (one line a batch, the same bytes
for the same run), ``timing.jsonl`` (what depends on the machine) and ``summary.json`` (written last, computed from the
others).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vcotta import metrics
from vcotta._version import __version__
from vcotta.files import write_json
from vcotta.streams import Batch, Stream

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["Run", "check_folder", "run_stream", "weights_sha256"]

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


def run_stream(
    adapter: Adapter,
    stream: Stream,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int, float], None] | None = None,
    manifest: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> Run:
    """Run an adapter along a stream, one pass, and record each batch.

    The adapter is taken as it is: reset it first if it has seen other data.

    Args:
        adapter: Called with each batch's images; the log-probabilities it returns are scored.
        stream: The protocol.
        out: Folder for the files of the run, made if need be; None keeps everything in memory.
        progress: Called after each batch with (batches done, batches, error so far from 0 to 1).
        manifest: More to be told in the manifest, for example the SHA-256 of the weights.
        overwrite: Replace a run that is already in ``out``.

    Returns:
        The run; the same as ``Run.load(out)``.

    Raises:
        FileExistsError: ``out`` already holds a run.
        ValueError: The adapter returned something other than log-probabilities.
    """
    if not len(stream):
        raise ValueError("Expected `stream` to have at least one batch, but it is empty.")
    facts = _manifest(adapter, stream, manifest or {})
    records: list[dict[str, Any]] = []
    timing: list[dict[str, Any]] = []
    wrong = seen = 0
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()  # so that the peak is this run's
    with ExitStack() as stack:
        files = None if out is None else _open(Path(out), facts, stack, overwrite)
        for batch in stream.batches():
            log_probs, times = _timed(adapter, batch)
            records.append(_record(adapter, batch, log_probs))
            timing.append(times)
            if files is not None:
                for file, line in zip(files, (records[-1], times), strict=True):
                    file.write(json.dumps(line, allow_nan=False) + "\n")
                    file.flush()
            wrong, seen = wrong + records[-1]["errors"], seen + records[-1]["n"]
            if progress is not None:
                progress(len(records), len(stream), wrong / seen)
    run = Run(facts, records, timing)
    if out is not None:
        write_json(Path(out) / SUMMARY, _plain(run.summary()))
    return run


def check_folder(folder: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Raise `FileExistsError` if the folder already holds a run that is not to be overwritten."""
    if not overwrite and any((Path(folder) / name).exists() for name in FILES):
        kind = "a finished run" if (Path(folder) / SUMMARY).exists() else "a run that was stopped before its end"
        raise FileExistsError(
            f"Expected {folder} to hold no run yet, but it holds {kind}. Choose another, or overwrite it."
        )


def _timed(adapter: Adapter, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
    _synchronise()
    start = time.perf_counter()
    log_probs = adapter(batch.images)
    _synchronise()
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(log_probs.device) if log_probs.is_cuda else _peak_resident()
    return log_probs, {"batch": batch.index, "seconds": seconds, "peak_memory": peak}


def _synchronise() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _record(adapter: Adapter, batch: Batch, log_probs: Tensor) -> dict[str, Any]:
    lost = torch.zeros(len(log_probs), dtype=torch.bool)
    if adapter.last.get("skipped"):  # a network that broke on this batch predicts nothing, which is wrong for sure
        lost = log_probs.isnan().any(-1).cpu()
        log_probs = log_probs.masked_fill(lost.to(log_probs.device).unsqueeze(-1), -math.log(log_probs.shape[-1]))
    try:
        nll, brier = metrics.nll(log_probs, batch.labels), metrics.brier(log_probs, batch.labels)
    except ValueError as reason:
        raise ValueError(
            f"Expected `{adapter.name}` to return log-probabilities, but batch {batch.index} ({batch.domain}) gave "
            f"something else. {reason}"
        ) from reason
    top = log_probs.detach().double().cpu().max(1)
    labels = batch.labels.cpu()
    predictions = top.indices.masked_fill(lost, -1)
    return {
        "batch": batch.index,
        "domain": batch.domain,
        "severity": batch.severity,
        "n": len(labels),
        "errors": int((predictions != labels).sum()),
        "nll": _plain(nll),
        "brier": brier,
        "labels": labels.tolist(),
        "predictions": predictions.tolist(),
        "confidences": [round(value, 6) for value in top.values.exp().clamp(max=1).tolist()],
        "last": _plain(adapter.last),
    }


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


def weights_sha256(net: nn.Module) -> str:
    """Return the SHA-256 of a network's tensors, names and values, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _manifest(adapter: Adapter, stream: Stream, more: dict[str, Any]) -> dict[str, Any]:
    facts = {
        "method": adapter.name,
        "config": asdict(adapter.config),
        "seed": adapter.seed,
        "runtime": asdict(adapter.runtime),
        "weights_sha256": weights_sha256(adapter.start),
        "stream": stream.describe(),
        "batches": len(stream),
        "versions": {
            "vcotta": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "hardware": _hardware(adapter.runtime.device),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    if clash := sorted(facts.keys() & more.keys()):
        raise ValueError(
            f"Expected `manifest` to add new keys, but got {', '.join(clash)}, which the run writes itself."
        )
    plain: dict[str, Any] = _plain(facts | more)
    return plain


def _hardware(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} torch threads"


def _open(folder: Path, facts: dict[str, Any], stack: ExitStack, overwrite: bool) -> tuple[IO[str], IO[str]]:
    check_folder(folder, overwrite)
    old = [folder / name for name in FILES if (folder / name).exists()]
    for path in old:  # the summary first: whatever stops us, no summary is left beside another run's records
        path.unlink()
    write_json(folder / MANIFEST, facts)
    records, timing = (
        stack.enter_context((folder / name).open("w", encoding="utf-8", newline="\n")) for name in (RECORDS, TIMING)
    )
    return records, timing


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


def _plain(value: Any) -> Any:
    """Turn a value into what JSON can hold; not-a-number and infinity, for which it has no word, become None."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _peak_resident() -> int:
    """Return the largest memory the process has held so far in bytes, or 0 where the platform does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
