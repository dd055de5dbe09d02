"""The page for people from other repositories names options, protocols and command-line options that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from typer.main import get_command

from vcotta.cli import app
from vcotta.methods import find_method, list_methods
from vcotta.streams.protocols import PROTOCOLS

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text()
ROWS = [re.split(r"\s*\|\s*", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| `")]
METHOD_ROWS = [row for row in ROWS if len(row) == 3]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("row", METHOD_ROWS, ids=lambda row: row[1] or row[0])
def test_every_option_of_a_method_is_one(row) -> None:
    method, _, ours = row
    config = find_method(names(method)[0]).Config
    known = {field.name for field in fields(config)}
    words = {word for hint in get_type_hints(config).values() for word in get_args(hint)}
    found = names(ours)
    assert found[0] in known
    assert set(found) <= known | words


def test_every_setting_of_a_run_is_one() -> None:
    options = {option for parameter in get_command(app).commands["run"].params for option in parameter.opts}
    shared = {field.name for method in list_methods() for field in fields(find_method(method).Config)}
    for theirs, ours in (row for row in ROWS if len(row) == 2):
        for option in re.findall(r"--[a-z-]+", ours):
            assert option in options, theirs
        for option in re.findall(r"option `([a-z_]+)`", ours):
            assert option in shared, theirs
    setting = next(row[1] for row in ROWS if row[0].startswith("`SETTING`"))
    assert set(names(setting)[2:-1]) == set(PROTOCOLS)
