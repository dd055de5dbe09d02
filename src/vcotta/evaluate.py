"""Running an adapter along a stream, one record a batch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vcotta import metrics
from vcotta._version import __version__
from vcotta.files import write_json
from vcotta.runs import FILES, MANIFEST, RECORDS, SUMMARY, TIMING, Run, check_folder
from vcotta.streams import Batch, Stream

if TYPE_CHECKING:
    from vcotta.methods.base import Adapter

__all__ = ["run_stream", "weights_sha256"]


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
