"""The sentence on runs that were killed."""

from __future__ import annotations

from collections.abc import Callable

from studies.files import read_result


def faults_text() -> str:
    """Return how many killed runs ended like the undisturbed one, and what was killed."""
    found = read_result("faults", "faults.json")
    lost = [trial["records_left"] - trial["resumed_from"] for trial in found["trials"]]
    return (
        f"{found['identical']} of {found['kills']} killed runs of {found['batches']} batches ended with the records of "
        f"the undisturbed one. A checkpoint was saved every {found['checkpoint_every']} batches, so that at most "
        f"{max(lost)} recorded batches were repeated. {found['hardware']}, torch {found['versions']['torch']} "
        "(`studies/faults/run.py`)."
    )


TABLES: dict[str, Callable[[], str]] = {"faults": faults_text}
