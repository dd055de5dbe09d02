"""The command that reports: tables, figures and a page from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vcotta.cli.options import show
from vcotta.cli.places import check_out_folder

__all__ = ["report"]


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")],
    out: Annotated[Path, typer.Option(help="Folder for the report.")],
) -> None:
    """Compare runs of one stream: tables, figures, one HTML page.

    Several seeds of a method are told as mean and range. Writes report.html, which needs no network and no other file,
    report.md, report.csv and figures/ as PNG and PDF.
    """
    from vcotta.report.find import find_runs
    from vcotta.report.groups import group_runs
    from vcotta.report.tables import comparison
    from vcotta.report.words import ranking, remarks
    from vcotta.report.write import write_report

    check_out_folder(out)
    found = find_runs(runs)
    write_report(found, out)
    groups = sorted(group_runs(list(found.values())), key=lambda group: group.score("error").mean)
    show(comparison([run for group in groups for run in group.runs]).rich())
    for line in [*ranking(groups), *remarks(groups)]:
        typer.echo(line)
    typer.echo(f"Report of {len(found)} run{'s' * (len(found) > 1)}: {out / 'report.html'}")
