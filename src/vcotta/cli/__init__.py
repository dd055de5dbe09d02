"""The command line: each command is a few lines that call the library."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer

from vcotta._util.errors import file_trouble, notes
from vcotta._version import __version__
from vcotta.cli.data import corrupt, data_fetch, data_list, data_prepare
from vcotta.cli.networks import check, train, warmup
from vcotta.cli.report import report
from vcotta.cli.reproduce import reproduce
from vcotta.cli.runs import run, tune
from vcotta.cli.serve import bundle, serve
from vcotta.cli.tour import demo, info, methods

__all__ = ["app", "main"]

_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="vcotta",
    help="Continual test-time adaptation: a classifier that adjusts itself to fog, noise or another camera.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(invoke_without_command=True)

for command in (demo, methods, train, check, warmup, run, report, reproduce, tune, corrupt, bundle, serve, info):
    app.command()(command)
data_app.command("list")(data_list)
data_app.command("prepare")(data_prepare)
data_app.command("fetch")(data_fetch)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line; an error of the user is one line on standard error and exit code 2."""
    warnings.showwarning = notes()
    try:
        code = app(prog_name="vcotta", standalone_mode=False)
    except _UsageError as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, typer.Abort):  # some versions of typer return 130 instead
        code = 130
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError) as error:
        if os.environ.get("VCOTTA_DEBUG"):
            raise
        _fail(file_trouble(error) if isinstance(error, OSError) else str(error))
    if code == 130:
        print("Interrupted.", file=sys.stderr)
    sys.exit(code)


def _fail(message: str) -> None:
    print(f"Error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vcotta {__version__}")
        raise typer.Exit


def _help(context: typer.Context) -> None:
    """Without a command, show the help."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


data_app.callback(help="List, prepare and download data.")(_help)


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    _help(context)
