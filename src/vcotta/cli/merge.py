"""Command that merges what streams learned: merge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vcotta.cli.options import Overwrite
from vcotta.cli.output_paths import check_out_file, refuse_existing

__all__ = ["merge"]


def merge(
    files: Annotated[list[Path], typer.Argument(help="Files of vcotta.save, two or more.")],
    out: Annotated[Path, typer.Option(help="File for the merged adapter (safetensors).")],
    rule: Annotated[
        str,
        typer.Option(help="pool: the streams saw much the same; product: each is evidence of its own, shifts add up."),
    ] = "pool",
    weight: Annotated[
        list[float] | None, typer.Option(help="How much a file counts, once for each file; by default all the same.")
    ] = None,
    keep_outliers: Annotated[
        bool, typer.Option("--keep-outliers", help="Merge streams that are far from the others, too.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Merge what several streams learned from one network.

    The weights' distributions are fused over those of the source network; a stream that learned something else than
    the others is left out. The result begins a stream of its own.
    """
    from vcotta._util.errors import counted
    from vcotta.methods.merging import merge as merge_files
    from vcotta.methods.parts.outliers import LIMIT

    check_out_file(out)
    refuse_existing(out, overwrite)
    limit = None if keep_outliers else LIMIT
    merged = merge_files(files, out, rule=rule, weights=weight or None, limit=limit)  # type: ignore[arg-type]
    for place, path in enumerate(files):
        agreement = merged.agreements[place]
        near = f"{merged.distances[place]:.2f} sigma from the median"
        along = "" if agreement != agreement else f", agreement {agreement:.2f}"
        counts = "left out" if place in merged.refused else f"weight {merged.weights[place]:.2f}"
        typer.echo(f"{path}: {near}{along}, {counts}")
    typer.echo(f"Merged {counted(len(files) - len(merged.refused), 'adapter')} into {out}")
