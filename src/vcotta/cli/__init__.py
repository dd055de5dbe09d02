"""The command line: each command is a few lines that call the library."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from vcotta._util.errors import notes
from vcotta._version import __version__
from vcotta.cli.config_file import ConfiguredCommand
from vcotta.cli.data import corrupt, data_fetch, data_list, data_prepare
from vcotta.cli.errors import describe, fail, is_from_users_code, usage_message
from vcotta.cli.merge import merge
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

for command in (demo, methods, train, check, warmup, run, report, reproduce, tune, corrupt, merge, bundle, serve, info):
    app.command(cls=ConfiguredCommand if command is run else None)(command)
data_app.command("list")(data_list)
data_app.command("prepare")(data_prepare)
data_app.command("fetch")(data_fetch)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line; a mistake of the user is one line on standard error and exit code 2.

    An error that passed through the user's own method or network is shown with its traceback, exit code 1; with
    ``--debug`` every error is.
    """
    warnings.showwarning = notes()
    words = sys.argv[1:]
    debug = "--debug" in words or bool(os.environ.get("VCOTTA_DEBUG"))
    try:
        code = app([word for word in words if word != "--debug"], prog_name="vcotta", standalone_mode=False)
    except _UsageError as error:
        fail(usage_message(error, words))
    except (KeyboardInterrupt, typer.Abort):  # some versions of typer return 130 instead
        code = 130
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError) as error:
        if debug:
            raise
        if not is_from_users_code(error):
            fail(describe(error))
        traceback.print_exception(error)
        code = 1
    if code == 130:
        print("Interrupted.", file=sys.stderr)
    sys.exit(code)


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
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere in a command.")
    ] = False,
) -> None:
    _help(context)
