"""Merges what chosen streams of a server have learned, now and then or when the operator asks."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vcotta._util.tensorfile import read_state, tensors_sha256
from vcotta._util.validation import Positive, Settings
from vcotta.methods import find_method
from vcotta.methods.merging import Merged, merge_states, with_learned
from vcotta.runs.checkpoints import KIND
from vcotta.serve.engine import StateLostError
from vcotta.serve.logs import log_event
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import RefusedError
from vcotta.serve.streams import Stream, Streams

__all__ = ["MergeOutcome", "MergeRule", "Merging"]

_log = logging.getLogger("vcotta.serve")


@dataclass(frozen=True)
class MergeRule(Settings):
    """Which streams are merged, and how often.

    Attributes:
        every: Seconds from one merge to the next; None for those only that the operator asks for.
        streams: Names of the streams by a pattern of the shell, such as ``north-*``.
    """

    every: Positive | None = None
    streams: str = "*"


@dataclass(frozen=True)
class MergeOutcome:
    """What a merge did, by names of streams.

    Attributes:
        merged: Streams that have the merged state now; those among them that learned something since they were last
            merged gave it.
        refused: Streams that learned something else than the others; they keep their states.
        left_out: Streams of the pattern that are pinned, flagged, about to be deleted, have not adapted, or whose
            states cannot be read.
        seconds: How long it took.
    """

    merged: list[str]
    refused: list[str]
    left_out: list[str]
    seconds: float

    def as_json(self) -> bytes:
        """Return the body of an answer, see `vcotta.serve.schemas.MergeResponse`."""
        return json.dumps(asdict(self)).encode()


class Merging:
    """Merges the streams of a service; all methods but `due` are called between two batches.

    Every state is first on the disk, and is read from there in parts, so that sleeping streams are not woken. The
    streams get the merged state as a new checkpoint each, and only if all of these could be written they continue from
    them: a merge that fails changes nothing.

    Streams whose networks are equal have learned nothing since they were merged. They take and do not give: beside
    many equal ones any other would seem to be an outlier.

    Args:
        streams: The streams.
        rule: Which are merged, and when.
        metrics: Counts merges.
        method: Name of the method.

    Raises:
        ValueError: ``rule.every`` is given, but states of this method cannot be merged.
    """

    def __init__(self, streams: Streams, rule: MergeRule, metrics: Metrics, method: str) -> None:
        if rule.every is not None and not find_method(method).needs_variational:
            raise ValueError(
                f"Expected a bundle of vcotta, whose weights have distributions that can be merged, but got {method}. "
                "Leave `--merge-every` out."
            )
        self._streams, self._rule, self._metrics = streams, rule, metrics
        self._latest = time.monotonic()
        self._versions: dict[str, int] = {}

    def due(self) -> float | None:
        """Return the seconds until the next merge, 0 or less if it is due; None for never."""
        return None if self._rule.every is None else self._latest + self._rule.every - time.monotonic()

    def run_if_due(self) -> None:
        """Merge if it is time and a stream has changed since; an error is logged and counted, and changes nothing."""
        if (due := self.due()) is None or due > 0:
            return
        if self._versions == {stream.name: stream.engine.changes for stream in self._chosen()}:
            self._latest = time.monotonic()
            return
        try:
            self.run()
        except RefusedError as error:  # too few streams, for example
            log_event("merge_failed", logging.WARNING if error.status >= 500 else logging.INFO, reason=error.detail)
        except Exception:  # requests must still be served
            _log.exception("Streams could not be merged; nothing has changed")

    def run(self) -> MergeOutcome:
        """Merge the streams of the rule.

        Raises:
            RefusedError: 409 if fewer than two streams can be merged, 503 if states cannot be written.
        """
        self._latest = began = time.monotonic()
        try:
            outcome = self._run(began)
        except RefusedError as error:
            self._metrics.failed_merges.inc(error.status >= 500)
            raise
        except Exception:
            self._metrics.failed_merges.inc()
            raise
        finally:
            self._latest = time.monotonic()
        self._metrics.merges.inc()
        self._metrics.merge_refusals.inc(len(outcome.refused))
        log_event("merge", **asdict(outcome))
        return outcome

    def _chosen(self) -> list[Stream]:
        return [stream for stream in self._streams.all() if fnmatchcase(stream.name, self._rule.streams)]

    def _run(self, began: float) -> MergeOutcome:
        chosen = self._chosen()
        files: dict[str, Path] = {}
        states: dict[str, dict[str, Any]] = {}
        for stream in chosen:
            if _takes_part(stream) and (path := _checkpoint(stream)) is not None:
                state = _read(path, stream)
                if state is not None and state["counters"]["steps"] > 0:
                    files[stream.name], states[stream.name] = path, state
        names = _with_news(states)
        if len(names) < 2:
            raise RefusedError(
                409,
                f"Expected at least two streams that have adapted since they were last merged, with names like "
                f"{self._rule.streams!r} and neither pinned nor flagged, but got {len(names)}.",
            )
        try:
            found = merge_states([states[name] for name in names], names=names)
        except ValueError as error:
            raise RefusedError(409, f"The streams cannot be merged: {error}") from error
        refused = [names[place] for place in found.refused]
        takers = [one for one in chosen if one.name in states and one.name not in refused]
        _give(takers, states, files, found)
        for stream in chosen:
            if stream.name in names:
                _note(stream, stream.name in refused)
        self._versions = {stream.name: stream.engine.changes for stream in chosen}
        left_out = [one.name for one in chosen if one.name not in states]
        return MergeOutcome([one.name for one in takers], refused, left_out, round(time.monotonic() - began, 3))


def _takes_part(stream: Stream) -> bool:
    """Whether a stream may give and take; one that was an outlier is judged again."""
    fine = not stream.pinned and not stream.comparison.flags() and not (stream.closing or stream.leaving)
    return fine and stream.engine.lost is None


def _checkpoint(stream: Stream) -> Path | None:
    try:
        return stream.engine.checkpoint()
    except OSError as error:
        raise RefusedError(503, f"The state of {stream.name!r} cannot be written: {error}", Retry_After="30") from error
    except StateLostError:  # it was logged
        return None


def _read(path: Path, stream: Stream) -> dict[str, Any] | None:
    """The state in a checkpoint, whose tensors stay in the file until they are used; None if it is damaged."""
    try:
        state: dict[str, Any] = read_state(path, KIND)["adapter"]
        return state
    except (OSError, ValueError) as error:
        _log.warning("The stream %s is not merged, as its state cannot be read: %s", stream.name, error)
        return None


def _with_news(states: dict[str, dict[str, Any]]) -> list[str]:
    """The names of states whose networks no other has."""
    digests = {
        name: [tensors_sha256(net) for role, net in sorted(state["networks"].items()) if role != "start"]
        for name, state in states.items()
    }
    all_digests = list(digests.values())
    return [name for name, digest in digests.items() if all_digests.count(digest) == 1]


def _give(takers: list[Stream], states: dict[str, dict[str, Any]], files: dict[str, Path], found: Merged) -> None:
    """Let all streams continue with what was merged, or none."""
    written: list[Stream] = []
    try:
        for stream in takers:
            if not stream.engine.write_next(with_learned(states[stream.name], found.state)):
                detail = f"The merged state of {stream.name!r} cannot be written, so no stream was changed."
                raise RefusedError(503, detail, Retry_After="30")
            written.append(stream)
    except BaseException:
        for stream in written:
            stream.engine.drop_next(files[stream.name])
        raise
    for stream in written:
        stream.engine.continue_with_next()


def _note(stream: Stream, outlier: bool) -> None:
    if outlier != stream.outlier:
        stream.outlier = outlier
        log_event("worse", logging.WARNING if outlier else logging.INFO, stream=stream.name, signs=stream.signs)
