from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from vcotta.cli import app
from vcotta.methods import METHODS
from vcotta.methods.elsewhere import known_method

OWN = """
from vcotta.methods import TENT

class Mine(TENT):
    name = "mine"

class Taken(TENT):
    name = "bn"

class NoMethod:
    pass
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    yield str(tmp_path / "own.py")
    METHODS.pop("mine", None)


def test_a_method_of_a_file_is_known_by_its_name_however_often_it_is_asked_for(own) -> None:
    assert known_method(f"{own}:Mine") == known_method(f"{own}:Mine") == "mine"
    assert METHODS["mine"].name == "mine"


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("Taken", ValueError, "name of its own in .*, but 'bn' is taken"),
        ("NoMethod", TypeError, "derived from vcotta.Adapter"),
        ("Mien", ValueError, "the Class in .*Did you mean 'Mine'"),
    ],
)
def test_what_is_no_method_of_its_own_is_refused(own, name, kind, text) -> None:
    with pytest.raises(kind, match=text):
        known_method(f"{own}:{name}")
    assert METHODS["bn"].__name__ == "BN"


@pytest.mark.slow
def test_the_command_line_runs_a_method_of_a_file(own, tmp_path) -> None:
    asked = ["run", "--method", f"{own}:Mine", "--out", str(tmp_path / "run"), "--corruptions", "fog", "--limit", "20"]
    done = CliRunner().invoke(app, [*asked, "--set", "lr=0.01"])
    assert done.exit_code == 0, done.output
    assert "mine" in done.output
    assert Path(tmp_path / "run" / "summary.json").exists()


def test_a_file_without_its_class_is_told_how_to_be_named(own) -> None:
    with pytest.raises(ValueError, match=r"got the file .*own\.py\. Name its class, too: .*own\.py:Class"):
        known_method(own)
