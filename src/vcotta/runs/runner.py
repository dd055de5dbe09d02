"""`run_stream`: run an adapter along a stream and record each batch."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from vcotta._util.errors import counted, differences
from vcotta._util.locks import locked
from vcotta._util.signals import interrupt_held_back
from vcotta._util.tensorfile import weights_sha256
from vcotta._util.warn import warn
from vcotta._version import __version__
from vcotta.methods import Adapter, Guard
from vcotta.methods.class_mix import recorded_settings
from vcotta.nn.runtime import Runtime
from vcotta.runs import metrics
from vcotta.runs.checkpoints import identity
from vcotta.runs.run import LOCK, MANIFEST, SUMMARY, Manifest, Record, Run, Timing, check_folder, read_manifest
from vcotta.runs.spec import RunSpec
from vcotta.runs.writer import RunWriter, finished_run
from vcotta.streams.stream import Batch, Stream

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["already_finished", "run_stream"]

_BUSY = "Expected {} to be free, but another process is writing a run there. Wait for it, or choose another folder."


def run_stream(
    adapter: Adapter,
    stream: Stream,
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int, float], None] | None = None,
    log: Callable[[Run], None] | None = None,
    manifest: dict[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float = 0.0,
) -> Run:
    """Run an adapter once along a stream and record each batch.

    The adapter starts from its present state: reset it first if it has seen other data. It is reset during the run
    where the stream says so. A run that was killed at any moment and resumed from a checkpoint writes the same bytes to
    ``records.jsonl`` as one that was not killed (on a GPU, up to the differences between any two runs there).

    Where several processes share the adapter's batches (`vcotta.methods.distribute`), all of them call this with the
    same arguments. The first process writes the files; on resuming, the others get their state from it.

    Args:
        adapter: Called with each batch's images; the log-probabilities it returns are scored.
        stream: The protocol.
        out: Folder for the files of the run, created if it does not exist; None keeps everything in memory. Only one
            process at a time can write there.
        progress: Called before the first batch and after each with (batches done, batches, error so far, 0 to 1).
        log: Called with the run so far after each batch, such as `vcotta.runs.tensorboard.TensorBoardLog`.
        manifest: Entries to add to the manifest, for example the SHA-256 of the weights.
        overwrite: Replace a run that is already in ``out``.
        resume: Continue the run in ``out`` from its newest good checkpoint, with the adapter in the state of then. A
            run that does not exist is started, one without a good checkpoint starts over with a warning, and a
            finished one is returned.
        checkpoint_every: Save a checkpoint in ``out`` after this many batches, until the run is finished; None for
            never. If one cannot be saved, for example on a full disk, a warning says so once and the run continues;
            records that do not fit wait in memory. In a single process Ctrl-C then waits for the end of the batch and
            saves a checkpoint; pressed again, it stops at once.
        checkpoint_seconds: Least number of seconds between two checkpoints.

    Returns:
        The run; the same as ``Run.load(out)``.

    Raises:
        FileExistsError: ``out`` already holds a run.
        BlockingIOError: Another process is writing a run to ``out``.
        OSError: The run reached its end, but the disk is still full; it can be resumed.
        ValueError: The adapter returned something other than log-probabilities, or ``out`` holds another run than the
            one to resume.
        RuntimeError: Another of the processes that share the batches failed.

    Example:
        >>> import tempfile, vcotta
        >>> from vcotta.data import load_digits
        >>> from torch import nn
        >>> net = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
        >>> stream = vcotta.make_stream("continual", load_digits()[1], ("fog", "frost"), batch_size=50, limit=100)
        >>> with tempfile.TemporaryDirectory() as out:
        ...     run = run_stream(vcotta.build_adapter("source", net), stream, out, checkpoint_every=1)
        ...     run_stream(vcotta.build_adapter("source", net), stream, out, resume=True) == run  # it is finished
        True
    """
    _check_options(stream, out, overwrite, resume, checkpoint_every)
    facts, world = _manifest(adapter, stream, manifest or {}), adapter.world
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()  # so that the peak is this run's
    with ExitStack() as stack:
        run, writer = Run(facts, [], []), None
        with world.all_or_none():
            if out is not None and world.leads:
                options = {"every": checkpoint_every, "seconds": checkpoint_seconds}
                run, writer = _open(stack, Path(out), facts, adapter, overwrite, resume, options)
        if world.size > 1:
            run = _follow(adapter, run, facts, resume)
        if len(run.records) == len(stream) and writer is None:  # it was finished before
            return run
        wrong, seen = (sum(record[key] for record in run.records) for key in ("errors", "n"))
        if progress is not None:  # the first batch may take minutes
            progress(len(run.records), len(stream), wrong / seen if seen else 0.0)
        saves = writer is not None and checkpoint_every is not None and world.size == 1
        interrupted = stack.enter_context(interrupt_held_back(saves))
        for batch in stream.batches(len(run.records)):
            if batch.reset:
                adapter.reset()
            log_probs, times = _timed(adapter, batch)
            if run.timing:  # the peak may have been in the process that was killed
                times["peak_memory"] = max(times["peak_memory"], run.timing[-1]["peak_memory"])
            run.records.append(_record(adapter, batch, log_probs))
            run.timing.append(times)
            if writer is not None:
                writer.add(run.records[-1], times)
            if log is not None:
                log(run)
            wrong, seen = wrong + run.records[-1]["errors"], seen + run.records[-1]["n"]
            if progress is not None:
                progress(len(run.records), len(stream), wrong / seen)
            if writer is not None and interrupted() and len(run.records) < len(stream):
                done = f"{len(run.records)} of {len(stream)} batches"
                raise KeyboardInterrupt(f"The run was stopped after {done}; it will resume after {writer.save()}.")
        if writer is not None:
            writer.finish(_plain(run.summary()))
    skipped = sum(bool(record["last"].get("skipped")) for record in run.records)
    if 2 * skipped > len(stream):
        warn(
            f"{adapter.name} skipped {skipped} of {len(stream)} updates, as loss or gradient was not finite. Check the "
            "network, or lower `lr`."
        )
    return run


def already_finished(
    out: str | os.PathLike[str], spec: RunSpec, stream: Stream, manifest: dict[str, Any] | None = None
) -> Run | None:
    """Return the run in a folder if it is finished, without making a network; None if there is still work to do.

    ``manifest`` has the entries that `run_stream` would add; they are all that is known of the network.

    Raises:
        ValueError: The folder holds another finished run.
    """
    folder = Path(out)
    if (folder / LOCK).exists() or not all((folder / name).exists() for name in (MANIFEST, SUMMARY)):
        return None
    plan = _plan(spec.method, spec.config, spec.seed, spec.runtime, spec.resolved_guard, stream)
    facts = _plain(plan | (manifest or {}))
    return finished_run(folder, cast(Manifest, {**read_manifest(folder), **facts}))


def _open(
    stack: ExitStack,
    folder: Path,
    facts: Manifest,
    adapter: Adapter,
    overwrite: bool,
    resume: bool,
    checkpoints: dict[str, Any],
) -> tuple[Run, RunWriter | None]:
    """Lock the folder and start or resume its run; a finished run has no writer."""
    check_folder(folder, overwrite, resume)
    abandoned = (folder / LOCK).exists()
    if resume and not abandoned and (done := finished_run(folder, facts)):
        return done, None  # without a lock: the folder may be read-only
    stack.enter_context(locked(folder / LOCK, _BUSY.format(folder)))
    check_folder(folder, overwrite, resume)  # again, now that no other process can change it
    if resume and (done := finished_run(folder, facts)):  # another process may have finished it just now
        return done, None
    writer = stack.enter_context(RunWriter(folder, facts, adapter, resume=resume, **checkpoints))
    return writer.run, writer


def _follow(adapter: Adapter, run: Run, facts: Manifest, resume: bool) -> Run:
    """Take over the state of the first of several processes, after checking that all have the same run."""
    world = adapter.world
    mine = [identity(facts), [run.manifest, run.records, run.timing]] if world.leads else None
    leading, done = world.exchange(mine)[0]
    with world.all_or_none():
        if odd := differences(identity(facts), leading):
            raise ValueError(f"Expected the same run in process {world.rank} as in process 0, but {', '.join(odd)}.")
    if resume and done[1]:
        state = world.share_state(adapter.state_dict() if world.leads else None)
        if not world.leads:
            adapter.load_state_dict(state)
    return run if world.leads else Run(*done)


def _check_options(
    stream: Stream, out: str | os.PathLike[str] | None, overwrite: bool, resume: bool, checkpoint_every: int | None
) -> None:
    if not len(stream):
        raise ValueError("Expected `stream` to have at least one batch, but it is empty.")
    if checkpoint_every is not None and (not isinstance(checkpoint_every, int) or checkpoint_every < 1):
        raise ValueError(
            f"Expected `checkpoint_every` to be at least 1, but got {checkpoint_every!r}. Use None for no checkpoints."
        )
    if out is None and (resume or checkpoint_every is not None):
        raise ValueError(
            "Expected `out` to be a folder, but got None. A run in memory can be neither saved nor resumed."
        )


def _timed(adapter: Adapter, batch: Batch) -> tuple[Tensor, Timing]:
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


def _record(adapter: Adapter, batch: Batch, log_probs: Tensor) -> Record:
    lost = torch.zeros(len(log_probs), dtype=torch.bool)
    if adapter.last.get("skipped"):  # outputs that are not numbers count as wrong and as uniform
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
    record: Record = {
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
    return record if batch.domains is None else cast(Record, {**record, **_mixture(batch, log_probs.cpu(), labels)})


def _mixture(batch: Batch, log_probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """What the record of a mixed batch has in addition, to be scored by domain."""
    names = list(batch.domains or ())
    severities = list(batch.severities or [batch.severity] * len(names))
    kinds = list(zip(names, severities, strict=True))
    parts = []
    for kind in dict.fromkeys(kinds):
        own = torch.tensor([other == kind for other in kinds])
        scores = {score: _plain(getattr(metrics, score)(log_probs[own], labels[own])) for score in ("nll", "brier")}
        parts.append({"domain": kind[0], "severity": kind[1], **scores})
    return {"domains": names, "severities": severities, "parts": parts}


def _plan(method: str, config: Any, seed: int, runtime: Runtime, guard: Guard | None, stream: Stream) -> dict[str, Any]:
    """The entries of the manifest that do not depend on the network."""
    return {
        "method": method,
        "config": recorded_settings(config),
        "seed": seed,
        "guard": guard and asdict(guard),
        "runtime": asdict(runtime),
        "stream": stream.describe(),
        "batches": len(stream),
    }


def _manifest(adapter: Adapter, stream: Stream, more: dict[str, Any]) -> Manifest:
    world = adapter.world
    facts = _plan(adapter.name, adapter.config, adapter.seed, adapter.runtime, adapter.guard, stream) | {
        "weights_sha256": weights_sha256(adapter.start),
        "versions": {
            "vcotta": __version__,
            "torch": str(torch.__version__),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "hardware": _hardware(adapter.runtime.device, world.size),
        "distributed": world.backend and {"processes": world.size, "backend": world.backend},
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "resumed": [],
    }
    if clash := sorted(facts.keys() & more.keys()):
        raise ValueError(
            f"Expected `manifest` to have new keys only, but got {', '.join(clash)}, which every run writes."
        )
    return cast(Manifest, _plain(facts | more))


def _hardware(device: str, processes: int) -> str:
    if torch.device(device).type == "cuda":
        one = torch.cuda.get_device_name(device)
    else:
        one = f"{platform.machine()} CPU, {counted(torch.get_num_threads(), 'torch thread')}"
    return one if processes == 1 else f"{processes} processes, each {one}"


def _plain(value: Any) -> Any:
    """Convert a value to what JSON can hold; infinity and not-a-number become None."""
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
    """Return the largest memory of the process so far in bytes, 0 where the platform does not tell."""
    if resource is None:
        return 0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
