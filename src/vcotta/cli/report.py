"""`vcotta report`: tables, figures and a page from finished runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from vcotta._util.errors import counted
from vcotta.cli.options import show
from vcotta.cli.output_paths import check_out_folder

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain them.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")],
) -> None:
    """Compare runs of one stream: tables, figures, one HTML page.

    Several seeds of a method are shown as their mean and its 95 % interval. Writes report.html, which needs no network
    and no other file, report.md, report.csv and figures/ as PNG and PDF.
    """
    from vcotta.report.groups import best_first, find_runs, group_runs
    from vcotta.report.narrative import ranking, remarks
    from vcotta.report.page import write_report
    from vcotta.report.tables import comparison

    check_out_folder(out)
    found, before = find_runs(runs), _runs_of(out)
    write_report(found, out)
    groups = best_first(group_runs(list(found.values())))
    show(comparison([run for group in groups for run in group.runs]).rich())
    for line in [*ranking(groups), *remarks(groups)]:
        typer.echo(line)
    replaced = f", which replaces that of {counted(len(before), 'run')}" if before and before != set(found) else ""
    typer.echo(f"Report of {counted(len(found), 'run')}: {out / 'report.html'}{replaced}")


def _runs_of(report: Path) -> set[str]:
    """The runs that a report in a folder compares; none if there is no report."""
    try:
        with (report / "report.csv").open(encoding="utf-8", newline="") as file:
            return {line["run"] for line in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, csv.Error):
        return set()
