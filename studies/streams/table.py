"""The table of streams: the error of each method where labels come in clumps or batches are small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from studies.files import read_result
from studies.markdown import table


def streams_text() -> str:
    """Return the error in per cent by method and stream, the lowest of each column in bold."""
    rows: list[dict[str, Any]] = read_result("streams", "streams.json")
    columns = list(dict.fromkeys((row["stream"], row["batch_size"]) for row in rows))
    errors = {(row["method"], row["stream"], row["batch_size"]): float(row["error"]) for row in rows}
    best = {(s, n): min(e for (_, *where), e in errors.items() if where == [s, n]) for s, n in columns}
    shown = []
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [(errors[method, stream, size], best[stream, size]) for stream, size in columns]
        shown.append((method, *(f"**{error:.1f}**" if error == least else f"{error:.1f}" for error, least in cells)))
    (first, *_) = rows
    note = (
        f"Error in per cent, fifteen corruptions at severity 5, {first['images']} digits of each, all methods from the "
        f"same warmed network, seed {first['seed']}, one run each; torch {first['torch']} (`studies/streams/run.py`). "
        '“Statistics” is `statistics="inferred"`, “label prior” `label_prior=True`.'
    )
    return f"{table(['Method', *(f'{stream}, {size}' for stream, size in columns)], shown)}\n\n{note}"


TABLES: dict[str, Callable[[], str]] = {"streams": streams_text}
