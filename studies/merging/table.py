"""The tables of merged streams: halves and corruptions, and poison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from studies.files import read_result
from studies.markdown import listed, table

POISON = ("upside down", "noise", "one class")


def streams_text() -> str:
    """Return the errors of streams and of what is merged of them, by what adapts."""
    found = read_result("merging", "merging.json")
    corruptions = found["setting"]["corruptions"]
    kinds: list[tuple[str, Callable[[Sequence[dict[str, Any]]], float]]] = [
        ("source", lambda rows: _one(rows, "source")),
        ("the whole stream", lambda rows: _one(rows, "whole")),
        ("the better half", lambda rows: min(_one(rows, f"half {place}") for place in (1, 2))),
        ("the worse half", lambda rows: max(_one(rows, f"half {place}") for place in (1, 2))),
        ("halves, `pool`", lambda rows: _one(rows, "halves", rule="pool")),
        ("halves, `product`", lambda rows: _one(rows, "halves", rule="product")),
        ("the best of one corruption", lambda rows: min(_one(rows, name) for name in corruptions)),
        ("the worst of one corruption", lambda rows: max(_one(rows, name) for name in corruptions)),
        ("four corruptions, `pool`", lambda rows: _one(rows, "four corruptions", rule="pool", kept_all=False)),
        ("four corruptions, `product`", lambda rows: _one(rows, "four corruptions", rule="product", kept_all=False)),
    ]
    groups = _groups(found["rows"])
    rows = [(name, *(f"{error(group):.2f}" for group in groups.values())) for name, error in kinds]
    refused = [row for row in found["rows"] if row["stream"] == "four corruptions" and row["refused"]]
    honest = f"Honest streams were refused in {len(refused)} of {2 * len(groups)} merges of the four corruptions. "
    return f"{table(['Adapter', *map(_title, groups)], rows)}\n\n{_note(found, honest)}"


def poison_text() -> str:
    """Return what each poisoned stream does alone, merged with four good ones, and whether it is refused."""
    found, rows = read_result("merging", "merging.json"), []
    for key, group in _groups(found["rows"]).items():
        good = _one(group, "four corruptions", rule="pool", kept_all=False)
        for name in POISON:
            merged, kept = (_row(group, f"four corruptions and {name}", kept_all=keep) for keep in (False, True))
            near = [one for one in merged["agreements"][:-1] if not math.isnan(one)]
            cells = [_one(group, name), good, merged["error"], kept["error"]]
            refused = ["-" if not merged["refused"] else listed([_name(place, found) for place in merged["refused"]])]
            apart = f"{merged['distances'][-1]:.1f} ({max(merged['distances'][:-1]):.1f})"
            along = f"{merged['agreements'][-1]:.2f} ({min(near):.2f} to {max(near):.2f})"
            rows.append((_title(key), name, *(f"{cell:.2f}" for cell in cells), *refused, apart, along))
    headings = ["", "Poison", "alone", "four good ones", "with it", "with it, kept", "Refused"]
    headings += ["Distance (others, at most)", "Agreement (others)"]
    return f"{table(headings, rows, left=2)}\n\n{_note(found)}"


def _name(place: int, found: dict[str, Any]) -> str:
    corruptions = found["setting"]["corruptions"]
    return str(corruptions[place]) if place < len(corruptions) else "poison"


def _groups(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    keys = dict.fromkeys((row["trains"], row["seed"]) for row in rows)
    return {key: [row for row in rows if (row["trains"], row["seed"]) == key] for key in sorted(keys)}


def _title(key: tuple[str, int]) -> str:
    return f"`{key[0]}`, seed {key[1]}"


def _row(rows: Sequence[dict[str, Any]], stream: str, **facts: Any) -> dict[str, Any]:
    (row,) = (row for row in rows if row["stream"] == stream and all(row[name] == facts[name] for name in facts))
    return row


def _one(rows: Sequence[dict[str, Any]], stream: str, **facts: Any) -> float:
    return float(_row(rows, stream, **facts)["error"])


def _note(found: dict[str, Any], more: str = "") -> str:
    setting = found["setting"]
    errors = statistics.mean(row["error"] for row in found["rows"] if row["stream"] == "source")
    return (
        f"{more}Error in per cent on digits under {', '.join(setting['corruptions'])} at severity "
        f"{setting['severity']}, all of the stream, without adapting (source: {errors:.1f} on average); "
        f"torch {setting['torch']} (`studies/merging/run.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {"merging-streams": streams_text, "merging-poison": poison_text}
