"""Writing a report: tables, figures and the page, all from the files of the runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vcotta.files import write_text
from vcotta.report.comparison_figures import (
    cost_against_error,
    error_along_stream,
    error_heat_map,
    risk_against_coverage,
)
from vcotta.report.curves import noted, varies
from vcotta.report.domains import check_same_stream
from vcotta.report.figures import alpha_along_stream, error_by_corruption, priors_along_stream, reliability
from vcotta.report.groups import Group, group_runs
from vcotta.report.page import html_page
from vcotta.report.tables import ALL_COLUMNS, by_corruption, comparison, csv_text, escaped
from vcotta.report.words import ranking, remarks, stream_sentence
from vcotta.runs import Run

__all__ = ["write_report"]

DRAWINGS: dict[str, Callable[[Sequence[Run], Path], None]] = {
    "error": error_by_corruption,
    "heat-map": error_heat_map,
    "stream": error_along_stream,
    "reliability": reliability,
    "risk-coverage": risk_against_coverage,
    "cost": cost_against_error,
}


def write_report(runs: Mapping[str, Run], out: str | os.PathLike[str]) -> list[Path]:
    """Write ``report.html``, ``report.md``, ``report.csv`` and the figures, as PNG and PDF, into a folder.

    Args:
        runs: Runs of one stream, by the name of their folder, as from `find_runs`.
        out: Folder to write to; an earlier report there is replaced.

    Returns:
        The files.

    Raises:
        ValueError: There is no run, or the runs followed different streams.
    """
    if not runs:
        raise ValueError("Expected at least one run, but got none.")
    check_same_stream(runs)
    folder, ordered = Path(out), _best_first(list(runs.values()))
    texts = {"report.html": html_page(runs), "report.md": _markdown(ordered), "report.csv": csv_text(runs)}
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts] + _draw(ordered, folder / "figures")


def _best_first(runs: list[Run]) -> list[Run]:
    groups = sorted(group_runs(runs), key=lambda group: group.score("error").mean)
    return [run for group in groups for run in group.runs]


def _markdown(runs: Sequence[Run]) -> str:
    groups = group_runs(runs)
    said = "\n".join(f"- {escaped(line)}" for line in [*ranking(groups), *remarks(groups)])
    return (
        f"# Report\n\n{escaped(stream_sentence(groups[0]))}\n\n{said}\n\n## Means over domains\n\n"
        f"{comparison(runs, ALL_COLUMNS).markdown()}\n## Error in per cent\n\n{by_corruption(runs).markdown()}"
    )


def _draw(runs: Sequence[Run], folder: Path) -> list[Path]:
    files = [(draw, folder / f"{name}.{kind}") for name, draw in DRAWINGS.items() for kind in ("png", "pdf")]
    for draw, path in files:
        draw(runs, path)
    done = [path for _, path in files]
    groups = group_runs(runs)
    for name, draw_one, wanted in (
        ("priors", priors_along_stream, _notes_priors),
        ("alpha", alpha_along_stream, _varies_alpha),
    ):
        if found := next(filter(wanted, groups), None):
            done += [folder / f"{name}.{kind}" for kind in ("png", "pdf")]
            for path in done[-2:]:
                draw_one(found.runs[0], path)
    return done


def _notes_priors(group: Group) -> bool:
    return "entropy_source" in noted([group])


def _varies_alpha(group: Group) -> bool:
    return varies(group, "alpha")
