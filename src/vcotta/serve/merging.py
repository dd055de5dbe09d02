"""Merges what chosen streams of a server have learned, now and then or when the operator asks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from vcotta._util.tensorfile import read_state, tensors_sha256
from vcotta._util.validation import Positive, Settings
from vcotta.methods import find_method
from vcotta.methods.merging import merge_states, with_learned
from vcotta.runs.checkpoints import KIND
from vcotta.serve.engine import StateLostError
from vcotta.serve.logs import log_event
from vcotta.serve.metrics import Metrics
from vcotta.serve.requests import RefusedError
from vcotta.serve.streams import Stream, Streams

__all__ = [
    "ChangeWatch",
    "Fused",
    "MergeOutcome",
    "MergeRule",
    "Merging",
    "Offer",
    "failure_logged",
    "fuse",
    "read_checkpoint",
]

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

    def check(self, method: str) -> None:
        """Raise ValueError if streams are to be merged now and then, but states of this method cannot be."""
        if self.every is not None and not find_method(method).needs_variational:
            raise ValueError(
                f"Expected a bundle of vcotta, whose weights have distributions that can be merged, but got {method}. "
                "Leave `--merge-every` out."
            )

    def chooses(self, name: str) -> bool:
        """Return whether a stream is merged, by its name."""
        return fnmatchcase(name, self.streams)


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


@dataclass(frozen=True)
class Offer:
    """What a process has for a merge.

    Attributes:
        changes: State versions of all its streams of the rule.
        files: Checkpoints of those that may give and take.
    """

    changes: dict[str, int]
    files: dict[str, Path]


@dataclass(frozen=True)
class Fused:
    """What `fuse` made of the states of streams.

    Attributes:
        learned: The merged state.
        with_news: Streams that learned something since they were last merged.
        refused: Those of them that learned something else than the others.
        states: The states of the streams that take what was merged.
    """

    learned: dict[str, Any] = field(repr=False)
    with_news: list[str]
    refused: list[str]
    states: dict[str, dict[str, Any]] = field(repr=False)

    def outcome(self, chosen: Iterable[str], began: float) -> MergeOutcome:
        """Return what the merge did of the streams that were chosen; it began so long ago by `time.monotonic`."""
        left_out = [name for name in chosen if name not in self.states and name not in self.refused]
        return MergeOutcome([*self.states], self.refused, left_out, round(time.monotonic() - began, 3))


def fuse(files: Mapping[str, Path], pattern: str) -> Fused:
    """Merge the states in checkpoints of streams; nothing is written.

    Raises:
        RefusedError: 409 if fewer than two of them can be merged.
    """
    found = {name: read_checkpoint(path, name) for name, path in files.items()}
    states = {name: state for name, state in found.items() if state is not None and state["counters"]["steps"] > 0}
    names = _with_news(states)
    if len(names) < 2:
        raise RefusedError(
            409,
            f"Expected at least two streams that have adapted since they were last merged, with names like "
            f"{pattern!r} and neither pinned nor flagged, but got {len(names)}.",
        )
    try:
        merged = merge_states([states[name] for name in names], names=names)
    except ValueError as error:
        raise RefusedError(409, f"The streams cannot be merged: {error}") from error
    refused = [names[place] for place in merged.refused]
    return Fused(merged.state, names, refused, {name: states[name] for name in states if name not in refused})


class ChangeWatch:
    """Knows whether streams have changed since they were last merged."""

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}

    def changed(self, versions: Mapping[str, int]) -> bool:
        """Return whether the state versions of the streams are others than after the latest merge."""
        return versions != self._versions

    def merged(self, versions: Mapping[str, int], takers: Iterable[str]) -> None:
        """Note the versions before a merge and which streams took what was merged, as one more change."""
        self._versions = {**versions} | {name: versions[name] + 1 for name in takers}


@contextmanager
def failure_logged() -> Iterator[None]:
    """Log an error of a merge that nobody asked for; the next one may succeed."""
    try:
        yield
    except RefusedError as error:  # too few streams, for example
        log_event("merge_failed", logging.WARNING if error.status >= 500 else logging.INFO, reason=error.detail)
    except Exception:
        _log.exception("Streams could not be merged")


class Merging:
    """Merges the streams of a service; all methods but `due` are called between two batches.

    Every state is first on the disk, and is read from there in parts, so that sleeping streams are not woken. The
    streams get the merged state as a new checkpoint each, and only if all of these could be written they continue from
    them: a merge that fails changes nothing.

    Streams whose networks are equal have learned nothing since they were merged. They take and do not give: beside
    many equal ones any other would seem to be an outlier.

    Where several processes share the streams, each calls `offer`, `write` and then `finish` or `drop` for its own,
    see `vcotta.serve.joint_merge`.

    Args:
        streams: The streams.
        rule: Which are merged, and when.
        metrics: Counts merges.
        method: Name of the method.

    Raises:
        ValueError: ``rule.every`` is given, but states of this method cannot be merged.
    """

    def __init__(self, streams: Streams, rule: MergeRule, metrics: Metrics, method: str) -> None:
        rule.check(method)
        self._streams, self.rule, self._metrics = streams, rule, metrics
        self._latest = time.monotonic()
        self._watch = ChangeWatch()
        self._files: dict[str, Path] = {}
        self._written: list[Stream] = []

    def due(self) -> float | None:
        """Return the seconds until the next merge, 0 or less if it is due; None for never."""
        return None if self.rule.every is None else self._latest + self.rule.every - time.monotonic()

    def run_if_due(self) -> None:
        """Merge if it is time and a stream has changed since; an error is logged and counted, and changes nothing."""
        if (due := self.due()) is None or due > 0:
            return
        if not self._watch.changed(_versions(self._chosen())):
            self._latest = time.monotonic()
            return
        with failure_logged():
            self.run()

    def run(self) -> MergeOutcome:
        """Merge the streams of the rule.

        Raises:
            RefusedError: 409 if fewer than two streams can be merged, 503 if states cannot be written.
        """
        self._latest = began = time.monotonic()
        try:
            offer = self.offer()
            found = fuse(offer.files, self.rule.streams)
            self.write(found.states.items(), found.learned)
        except Exception as error:
            self.drop(failed=not isinstance(error, RefusedError) or error.status >= 500)
            raise
        finally:
            self._latest = time.monotonic()
        self.finish(found.with_news, found.refused)
        self._watch.merged(offer.changes, found.states)
        outcome = found.outcome(offer.changes, began)
        log_event("merge", **asdict(outcome))
        return outcome

    def offer(self) -> Offer:
        """Return the states of the streams that may be merged, which are on the disk then.

        Raises:
            RefusedError: 503 if one cannot be written.
        """
        chosen = self._chosen()
        found = {stream.name: _checkpoint(stream) for stream in chosen if _takes_part(stream)}
        self._files = {name: path for name, path in found.items() if path is not None}
        return Offer(_versions(chosen), self._files)

    def write(self, takers: Iterable[tuple[str, dict[str, Any]]], learned: dict[str, Any]) -> None:
        """Write what was merged as the next checkpoint of streams, given with their states; none is changed yet.

        Raises:
            RefusedError: 503 if one cannot be written; `drop` must follow.
        """
        streams = {stream.name: stream for stream in self._chosen()}
        for name, state in takers:
            if not streams[name].engine.write_next(with_learned(state, learned)):
                detail = f"The merged state of {name!r} cannot be written, so no stream was changed."
                raise RefusedError(503, detail, Retry_After="30")
            self._written.append(streams[name])

    def finish(self, with_news: Iterable[str], refused: Iterable[str]) -> None:
        """Let the streams of `write` continue with what was merged, and note which were refused."""
        own = [stream for stream in self._chosen() if stream.name in with_news]
        for stream in self._written:
            stream.engine.continue_with_next()
        for stream in own:
            _note(stream, stream.name in refused)
        self._metrics.merges.inc()
        self._metrics.merge_refusals.inc(sum(stream.name in refused for stream in own))
        self._written = []

    def drop(self, failed: bool = False) -> None:
        """Remove what `write` has written, and count a failure."""
        written, self._written = self._written, []
        self._metrics.failed_merges.inc(failed)
        for stream in written:
            stream.engine.drop_next(self._files[stream.name])

    def _chosen(self) -> list[Stream]:
        return [stream for stream in self._streams.all() if self.rule.chooses(stream.name)]


def _versions(streams: Iterable[Stream]) -> dict[str, int]:
    return {stream.name: stream.engine.changes for stream in streams}


def _takes_part(stream: Stream) -> bool:
    """Whether a stream may give and take; one that was an outlier gets another try."""
    fine = not stream.pinned and not stream.comparison.flags() and not (stream.closing or stream.leaving)
    return fine and stream.engine.lost is None


def _checkpoint(stream: Stream) -> Path | None:
    try:
        return stream.engine.checkpoint()
    except OSError as error:
        raise RefusedError(503, f"The state of {stream.name!r} cannot be written: {error}", Retry_After="30") from error
    except StateLostError:  # it was logged
        return None


def read_checkpoint(path: Path, stream: str) -> dict[str, Any] | None:
    """Return the state in a checkpoint, whose tensors stay in the file until they are used; None if it is damaged."""
    try:
        state: dict[str, Any] = read_state(path, KIND)["adapter"]
        return state
    except (OSError, ValueError) as error:
        _log.warning("The stream %s is not merged, as its state cannot be read: %s", stream, error)
        return None


def _with_news(states: dict[str, dict[str, Any]]) -> list[str]:
    """The names of states whose networks no other has."""
    digests = {
        name: [tensors_sha256(net) for role, net in sorted(state["networks"].items()) if role != "start"]
        for name, state in states.items()
    }
    all_digests = list(digests.values())
    return [name for name, digest in digests.items() if all_digests.count(digest) == 1]


def _note(stream: Stream, outlier: bool) -> None:
    if outlier != stream.outlier:
        stream.outlier = outlier
        log_event("worse", logging.WARNING if outlier else logging.INFO, stream=stream.name, signs=stream.signs)
