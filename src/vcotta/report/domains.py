"""What tables and figures share: the errors of several runs on the same domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vcotta.runs import Run

__all__ = ["domain_labels", "same_domains"]


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
