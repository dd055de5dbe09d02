"""What is noted about a batch besides its answer: lines in the log, and the comparison with the source network."""

from __future__ import annotations

import logging

from torch import Tensor

from vcotta.serve.comparison import EVERY
from vcotta.serve.engine import Answer
from vcotta.serve.jobs import Served
from vcotta.serve.logs import log_event, log_message
from vcotta.serve.streams import Stream

__all__ = ["compare", "log_batch"]


def log_batch(stream: Stream, answer: Answer, reply: Served, requests: list[str]) -> None:
    """Log what the guard did, and the start and end of low class diversity."""
    notes = answer.notes
    counts = {"step": reply.step, "changes": reply.changes, "images": reply.batch_images, "requests": requests}
    guard, phase = notes.get("guard") or {"action": "note"}, stream.diversity.see(notes)
    if guard["action"] != "note":
        log_event("guard", logging.WARNING, stream=stream.name, **guard, **counts)
    if phase is not None:
        level = logging.WARNING if phase == "start" else logging.INFO
        found = {name: notes.get(name) for name in ("effective_classes", "class_diversity")}
        rounded = {name: None if value is None else round(value, 3) for name, value in found.items()}
        log_event("diversity", level, stream=stream.name, phase=phase, **rounded, **counts)
    for text in () if stream.diversity.low else answer.warned:  # the event says it
        log_message(text)


def compare(stream: Stream, images: Tensor, answer: Answer) -> None:
    """Compare every few answers with the source's; log when the stream begins or ceases to look worse."""
    stream.batches += 1
    if stream.batches % EVERY != 1:
        return
    before = stream.signs
    source, normalised = stream.engine.predict_as_source(images), stream.engine.predict_normalised(images)
    also = None if normalised is None else normalised.probabilities
    stream.comparison.see(source.probabilities, answer.probabilities, also)
    if (now := stream.signs) != before:
        log_event("worse", logging.WARNING if now else logging.INFO, stream=stream.name, signs=now)
