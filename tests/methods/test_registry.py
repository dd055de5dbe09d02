"""Methods by name: registered by a decorator, from a file, or by an installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vcotta
from vcotta.cli import app
from vcotta.methods import TENT, find_method, import_method, marked, registry

OWN = """
from vcotta.methods import TENT

class Mine(TENT):
    name = "mine"

class Taken(TENT):
    name = "bn"

class NoMethod:
    pass
"""


@pytest.fixture(autouse=True)
def own_table(monkeypatch) -> None:
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))


@pytest.fixture
def own(tmp_path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_a_registered_class_is_built_by_its_name(tiny, images) -> None:
    @vcotta.register_method
    class Mine(TENT):
        name = "mine"

    assert vcotta.list_methods()[-1] == "mine"
    assert type(vcotta.build_adapter("mine", tiny())) is Mine


def test_a_name_that_another_method_has_is_refused_and_the_other_stays() -> None:
    class Again(TENT):
        name = "bn"

    with pytest.raises(ValueError, match=r"name of its own, but 'bn' is the name of vcotta\.methods\.bn\.BN"):
        vcotta.register_method(Again)
    assert find_method("bn").__name__ == "BN"


def test_a_class_that_is_no_method_or_declares_too_little_is_refused() -> None:
    with pytest.raises(TypeError, match=r"derived from vcotta\.Adapter"):
        vcotta.register_method(dict)

    class Nameless(vcotta.Adapter):
        pass

    with pytest.raises(TypeError, match="Nameless to declare name, summary, card, Config"):
        vcotta.register_method(Nameless)


def test_a_method_of_a_file_is_registered_under_its_name_however_often_it_is_imported(own) -> None:
    assert import_method(f"{own}:Mine") == import_method(f"{own}:Mine") == "mine"
    assert find_method("mine").name == "mine"


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("Taken", ValueError, "Taken to have a name of its own, but 'bn'"),
        ("NoMethod", TypeError, r"derived from vcotta\.Adapter"),
        ("Mien", ValueError, "the Class in .*Did you mean 'Mine'"),
    ],
)
def test_a_file_without_such_a_method_is_refused(own, name, kind, text) -> None:
    with pytest.raises(kind, match=text):
        import_method(f"{own}:{name}")
    assert find_method("bn").__name__ == "BN"


def test_an_error_of_the_users_file_ends_in_one_full_stop(tmp_path) -> None:
    file = tmp_path / "taken.py"
    file.write_text(f"import vcotta{OWN}vcotta.register_method(Taken)")
    with pytest.raises(ValueError, match=r"that failed: ValueError: .* Choose another `name`\.$"):
        import_method(f"{file}:Taken")
    file.write_text("1 / 0")
    with pytest.raises(ValueError, match=r"that failed: ZeroDivisionError: division by zero\.$"):
        import_method(f"{file}:Taken")


def test_a_file_without_a_class_is_refused_with_how_to_name_one(own) -> None:
    with pytest.raises(ValueError, match=r"got the file .*own\.py\. Name its class too: .*own\.py:Class"):
        import_method(own)


@pytest.mark.slow
def test_the_command_line_runs_a_method_of_a_file(own, tmp_path) -> None:
    asked = ["run", "--method", f"{own}:Mine", "--out", str(tmp_path / "run"), "--corruptions", "fog", "--limit", "20"]
    done = CliRunner().invoke(app, [*asked, "--set", "lr=0.01"])
    assert done.exit_code == 0, done.output
    assert "mine" in done.output
    assert Path(tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("swa", "swa \N{DAGGER}"),
        ("`dss`", "`dss` \N{DAGGER}"),
        ("becotta (warmed) lr=0.1", "becotta \N{DAGGER} (warmed) lr=0.1"),
        ("swa \N{DAGGER}", "swa \N{DAGGER}"),
        ("ecotta", "ecotta"),
        ("swan", "swan"),
        ("Error %", "Error %"),
        ("", ""),
    ],
)
def test_the_name_of_a_reconstruction_is_marked_once(label, shown) -> None:
    assert marked(label) == shown


def test_the_reconstructions_are_those_without_public_code_or_equations() -> None:
    found = [name for name in vcotta.list_methods() if find_method(name).card.provenance == "reconstruction"]
    assert found == ["becotta", "swa", "dss", "dvp"]
    for name in found:
        assert "**A reconstruction.**" in find_method(name).__doc__
        assert "ours" in find_method(name).__doc__.lower()


PLUGIN = """
import vcotta
from vcotta.methods import TENT

@vcotta.register_method
class Plugged(TENT):
    name = "plugged"
    summary = "a plug-in's"

class Taken(TENT):
    name = "bn"
"""
POINTS = {"plugged": "my_plugin:Plugged", "taken": "my_plugin:Taken", "broken": "my_plugin:Nothing"}
SHOW = """
import warnings, vcotta
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(vcotta.configure("plugged", lr=0.5))
    print(len(vcotta.list_methods()), vcotta.methods.find_method("bn").__name__)
for warning in caught:
    print(warning.message)
"""


def with_plugin(folder: Path, *command: str) -> str:
    """What a Python process prints that finds an installed package in a folder."""
    path = os.pathsep.join([str(folder), str(Path(vcotta.__file__).parents[1])])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def check_plugin(folder: Path) -> None:
    config, methods, *warned = with_plugin(folder, "-c", SHOW).splitlines()
    warned.sort(reverse=True)
    assert config == "TENTConfig(statistics='batch', label_prior=False, lr=0.5, optimizer='adam')"
    assert methods == "32 BN"
    assert len(warned) == 2
    assert "'taken' (my_plugin:Taken) of the package my-plugin cannot be loaded and is left out" in warned[0]
    assert "'bn' is the name of vcotta.methods.bn.BN" in warned[0]
    assert "'broken' (my_plugin:Nothing) of the package my-plugin cannot be loaded" in warned[1]


def test_the_methods_of_an_installed_package_are_known_and_its_broken_ones_warned_of(tmp_path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    about = tmp_path / "my_plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    points = "".join(f"{name} = {value}\n" for name, value in POINTS.items())
    (about / "entry_points.txt").write_text(f"[vcotta.methods]\n{points}")
    check_plugin(tmp_path)


@pytest.mark.slow
def test_a_package_installed_by_pip_adds_its_method(tmp_path) -> None:
    project, target = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    (project / "my_plugin.py").write_text(PLUGIN)
    points = "".join(f'{name} = "{value}"\n' for name, value in POINTS.items())
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "my-plugin"\nversion = "1.0"\n'
        f'[project.entry-points."vcotta.methods"]\n{points}[tool.setuptools]\npy-modules = ["my_plugin"]\n'
    )
    install = ["pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    subprocess.run([sys.executable, "-m", *install, str(project)], check=True, capture_output=True)
    check_plugin(target)
    assert "a plug-in's" in " ".join(with_plugin(target, "-m", "vcotta", "methods").split())


def test_a_config_that_is_no_dataclass_is_refused_with_what_to_write() -> None:
    class Options:
        lr = 0.1

    class Mine(TENT):
        name = "mine"
        Config = Options

    with pytest.raises(TypeError, match=r"Config of .*Mine to be a dataclass.*@dataclass\(frozen=True\)"):
        vcotta.register_method(Mine)
