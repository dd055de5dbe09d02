"""`vcotta report`: tables, figures and a page from finished runs."""

from __future__ import annotations

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
    found = find_runs(runs)
    write_report(found, out)
    groups = best_first(group_runs(list(found.values())))
    show(comparison([run for group in groups for run in group.runs]).rich())
    for line in [*ranking(groups), *remarks(groups)]:
        typer.echo(line)
    typer.echo(f"Report of {counted(len(found), 'run')}: {out / 'report.html'}")
