"""What tables and figures share: runs that can be compared, because they met the same images in the same order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vcotta.runs import Run

__all__ = ["check_same_stream", "domain_labels", "same_domains"]


def domain_labels(summary: dict[str, Any]) -> list[str]:
    """Return a readable name for each domain: the corruption, with its severity where a run has several.

    Example:
        >>> domain_labels({"domains": [{"domain": "motion_blur", "severity": 5}, {"domain": "fog", "severity": 5}]})
        ['motion blur', 'fog']
    """
    domains = summary["domains"]
    several = len({domain["severity"] for domain in domains}) > 1
    return [domain["domain"].replace("_", " ") + (f" {domain['severity']}" if several else "") for domain in domains]


def same_domains(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the summaries of runs and their common domain labels, or say that they have none in common."""
    if not runs:
        raise ValueError("Expected at least one run, but got none.")
    summaries = [run.summary() for run in runs]
    labels = [domain_labels(summary) for summary in summaries]
    for run, other in zip(runs, labels, strict=True):
        if other != labels[0]:
            raise ValueError(
                f"Expected all runs to visit the same domains, but `{run.method}` and `{runs[0].method}` differ. "
                "Report runs of one stream at a time."
            )
    return summaries, labels[0]


def check_same_stream(runs: Mapping[str, Run]) -> None:
    """Raise ValueError, with the reason, unless all runs followed one stream; its seed may differ.

    Args:
        runs: The runs by name.
    """
    first, *others = runs.items()
    for name, run in others:
        ours, theirs = _facts(first[1]), _facts(run)
        for fact in {**ours, **theirs}:
            if ours.get(fact) != theirs.get(fact):
                raise ValueError(
                    f"Expected all runs to follow one stream, but {first[0]} and {name} differ in their {fact}: "
                    f"{_short(ours.get(fact))} and {_short(theirs.get(fact))}. Report runs of one stream at a time."
                )


def _facts(run: Run) -> dict[str, Any]:
    """All that makes a stream what it is, but for its seed."""
    visited = [(record["domain"], record["severity"], record["n"]) for record in run.records]
    stream = run.manifest.get("stream")
    stated = {key: value for key, value in stream.items() if key != "seed"} if isinstance(stream, dict) else {}
    order = stated.pop("order", None) or list(dict.fromkeys(domain for domain, _, _ in visited))
    facts = {
        "corruptions": order,
        **{key.replace("_", " "): value for key, value in stated.items()},
        "batches": visited,
    }
    if "frost" in order:
        facts["frost textures"] = run.manifest.get("frost")
    return facts


def _short(value: object, most: int = 80) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
